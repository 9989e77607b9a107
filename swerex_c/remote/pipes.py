"""A server on two descriptors, for `ssh HOST swerex-remote --stdio`: one client, no port, no key."""

from __future__ import annotations

import asyncio

from swerex_c.remote.channel import Registry, ServerLink
from swerex_c.remote.link import FdTransport
from swerex_c.remote.service import Service

__all__ = ["serve_stdio"]


class _OnlyLink(ServerLink):
    """Tells when it is gone: then there is nobody left to serve."""

    def __init__(self, registry: Registry):
        super().__init__(registry)
        self.gone = asyncio.Event()

    def lost(self, error: BaseException) -> None:
        super().lost(error)
        self.gone.set()


async def serve_stdio(service: Service, read_fd: int = 0, write_fd: int = 1) -> None:
    """Serve the client at these descriptors, which are then owned and closed here, until it is gone.

    Nothing else may read or write there. What the client started is left for `service.shutdown` to end.
    """
    registry = Registry(service)
    link = _OnlyLink(registry)
    FdTransport(asyncio.get_running_loop(), read_fd, write_fd, link)
    try:
        await link.gone.wait()
    finally:
        await registry.shutdown(0.5)
