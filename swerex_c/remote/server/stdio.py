"""Server of one client over two descriptors, without port and key.

It is for `ssh HOST swerex-remote --stdio`.
"""

from __future__ import annotations

import asyncio

from swerex_c.exceptions import ProtocolError
from swerex_c.remote.server.calls import Registry, ServerConnection
from swerex_c.remote.server.process import exit_after
from swerex_c.remote.server.service import Service
from swerex_c.remote.server.upgrade import switching, upgrade_fields
from swerex_c.remote.wire.connection import FdTransport
from swerex_c.remote.wire.protocol import CHANNEL_HEADER

__all__ = ["serve_stdio"]


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
            known = self.registry.open(fields[CHANNEL_HEADER], self)
            self.transport.write(switching(self.registry.service.instance_id, known))

    def lost(self, error: BaseException) -> None:
        super().lost(error)
        self._stop.set()


async def serve_stdio(
    service: Service, read_fd: int, write_fd: int, graceful: float = 5.0, *, stop: asyncio.Event
) -> None:
    """Serve one client over two descriptors until it disconnects or `stop` is set, then shut down gracefully.

    The function takes ownership of the descriptors and closes them. Nothing else may use them.

    Args:
        graceful: seconds from then on until the process exits, even if something hangs.
    """
    registry = Registry(service)
    FdTransport(asyncio.get_running_loop(), read_fd, write_fd, _OnlyConnection(registry, stop))
    try:
        await stop.wait()
        exit_after(graceful)
        await service.shutdown()
        while service.in_flight:
            await asyncio.sleep(0.005)
    finally:
        await registry.shutdown(0.5)
