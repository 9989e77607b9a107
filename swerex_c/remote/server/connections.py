"""Connections of a server: their limits, and the first head of each.

    Acceptor ── FirstHead ── upgrade request for frames ── 101 ── `calls.ServerConnection`
                    └─────── other head ── uvicorn's protocol ── the app

A connection waits until it has sent the key, either in an upgrade request or in a request that the app's `Gate` lets
pass. It has a time limit for that, and the oldest one is cut when too many wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections.abc import Callable
from email.message import Message
from typing import Any

from uvicorn.server import ServerState

from swerex_c.exceptions import ServerLimitError
from swerex_c.remote.server import logs
from swerex_c.remote.server.calls import Registry, ServerConnection
from swerex_c.remote.server.responses import failure
from swerex_c.remote.server.service import Service
from swerex_c.remote.server.upgrade import switching, upgrade_fields
from swerex_c.remote.wire.protocol import CHANNEL_HEADER, HEAD_BYTES

__all__ = ["Connections", "FirstHead"]

_TOO_LONG = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

_HEAD_END = b"\r\n\r\n"


class Connections:
    """The connections of one server. `service.connections` counts them, together with those of frames."""

    def __init__(self, service: Service, registry: Registry):
        self.service = service
        self.registry = registry
        self._limits = service.limits
        self._descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        """Maximum number of the process; sessions, commands and files need a third of them."""
        self.waiting: dict[FirstHead, float] = {}
        """Connections that have not sent the key, the oldest first, with the loop time at which each was accepted."""
        self.http = ServerState()
        """The connections that uvicorn's protocols have, and the tasks of their requests."""
        self.ending = False
        self.new_http: Callable[[dict[str, Any]], asyncio.Protocol]
        """Factory of uvicorn's protocol for one connection; its argument is the `state` of each request's scope."""

    @property
    def full(self) -> bool:
        """True if a connection that waits has to go before another one is accepted."""
        all_of_them = self.service.connections
        return len(self.waiting) >= self._limits.unauthenticated or all_of_them >= self._descriptors * 2 // 3

    def enter(self, connection: FirstHead) -> asyncio.TimerHandle:
        """Register an accepted connection; return the timer of its time to send the key."""
        loop = asyncio.get_running_loop()
        self.waiting[connection] = loop.time()
        self.service.connections += 1
        return loop.call_later(self._limits.head_seconds, connection.cut)

    def admit(self, connection: FirstHead) -> None:
        """Let a waiting connection stay.

        Raises:
            ServerLimitError: if the server has as many others as it allows.
        """
        if self.service.connections - len(self.waiting) >= min(self._limits.connections, self._descriptors // 2):
            raise ServerLimitError("The server has as many connections as it allows: try again later")
        del self.waiting[connection]

    def shutdown(self) -> None:
        """Close idle HTTP connections now, and the others after their next response."""
        self.ending = True
        for uvicorns in list(self.http.connections):
            uvicorns.shutdown()

    async def abort(self) -> None:
        """Abort all HTTP connections, then cancel requests that still run.

        The requests have 0.2 seconds to end by themselves.
        """
        for connection in list(self.waiting):
            connection.cut()
        for uvicorns in list(self.http.connections):
            uvicorns.transport.abort()
        if self.http.tasks:
            await asyncio.wait(self.http.tasks, timeout=0.2)
        for task in list(self.http.tasks):
            task.cancel()
        await asyncio.sleep(0)


class FirstHead(asyncio.Protocol):
    """Protocol of a connection that reads its first head, then passes everything on to uvicorn's protocol."""

    def __init__(self, connections: Connections, accepted: socket.socket):
        self.transport: Any = None
        self._connections = connections
        self._socket = accepted
        self._received = bytearray()
        self._http: Any = None
        self._timer = connections.enter(self)

    def admit(self) -> None:
        """Register that the connection has sent the key.

        Raises:
            ServerLimitError: if the server has as many such connections as it allows.
        """
        if self in self._connections.waiting:
            self._connections.admit(self)
            self._timer.cancel()

    def cut(self) -> None:
        """Abort the connection, even during its TLS handshake."""
        self._connections.waiting.pop(self, None)
        if self.transport is not None:
            self.transport.abort()
        else:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def leave(self) -> None:
        """Unregister the connection, which is lost or belongs to another protocol."""
        self._timer.cancel()
        self._connections.waiting.pop(self, None)
        self._connections.service.connections -= 1

    # Methods that the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.leave()
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
            self._decide(self._received.find(_HEAD_END, max(0, len(self._received) - len(data) - len(_HEAD_END) + 1)))

    # What the first head decides

    def _decide(self, end: int) -> None:
        received = bytes(self._received)
        if end > HEAD_BYTES or end < 0 and len(received) > HEAD_BYTES:
            self.transport.write(_TOO_LONG)
            self.transport.close()
        elif end < 0 and received[:1].isupper():
            return  # the head is incomplete
        elif end >= 0 and (fields := self._upgrade_with_key(received[:end])) is not None:
            self._upgrade(fields[CHANNEL_HEADER], received[end + len(_HEAD_END) :])
        else:  # uvicorn also answers what is no HTTP at all
            self._received.clear()
            self._http = self._connections.new_http({"connection": self})
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
        """Open a channel, and give the connection to the protocol of frames."""
        transport, registry = self.transport, self._connections.registry
        connection = ServerConnection(registry)
        try:
            self.admit()
            known = registry.open(channel, connection)
        except ServerLimitError as error:
            refused = failure(error, {"Connection": "close"})
            head = [b"HTTP/1.1 511 Limit", *(b": ".join(header) for header in refused.raw_headers)]
            transport.write(b"\r\n".join(head) + _HEAD_END + bytes(refused.body))
            transport.close()
            return
        self.leave()
        logs.connected(transport.get_extra_info("peername"), "frames")
        transport.write(switching(self._connections.service.instance_id, known))
        # A transport may choose how it reads from its protocol when reading begins, so pause during the change.
        transport.pause_reading()
        transport.set_protocol(connection)
        connection.connection_made(transport)
        transport.resume_reading()
        if rest:
            connection.data_received(rest)
