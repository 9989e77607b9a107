"""Acceptor of connections, which bounds those that have not sent the key.

When too many wait, each new connection cuts the oldest whose time to send the key is over. Until there is such a
connection, the server accepts nothing, and new connections wait in the system's queue.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

from swerex_c.remote.server import logs
from swerex_c.remote.server.connections import Connections, FirstHead

__all__ = ["Acceptor"]

_AT_ONCE = 16
"""Maximum number of connections to accept in one turn of the event loop."""

_SHOW_SECONDS = 0.5
"""Seconds for a connection to send the key while others wait to be accepted."""

_PAUSE_SECONDS = 0.01
"""Seconds until the next attempt to accept connections when too many wait, or the system has no descriptor for one."""

_LOG_SECONDS = 60.0
"""Minimum number of seconds between two log lines about too many connections."""


class Acceptor:
    """An acceptor of connections from listening sockets."""

    def __init__(self, listeners: list[socket.socket], connections: Connections, **tls: Any):
        """Start accepting connections.

        Args:
            tls: arguments for `loop.connect_accepted_socket`; not used for unix sockets.
        """
        self._loop = asyncio.get_running_loop()
        self._listeners = listeners
        self._connections = connections
        self._tls = tls
        self._timer: asyncio.TimerHandle | None = None
        self._logged_at = -_LOG_SECONDS
        for listener in listeners:
            listener.setblocking(False)
        self._start()

    def _start(self) -> None:
        for listener in self._listeners:
            self._loop.add_reader(listener, self._accept, listener)

    def close(self) -> None:
        """Stop accepting connections."""
        for listener in self._listeners:
            self._loop.remove_reader(listener)
        if self._timer is not None:
            self._timer.cancel()

    def _pause(self, reason: str) -> None:
        self._log(reason)
        self.close()
        self._timer = self._loop.call_later(_PAUSE_SECONDS, self._start)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(1 if self._connections.full else _AT_ONCE):
            try:
                if not self._has_room():
                    return
                accepted, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._pause(f"the system cannot accept one ({error.strerror})")
                return
            accepted.setblocking(False)
            task = self._loop.create_task(self._adopt(FirstHead(self._connections, accepted), accepted))
            self._connections.http.tasks.add(task)
            task.add_done_callback(self._connections.http.tasks.discard)

    async def _adopt(self, connection: FirstHead, accepted: socket.socket) -> None:
        tls = {} if accepted.family == socket.AF_UNIX else self._tls
        try:
            with contextlib.suppress(Exception):  # errors of TLS or of a lost peer are not the server's
                await self._loop.connect_accepted_socket(lambda: connection, accepted, **tls)
        finally:
            if connection.transport is None:
                connection.leave()

    def _has_room(self) -> bool:
        """Cut the oldest waiting connection if the server is full; return False if accepting has to pause."""
        if not self._connections.full:
            return True
        reason = "new ones wait for those that have not sent the key, which are cut"
        oldest, since = next(iter(self._connections.waiting.items()), (None, 0.0))
        if oldest is None or self._loop.time() - since < _SHOW_SECONDS:
            self._pause(reason)
            return False
        self._log(reason)
        oldest.cut()
        return True

    def _log(self, reason: str) -> None:
        if self._loop.time() - self._logged_at >= _LOG_SECONDS:
            self._logged_at = self._loop.time()
            count, waiting = self._connections.service.connections, len(self._connections.waiting)
            logs.LOGGER.warning("Too many connections (%d, %d of them without the key): %s", count, waiting, reason)
