"""Server of one client over two descriptors, without port and key.

It is for `ssh HOST swerex-remote --stdio`. The descriptors may be of any kind, and asyncio has transports for some
kinds only: threads pass the bytes between them and a socket of the event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket

from swerex_c.exceptions import ProtocolError
from swerex_c.files.writing import write_all
from swerex_c.remote.server.calls import Registry, ServerConnection, upgrade_fields
from swerex_c.remote.server.process import exit_after
from swerex_c.remote.server.service import Service
from swerex_c.remote.wire.protocol import CHANNEL_HEADER
from swerex_c.utils.threads import in_thread, start_thread

__all__ = ["serve_stdio"]

_PIECE = 256 << 10
"""Maximum bytes to pass on at once."""


class _OnlyConnection(ServerConnection):
    """The only connection of a server, which stops when it is lost."""

    def __init__(self, registry: Registry, stop: asyncio.Event):
        super().__init__(registry, b"GET ")
        self._stop = stop

    def head_received(self, head: bytes, rest: bytes) -> None:
        fields = upgrade_fields(head)
        if fields is None:
            self.fail(ProtocolError("The request is not one for frames"))
        else:
            self.transport.write(self.registry.open(fields[CHANNEL_HEADER], self))

    def lost(self, error: BaseException) -> None:
        super().lost(error)
        self.registry.cancel_detached()  # the client cannot connect again
        self._stop.set()


async def serve_stdio(
    service: Service, read_fd: int, write_fd: int, graceful: float = 5.0, *, stop: asyncio.Event
) -> None:
    """Serve one client over two descriptors until it disconnects or `stop` is set, then shut down gracefully.

    The function takes ownership of the descriptors. Nothing else may use them.

    Args:
        graceful: seconds from then on until the process exits, even if something hangs.
    """
    registry = Registry(service)
    ours, theirs = socket.socketpair()
    for fd in (read_fd, write_fd):
        os.set_blocking(fd, True)
    for_reader = theirs.dup()  # each thread closes its own
    start_thread(lambda: _read(read_fd, for_reader), "swerex-stdin")
    writer = start_thread(lambda: _write(theirs, write_fd), "swerex-stdout")
    await asyncio.get_running_loop().create_unix_connection(lambda: _OnlyConnection(registry, stop), sock=ours)
    try:
        await stop.wait()
        exit_after(graceful)
        await service.shutdown(graceful * 0.7)
    finally:
        await registry.shutdown(graceful * 0.1)
        await in_thread(writer.join, graceful * 0.1)


def _read(fd: int, to: socket.socket) -> None:
    """Forward the data of a descriptor, and its end, to a socket."""
    with to:
        with contextlib.suppress(OSError):  # of a lost terminal or connection, which is an end as well
            while data := os.read(fd, _PIECE):
                to.sendall(data)
        with contextlib.suppress(OSError):
            to.shutdown(socket.SHUT_WR)


def _write(source: socket.socket, fd: int) -> None:
    """Write the data of a socket to a descriptor, and close both."""
    with source:
        with contextlib.suppress(OSError):  # the client is gone
            while data := source.recv(_PIECE):
                write_all(fd, [data])
        os.close(fd)
        with contextlib.suppress(OSError):
            source.shutdown(socket.SHUT_RDWR)
