"""Server in its event loop: startup, connections with their limits, and graceful shutdown.

    serve ── Connections ── FirstHead ── upgrade request for frames ── 101 ── `calls.ServerConnection`
                                └─────── other head ── uvicorn's protocol ── the app

A connection waits until it has sent the key, either in an upgrade request or in a request that the app's `Gate` lets
pass. It has a time limit for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
import ssl
from collections.abc import Awaitable, Callable
from email.message import Message
from typing import Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from swerex_c.exceptions import ResourceError, ServerLimitError
from swerex_c.remote.server import logs
from swerex_c.remote.server.calls import Registry, ServerConnection, upgrade_fields
from swerex_c.remote.server.gate import failure
from swerex_c.remote.server.listeners import Listeners
from swerex_c.remote.server.service import Service
from swerex_c.remote.wire.protocol import CHANNEL_HEADER, HEAD_BYTES
from swerex_c.utils.wait import end_tasks

__all__ = ["serve"]

KEEP_ALIVE_SECONDS = 75
"""Seconds that an idle HTTP connection stays open for the next request."""

_KEY_SECONDS = 0.5
"""Seconds that a connection has to send the key while others wait to be accepted."""

_PAUSE_SECONDS = 0.01
"""Seconds until the next attempt to accept a connection, after the system or a limit did not permit one."""

_LOG_SECONDS = 60.0
"""Minimum number of seconds between two log lines about too many connections."""

_TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

_HEAD_END = b"\r\n\r\n"


async def serve(
    service: Service,
    app: Callable[[Any, Any, Any], Awaitable[None]],
    listeners: Listeners,
    *,
    graceful: float = 5.0,
    registry: Registry | None = None,
    ready: Callable[[], object] = lambda: None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve an ASGI application, and frames, until `stop` is set, then shut down gracefully.

    The shutdown first ends all that the runtime runs, and sends responses.

    Args:
        listeners: closed at the beginning of the shutdown.
        graceful: maximum number of seconds for the shutdown, whatever clients do.
        registry: channels and connections of frame clients; None means a new one.
        ready: called when the server accepts requests.

    Raises:
        ResourceError: if the app does not start.
    """
    config = Config(
        app, ws="none", interface="asgi3", log_config=None, access_log=False, proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS, h11_max_incomplete_event_size=HEAD_BYTES,
    )  # fmt: skip
    config.load()
    connections = Connections(service, registry or Registry(service), config)
    accepting: list[asyncio.Task[None]] = []
    lifespan = config.lifespan_class(config)
    try:
        await lifespan.startup()
        if lifespan.should_exit:
            raise ResourceError("The server's application did not start")
        for listener in listeners.all:
            tls = listeners.tls if listener.family != socket.AF_UNIX else None
            accepting.append(asyncio.create_task(connections.accept(listener, tls)))
        ready()
        await (stop or asyncio.Event()).wait()
    finally:
        await end_tasks(*accepting)
        listeners.close()
        await connections.end(graceful)
        if not lifespan.should_exit:
            await lifespan.shutdown()


