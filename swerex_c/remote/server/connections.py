"""Connections of a server: upgrade to frames, limits, access log and /metrics.

    connection ── UpgradeHandler ── upgrade request for frames ── 101 ── `calls.ServerConnection`
                          └──── other request ── uvicorn's protocol ── AccessLog ── the app

`UpgradeHandler` is a subclass of uvicorn's protocol. It buffers a first head that may ask for an upgrade, limits time
and size of each head, and reports to `ServerState` when a request has sent the key. `AccessLog` wraps the app: it logs
requests and answers /metrics.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import socket
import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import TYPE_CHECKING, Any

from swerex_c.remote.server import logs
from swerex_c.remote.server.limits import Limits
from swerex_c.remote.wire.protocol import SERVER_HEADER, UPGRADE

if TYPE_CHECKING:
    from swerex_c.remote.server.calls import Registry
    from swerex_c.remote.server.metrics import Page
    from swerex_c.remote.server.service import Service

__all__ = ["HEAD_BYTES", "App", "AccessLog", "ServerState", "upgrade_handler"]

App = Callable[[Any, Any, Any], Awaitable[None]]
"""An ASGI application."""

HEAD_BYTES = 64 << 10
"""Maximum size of the head of a request, in bytes."""

_TOO_MANY = "The server has as many connections as it allows: try again later"
_TOO_LONG = f"The head of a request is longer than {HEAD_BYTES} bytes"

_SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %b\r\n" % UPGRADE.encode()
_HEAD_END = re.compile(rb"\n\r?\n")
_REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    431: "Request Header Fields Too Large",
    511: "Limit",
}


class ServerState:
    """The state that all connections of one server share.

    It also takes the place of uvicorn's `ServerState`.
    """

    def __init__(self, service: Service, limits: Limits, registry: Registry):
        self.service = service
        self.limits = limits
        self.registry = registry
        self.ending = False
        self.total_requests = 0
        self.connections: set[Any] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.unauthenticated: dict[Any, float] = {}
        """Unauthenticated connections, the oldest first, with the loop time at which each was accepted."""
        self.when_room: Callable[[], None] = lambda: None
        """Called when a connection has ended or has been authenticated."""
        self._made_at = 0
        self._headers: list[tuple[bytes, bytes]] = []

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """The headers of each response; made when they are needed, at most once a second."""
        now = int(time.time())
        if now != self._made_at:
            self._headers = [(b"date", formatdate(now, usegmt=True).encode())]
            self._made_at = now
        return self._headers

    def enter(self, connection: Any, accepted: socket.socket, full: bool) -> None:
        """Register an accepted connection.

        Args:
            full: True if the only response is to be that there are too many connections.
        """
        connection.socket = accepted
        if full:
            connection.app = _too_many
        self.service.connections += 1
        self.unauthenticated[connection] = connection.loop.time()

    def authenticated(self, connection: Any) -> None:
        """Register that a connection is authenticated."""
        if self.unauthenticated.pop(connection, None) is not None:
            self.when_room()

    def leave(self, connection: Any) -> None:
        """Unregister a connection that is lost or no longer HTTP."""
        self.unauthenticated.pop(connection, None)
        self.service.connections -= 1
        self.when_room()

    def cut(self, connection: Any) -> None:
        """Abort an unauthenticated connection, even during its TLS handshake."""
        del self.unauthenticated[connection]
        if connection.transport is not None:
            connection.transport.abort()
        else:  # during the TLS handshake
            with contextlib.suppress(OSError):
                connection.socket.shutdown(socket.SHUT_RDWR)

    async def abort_all(self) -> None:
        """Abort all connections, then cancel requests that still run.

        The requests have 0.2 seconds to end by themselves.
        """
        for connection in list(self.connections):
            connection.transport.abort()
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=0.2)
        for task in list(self.tasks):
            task.cancel()
        await asyncio.sleep(0)


def _refusal(status: int, content: dict[str, Any]) -> bytes:
    body = json.dumps(content, separators=(",", ":")).encode()
    head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\nConnection: close\r\n\r\n" + body


def _limit_content(message: str) -> dict[str, Any]:
    """Return the wire format of a `ServerLimitError`, for responses that are made before the app runs."""
    error = {"message": message, "class_path": "swerex.exceptions.ServerLimitError", "traceback": "", "extra_info": {}}
    return {"swerexception": error}


def _parse_upgrade(head: bytes) -> dict[bytes, bytes] | None:
    """Return the headers by lower-case name if the head asks for the frame protocol, else None."""
    first, *lines = head.split(b"\r\n")
    words = first.split(b" ")
    if len(words) != 3 or words[2] != b"HTTP/1.1" or not words[1].partition(b"?")[0].endswith(b"/wire"):
        return None
    headers: dict[bytes, bytes] = {}
    for name, _, value in (line.partition(b":") for line in lines):
        name, value = name.lower(), value.strip()
        headers[name] = headers[name] + b", " + value if name in headers else value
    tokens = [token.strip() for token in headers.get(b"connection", b"").lower().split(b",")]
    return headers if headers.get(b"upgrade", b"").lower() == UPGRADE.encode() and b"upgrade" in tokens else None


def upgrade_handler(base: type[Any], server_state: ServerState) -> type[asyncio.Protocol]:
    """Create a subclass of uvicorn's protocol `base` for a server's connections.

    It adds upgrades to frames and limits on heads.
    """

    class UpgradeHandler(base):  # type: ignore[misc]
        app: Any
        _first: bytearray | None
        """Received bytes of a first head that may ask for an upgrade; None once that is decided."""

        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            self._first = bytearray()
            self._head_bytes = 0
            self._head_timer: asyncio.TimerHandle | None = None
            self._in_message = False
            self._inner_app = self.app
            self.app = self._authenticate

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            if server_state.ending:
                transport.abort()
                return
            self._start_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._end_head()
            super().connection_lost(exc)
            self.app = self._inner_app  # break the reference cycle through `_authenticate`
            server_state.leave(self)

        async def _authenticate(self, scope: Any, receive: Any, send: Any) -> None:
            """Call the app, as an ASGI app itself, until a request has sent the key."""
            if server_state.service.refusal(dict(scope["headers"]).get(b"x-api-key")) is None:
                self.app = self._inner_app
                server_state.authenticated(self)
            await self._inner_app(scope, receive, send)

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return  # TLS still delivers buffered data
            if self._first is not None:
                self._first += data
                if not self._first_is_decided(len(data)):
                    return
                data, self._first = bytes(self._first), None
            before = self._waits_for_head()
            super().data_received(data)
            if self.transport.is_closing() or not self._waits_for_head():
                self._end_head()
                return
            self._head_bytes += len(data) if before else 0
            if self._head_bytes > HEAD_BYTES:
                self._refuse(431, {"detail": _TOO_LONG})
            elif self._head_timer is None:
                self._start_head()

        def _first_is_decided(self, added: int) -> bool:
            """Check whether uvicorn is to get the first bytes; False if more are needed, or they were handled here."""
            first = self._first
            assert first is not None
            if not first.startswith(b"GET "[: len(first)]):
                return True
            end = _HEAD_END.search(first, max(0, len(first) - added - 2))
            if (end.end() if end else len(first)) > HEAD_BYTES:
                self._refuse(431, {"detail": _TOO_LONG})
                return False
            if end is None:
                return False
            headers = _parse_upgrade(bytes(first[: end.start() - 1])) if end.group() == b"\n\r\n" else None
            if headers is None:
                return True
            self._upgrade(headers, bytes(first[end.end() :]))
            return False

        def _upgrade(self, headers: dict[bytes, bytes], rest: bytes) -> None:
            refused: tuple[int, dict[str, Any]] | None = None
            if (reason := server_state.service.refusal(headers.get(b"x-api-key"))) is not None:
                refused = reason[0], {"detail": reason[1]}
            if refused is None and self.app is _too_many:
                refused = 511, _limit_content(_TOO_MANY)
            if refused is not None:
                logs.request_done("GET /wire", 0.0, str(refused[0]), _client_name(self.client), "", failed=True)
                self._refuse(*refused)
                return
            self._end_head()
            transport: asyncio.Transport = self.transport
            self.connections.discard(self)
            server_state.leave(self)
            connection = server_state.registry.new_connection()
            logs.connected(_client_name(self.client), "frames")
            instance_id = server_state.service.instance_id.encode()
            transport.write(b"".join([_SWITCHING, SERVER_HEADER.encode(), b": ", instance_id, b"\r\n\r\n"]))
            # A transport may choose how it reads from its protocol when reading begins, so pause during the change.
            transport.pause_reading()
            transport.set_protocol(connection)
            connection.connection_made(transport)
            transport.resume_reading()
            if rest:
                connection.data_received(rest)

        def _refuse(self, status: int, content: dict[str, Any]) -> None:
            self._end_head()
            self.transport.write(_refusal(status, content))
            self.transport.close()

        # Limits on the time and size of a head

        def _start_head(self) -> None:
            self._head_bytes = 0
            self._head_timer = self.loop.call_later(server_state.limits.head_seconds, self._head_is_late)

        def _end_head(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _head_is_late(self) -> None:
            self._head_timer = None
            self.transport.abort()

        def _waits_for_head(self) -> bool:
            """Check whether the next bytes belong to the head of a request, and no request is being answered."""
            if hasattr(self, "parser"):  # httptools
                return not self._in_message and (self.cycle is None or self.cycle.response_complete)
            import h11

            return bool(self.conn.their_state is h11.IDLE)

        def on_headers_complete(self) -> None:
            self._in_message = True
            super().on_headers_complete()

        def on_header(self, name: bytes, value: bytes) -> None:
            if not self._in_message:  # otherwise it is a trailer, which uvicorn would add to the head
                super().on_header(name, value)

        def on_message_complete(self) -> None:
            self._in_message = False
            super().on_message_complete()

        def _unsupported_upgrade_warning(self) -> None:
            """Log nothing: requests to upgrade to other protocols may be ignored."""

    return UpgradeHandler


async def _too_many(scope: Any, receive: Any, send: Any) -> None:
    await _respond(send, 511, "application/json", json.dumps(_limit_content(_TOO_MANY)).encode(), close=True)


async def _respond(send: Any, status: int, content_type: str, body: bytes, *, close: bool = False) -> None:
    headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
    if close:
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _client_name(client: tuple[str, int] | None) -> str:
    return f"{client[0]}:{client[1]}" if client else "unix"


class AccessLog:
    """ASGI middleware that refuses long heads, answers /metrics, and logs responses."""

    def __init__(self, app: App, server_state: ServerState, page: Page | None):
        self._app = app
        self._server_state = server_state
        self._page = page

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = scope["headers"]
        if sum([len(name) + len(value) + 4 for name, value in headers], len(scope["raw_path"])) > HEAD_BYTES:
            content = {"detail": _TOO_LONG}
            await _respond(send, 431, "application/json", json.dumps(content).encode(), close=True)
        elif self._page is not None and scope["path"] == "/metrics":
            await self._metrics(dict(headers), send)
        elif logs.LOGGER.isEnabledFor(logging.INFO):
            await self._logged(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _metrics(self, headers: dict[bytes, bytes], send: Any) -> None:
        assert self._page is not None
        if (refused := self._server_state.service.refusal(headers.get(b"x-api-key"))) is not None:
            body = json.dumps({"detail": refused[1]}).encode()
            await _respond(send, refused[0], "application/json", body, close=True)
            return
        content_type, body = self._page(headers.get(b"accept", b"").decode("latin-1"))
        await _respond(send, 200, content_type, body)

    async def _logged(self, scope: Any, receive: Any, send: Any) -> None:
        status = 0

        async def watch(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        begin = time.perf_counter()
        try:
            await self._app(scope, receive, watch)
        finally:
            seconds = time.perf_counter() - begin
            request_id = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
            client = _client_name(scope.get("client"))
            what = f"{scope['method']} {scope['path'][:200]}"
            logs.request_done(what, seconds, str(status or "no answer"), client, request_id, not 200 <= status < 400)
