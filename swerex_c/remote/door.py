"""The connections of a server, before its app and its frames.

    connection ── Door ── a head that asks for the frames protocol ── 101 ── a peer, see `Peers`
                    └──── anything else ── uvicorn's protocol ── Front ── the app

The door is uvicorn's own protocol with something before it: it keeps the first head that may be a wish to upgrade,
gives every head a time and a size, and knows when there are too many connections. The front is before the app: it
answers /metrics, and logs.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Protocol

from swerex_c.remote import logs
from swerex_c.remote.limits import Limits
from swerex_c.remote.protocol import SERVER_HEADER, UPGRADE

if TYPE_CHECKING:
    from swerex_c.remote.metrics import Page
    from swerex_c.remote.service import Service

__all__ = ["HEAD_BYTES", "App", "Front", "House", "MakePeers", "Peers", "door"]

App = Callable[[Any, Any, Any], Awaitable[None]]
"""An ASGI application."""

HEAD_BYTES = 64 << 10
"""The longest head of a request, in bytes."""

_TOLD = 100
"""So many connections beyond the limit are told that there are too many; more than these are cut off."""

_TOO_MANY = "The server has as many connections as it allows: try again later"
_TOO_LONG = f"The head of a request is longer than {HEAD_BYTES} bytes"

_SWITCHING = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %b\r\n" % UPGRADE.encode()
_HEAD_END = re.compile(rb"\n\r?\n")
_REASONS = {
    401: "Unauthorized",
    403: "Forbidden",
    429: "Too Many Requests",
    431: "Request Header Fields Too Large",
    511: "Limit",
}


class Peers(Protocol):
    """What takes over the connections that speak frames, such as `channel.Registry`.

    It counts them in `Service.connections` from their `connection_made` to their `connection_lost`.
    """

    def __call__(self) -> asyncio.BaseProtocol:
        """Make the protocol of one connection, with or without buffers of its own."""

    async def shutdown(self, seconds: float = ...) -> None:
        """Say good-bye and end all of them, within so many seconds."""


MakePeers = Callable[["Service"], Peers]
class House:
    """What the connections of one server share. Is uvicorn's `ServerState`, too."""

    def __init__(self, service: Service, limits: Limits, peers: Peers | None):
        self.service = service
        self.limits = limits
        self.peers = peers
        self.ending = False
        self.total_requests = 0
        self.connections: set[Any] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self._made_at = 0
        self._headers: list[tuple[bytes, bytes]] = []

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        """Asked for when they are needed, not made again every second."""
        now = int(time.time())
        if now != self._made_at:
            self._headers = [(b"date", formatdate(now, usegmt=True).encode())]
            self._made_at = now
        return self._headers

    def abort_all(self) -> None:
        for connection in list(self.connections):
            connection.transport.abort()
        for task in list(self.tasks):
            task.cancel()


def _refusal(status: int, content: dict[str, Any]) -> bytes:
    body = json.dumps(content, separators=(",", ":")).encode()
    head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\nConnection: close\r\n\r\n" + body


def _limit_content(message: str) -> dict[str, Any]:
    """What an exception looks like on the wire, for clients that never got as far as the app."""
    error = {"message": message, "class_path": "swerex.exceptions.ServerLimitError", "traceback": "", "extra_info": {}}
    return {"swerexception": error}


