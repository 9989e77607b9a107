"""Acceptor of connections, with limits and a reserve of file descriptors.

When the server is full, each new connection closes the oldest one whose time to send the key is over. Until there is
such a connection, the server accepts nothing, and new connections wait in the system's queue. If all connections are
authenticated, a new connection is accepted and told that the server is full.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import Callable
from typing import Any

from swerex_c.remote.server import logs
from swerex_c.remote.server.connections import ServerState

__all__ = ["Acceptor"]

_AT_ONCE = 16
"""Maximum number of connections to accept in one turn of the event loop."""

_SHOW_SECONDS = 0.5
"""Seconds for a connection to send the key while others wait to be accepted."""

_RESERVE = 64
"""Descriptors reserved for sessions, commands and files; at most a quarter of the process's limit."""

_RETRY_SECONDS = 0.1
"""Seconds until the next attempt if the system has no descriptor or memory for a connection."""

_SAY_SECONDS = 60.0
"""Minimum number of seconds between two log lines about too many connections."""


class Acceptor:
    """An acceptor of connections from listening sockets."""

    def __init__(self, listeners: list[socket.socket], make: Callable[[], Any], server_state: ServerState, **tls: Any):
        """Start accepting connections.

        Args:
            make: factory of the protocol of one connection, see `upgrade_handler`.
            tls: arguments for `loop.connect_accepted_socket`; not used for unix sockets.
        """
        self._loop = asyncio.get_running_loop()
        self._listeners = listeners
        self._make = make
        self._server_state = server_state
        self._tls = tls
        self._timer: asyncio.TimerHandle | None = None
        """Timer that resumes accepting; None unless accepting is paused."""
        self._said = -_SAY_SECONDS
        for listener in listeners:
            listener.setblocking(False)
            self._loop.add_reader(listener, self._accept, listener)
        server_state.when_room = self._resume

    def close(self) -> None:
        """Stop accepting connections."""
        self._server_state.when_room = lambda: None
        if self._timer is not None:
            self._timer.cancel()
        for listener in self._listeners:
            self._loop.remove_reader(listener)

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(_AT_ONCE):
            full = self._full()
            told = full and not self._server_state.unauthenticated  # all connections are authenticated
            if full and not told and not self._make_room():
                return
            try:
                accepted, _ = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                self._say(f"cannot accept connections ({error.strerror})")
                self._pause(_RETRY_SECONDS)
                return
            accepted.setblocking(False)
            protocol = self._make()
            self._server_state.enter(protocol, accepted, told)
            task = self._loop.create_task(self._adopt(protocol, accepted))
            self._server_state.tasks.add(task)
            task.add_done_callback(self._server_state.tasks.discard)

    async def _adopt(self, protocol: Any, accepted: socket.socket) -> None:
        tls = {} if accepted.family == socket.AF_UNIX else self._tls
        try:
            with contextlib.suppress(Exception):  # errors of TLS or of a lost peer are not the server's
                await self._loop.connect_accepted_socket(lambda: protocol, accepted, **tls)
        finally:
            if protocol.transport is None:
                self._server_state.leave(protocol)

    def _full(self) -> bool:
        server_state, limits = self._server_state, self._server_state.limits
        return (
            len(server_state.unauthenticated) >= limits.unauthenticated
            or server_state.service.connections >= limits.connections
            or self._scarce()
        )

    def _scarce(self) -> bool:
        """Check whether the lowest free descriptor belongs to the reserve."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if most == resource.RLIM_INFINITY:
            return False
        try:
            lowest = os.dup(self._listeners[0].fileno())
        except OSError:
            return True
        os.close(lowest)
        return lowest >= most - min(_RESERVE, most // 4)

    def _make_room(self) -> bool:
        """Abort the oldest unauthenticated connection; return False if accepting has to wait."""
        unauthenticated = self._server_state.unauthenticated
        self._say("new ones wait for those that have not shown the key, which are cut")
        oldest, since = next(iter(unauthenticated.items()))
        wait = since + _SHOW_SECONDS - self._loop.time()
        if wait > 0:
            self._pause(wait)
            return False
        self._server_state.cut(oldest)
        return not self._scarce()  # the descriptor is free only after the transport has closed it

    def _say(self, what: str) -> None:
        if self._loop.time() - self._said >= _SAY_SECONDS:
            self._said = self._loop.time()
            server_state = self._server_state
            count, unauthenticated = server_state.service.connections, len(server_state.unauthenticated)
            msg = "Too many connections (%d, %d of them without the key): %s"
            logs.LOGGER.warning(msg, count, unauthenticated, what)

    def _pause(self, seconds: float) -> None:
        if self._timer is None:
            for listener in self._listeners:
                self._loop.remove_reader(listener)
            self._timer = self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            for listener in self._listeners:
                self._loop.add_reader(listener, self._accept, listener)