class Connections:
    """The connections of one server. `service.connections` counts them, together with those of frames.

    If too many connections have not sent the key, each new one makes the server abort the oldest of them, once that is
    `_KEY_SECONDS` old. Until then, the server accepts nothing more: connections wait in the system's queue.

    Args:
        config: uvicorn's, which is loaded.
    """

    def __init__(self, service: Service, registry: Registry, config: Config):
        self.service = service
        self.registry = registry
        self.config = config
        self.loop = asyncio.get_running_loop()
        self._logged_at = -_LOG_SECONDS
        self._descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        """Maximum number of the process; sessions, commands and files need a third of them."""
        self.most = min(service.limits.connections, self._descriptors // 2)
        """Maximum number of connections with the key."""
        self.waiting: dict[FirstHead, float] = {}
        """Connections without the key, the oldest first, and when each was accepted."""
        self.http = ServerState()
        """The connections that uvicorn's protocols have, and the tasks of their requests."""
        self.ending = False

    async def accept(self, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Accept connections, one in each turn of the event loop."""
        listener.setblocking(False)
        while True:
            try:
                accepted, _ = await self.loop.sock_accept(listener)
            except ConnectionAbortedError:
                continue
            except OSError as error:
                self._log(f"the system cannot accept one ({error.strerror})")
                await asyncio.sleep(_PAUSE_SECONDS)
                continue
            task = self.loop.create_task(self._adopt(FirstHead(self, accepted), accepted, tls))
            self.http.tasks.add(task)
            task.add_done_callback(self.http.tasks.discard)
            await asyncio.sleep(0)
            while not self._make_room():
                await asyncio.sleep(_PAUSE_SECONDS)

    async def _adopt(self, connection: FirstHead, accepted: socket.socket, tls: ssl.SSLContext | None) -> None:
        options: dict[str, Any] = {"ssl": tls, "ssl_shutdown_timeout": 2.0} if tls else {}
        try:
            with contextlib.suppress(Exception):  # errors of TLS or of a lost peer are not the server's
                await self.loop.connect_accepted_socket(lambda: connection, accepted, **options)
        finally:
            if connection.transport is None:
                connection.unregister()

    def _make_room(self) -> bool:
        """Abort the oldest connection without the key if there are too many; return False if none may be accepted."""
        service = self.service
        if len(self.waiting) > service.limits.unauthenticated or service.connections >= self._descriptors * 2 // 3:
            self._log("the oldest of these are closed for each new one")
            oldest, since = next(iter(self.waiting.items()), (None, 0.0))
            if oldest is None or self.loop.time() - since < _KEY_SECONDS:
                return False
            oldest.abort()
        return True

    def _log(self, reason: str) -> None:
        if self.loop.time() - self._logged_at >= _LOG_SECONDS:
            self._logged_at = self.loop.time()
            count, waiting = self.service.connections, len(self.waiting)
            logs.LOGGER.warning("Too many connections (%d, %d of them without the key): %s", count, waiting, reason)

    async def end(self, graceful: float) -> None:
        """End the runtime, answer open requests, and close all connections, within `graceful` seconds."""
        deadline = self.loop.time() + graceful * 0.8
        http = self.http
        self.ending = True
        for uvicorns in list(http.connections):
            uvicorns.shutdown()  # now if it is idle, otherwise after its next response
        self.registry.cancel_detached()
        await self.service.shutdown(graceful * 0.8)
        await self.registry.shutdown(max(0.1, min(2.0, deadline - self.loop.time())))
        while http.connections and self.loop.time() < deadline:
            await asyncio.sleep(0.005)
        for connection in list(self.waiting):
            connection.abort()
        for uvicorns in list(http.connections):
            uvicorns.transport.abort()
        if http.tasks:  # of requests, which notice that
            await asyncio.wait(http.tasks, timeout=0.2)
        for task in list(http.tasks):
            task.cancel()
        await asyncio.sleep(0)


class FirstHead(asyncio.Protocol):
    """Protocol of a connection that reads its first head, then passes everything on to uvicorn's protocol."""

    def __init__(self, connections: Connections, accepted: socket.socket):
        self.transport: Any = None
        self._connections = connections
        self._socket = accepted
        self._received = b""
        self._http: Any = None
        connections.waiting[self] = connections.loop.time()
        connections.service.connections += 1
        self._timer = connections.loop.call_later(connections.service.limits.head_seconds, self.abort)

    def admit(self) -> None:
        """Register that the connection has sent the key.

        Raises:
            ServerLimitError: if the server has as many such connections as it allows.
        """
        waiting = self._connections.waiting
        if self in waiting:
            if self._connections.service.connections - len(waiting) >= self._connections.most:
                raise ServerLimitError("The server has as many connections as it allows: try again later")
            del waiting[self]
            self._timer.cancel()

    def abort(self) -> None:
        """Abort the connection, even during its TLS handshake."""
        self._connections.waiting.pop(self, None)
        if self.transport is not None:
            self.transport.abort()
        else:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def unregister(self) -> None:
        """Remove a connection that is lost, or has another protocol."""
        self._timer.cancel()
        self._connections.waiting.pop(self, None)
        self._connections.service.connections -= 1

    # Methods that the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.unregister()
        if self._http is not None:
            self._http.connection_lost(exc)

    def pause_writing(self) -> None:
        if self._http is not None:
            self._http.pause_writing()

    def resume_writing(self) -> None:
        if self._http is not None:
            self._http.resume_writing()

    def data_received(self, data: bytes) -> None:
        if self._http is not None:
            self._http.data_received(data)
        elif not self.transport.is_closing():  # TLS delivers data after the end
            self._received += data
            self._decide(*self._received.partition(_HEAD_END))

    # Protocol of the connection, by its first head

    def _decide(self, head: bytes, end: bytes, rest: bytes) -> None:
        if len(head) > HEAD_BYTES:
            self.transport.write(_TOO_LONG)
            self.transport.close()
        elif not end and head[:1].isupper():
            return  # the head is incomplete
        elif end and (fields := self._upgrade_with_key(head)) is not None:
            self._upgrade(fields[CHANNEL_HEADER], rest)
        else:  # uvicorn answers data that is not HTTP, too
            received, self._received = self._received, b""
            server, state = self._connections, {"admit": self.admit}
            protocol: Any = server.config.http_protocol_class
            self._http = protocol(server.config, server.http, state, _loop=server.loop)
            self._http.connection_made(self.transport)
            self._http.data_received(received)
            if self._connections.ending:
                self._http.shutdown()

    def _upgrade_with_key(self, head: bytes) -> Message | None:
        """Return the headers if the head asks for frames and has the key; the app answers all others."""
        fields = upgrade_fields(head)
        keys = [] if fields is None else fields.get_all("X-API-Key", [])
        if len(keys) != 1 or self._connections.service.refusal(keys[0].strip().encode("latin-1")) is not None:
            return None
        return fields

    def _upgrade(self, channel: str, rest: bytes) -> None:
        transport, registry = self.transport, self._connections.registry
        connection = ServerConnection(registry)
        try:
            self.admit()
            response = registry.open(channel, connection)
        except ServerLimitError as error:
            refused = failure(error, {"Connection": "close"})
            head = [b"HTTP/1.1 511 Limit", *(b": ".join(header) for header in refused.raw_headers)]
            transport.write(b"\r\n".join(head) + _HEAD_END + bytes(refused.body))
            transport.close()
            return
        self.unregister()
        transport.write(response)
        transport.set_protocol(connection)
        connection.connection_made(transport)
        extra = {"client": connection.client, "wire": "frames"}
        logs.LOGGER.info("%s connected (frames)", connection.client, extra=extra)
        connection.data_received(rest)