def _parse_upgrade(head: bytes) -> dict[bytes, bytes] | None:
    """The headers, by lower-case name, of a head that asks for the frames protocol; None for any other head."""
    first, *lines = head.split(b"\r\n")
    words = first.split(b" ")
    if len(words) != 3 or words[2] != b"HTTP/1.1" or not words[1].partition(b"?")[0].endswith(b"/wire"):
        return None
    pairs = (line.partition(b":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    tokens = [token.strip() for token in headers.get(b"connection", b"").lower().split(b",")]
    return headers if headers.get(b"upgrade", b"").lower() == UPGRADE.encode() and b"upgrade" in tokens else None


def _feed(peer: asyncio.BaseProtocol, data: bytes) -> None:
    if isinstance(peer, asyncio.BufferedProtocol):
        while data:
            buffer = memoryview(peer.get_buffer(len(data)))
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            data = data[size:]
            peer.buffer_updated(size)
    elif isinstance(peer, asyncio.Protocol) and data:
        peer.data_received(data)


def door(base: type[Any], house: House) -> type[asyncio.Protocol]:
    """uvicorn's protocol `base`, with what this module adds."""

    class Door(base):  # type: ignore[misc]
        _first: bytearray | None
        """What came of a first head that may ask for an upgrade; None after that was decided."""

        def __init__(self, *args: Any, **kwargs: Any):
            super().__init__(*args, **kwargs)
            self._first = bytearray()
            self._head_bytes = 0
            self._head_timer: asyncio.TimerHandle | None = None
            self._in_message = False

        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            house.service.connections += 1
            too_many = house.service.connections - house.limits.connections
            if house.ending or too_many > _TOLD:
                transport.abort()
                return
            if too_many > 0:
                self.app = _too_many
            self._start_head()

        def connection_lost(self, exc: Exception | None) -> None:
            self._end_head()
            super().connection_lost(exc)
            house.service.connections -= 1

        def data_received(self, data: bytes) -> None:
            if self.transport.is_closing():
                return  # TLS still delivers what it has
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
            """Whether the first bytes are uvicorn's business. False while that is open, and when they are not."""
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
            if headers is None or house.peers is None:
                return True
            self._upgrade(house.peers, headers, bytes(first[end.end() :]))
            return False

        def _upgrade(self, peers: Peers, headers: dict[bytes, bytes], rest: bytes) -> None:
            refused: tuple[int, dict[str, Any]] | None = None
            if (reason := house.service.refusal(headers.get(b"x-api-key"))) is not None:
                refused = reason[0], {"detail": reason[1]}
            if house.service.rate.wait(self.client[0] if self.client else ""):
                refused = 429, {"detail": "Too many requests: try again later"}
            if refused is None and self.app is _too_many:
                refused = 511, _limit_content(_TOO_MANY)
            if refused is not None:
                logs.request_done("GET /wire", 0.0, str(refused[0]), _client_name(self.client), "", failed=True)
                self._refuse(*refused)
                return
            self._end_head()
            transport: asyncio.Transport = self.transport
            self.connections.discard(self)
            house.service.connections -= 1
            peer = peers()
            logs.connected(_client_name(self.client), "frames")
            boot = house.service.boot.encode()
            transport.write(b"".join([_SWITCHING, SERVER_HEADER.encode(), b": ", boot, b"\r\n\r\n"]))
            # Paused meanwhile, because a transport may choose the way in which it reads when it begins to read.
            transport.pause_reading()
            transport.set_protocol(peer)
            peer.connection_made(transport)
            transport.resume_reading()
            _feed(peer, rest)

        def _refuse(self, status: int, content: dict[str, Any]) -> None:
            self._end_head()
            self.transport.write(_refusal(status, content))
            self.transport.close()

        # A head's time and size

        def _start_head(self) -> None:
            self._head_bytes = 0
            self._head_timer = self.loop.call_later(house.limits.head_seconds, self._head_is_late)

        def _end_head(self) -> None:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None

        def _head_is_late(self) -> None:
            self._head_timer = None
            self.transport.abort()

        def _waits_for_head(self) -> bool:
            """Whether what comes next belongs to the head of a request, and no request is being answered."""
            if hasattr(self, "parser"):  # httptools
                return not self._in_message and (self.cycle is None or self.cycle.response_complete)
            import h11

            return bool(self.conn.their_state is h11.IDLE)

        def on_headers_complete(self) -> None:
            self._in_message = True
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._in_message = False
            super().on_message_complete()

        def _unsupported_upgrade_warning(self) -> None:
            """A wish for a protocol that there is not may be ignored."""

    return Door


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


class Front:
    """Stands before the app: refuses heads that are too long, answers /metrics, logs what was answered."""

    def __init__(self, app: App, house: House, page: Page | None):
        self._app = app
        self._house = house
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
        if (refused := self._house.service.refusal(headers.get(b"x-api-key"))) is not None:
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
