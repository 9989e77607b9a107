"""Port forwarding to an environment's server through calls of its actor.

It works like `kubectl port-forward`. It reaches nodes that accept no connection from the driver, and needs only Ray's
own ports.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import TYPE_CHECKING

from swerex_c.utils import background

if TYPE_CHECKING:
    from swerex_c.providers.ray.link import ActorConnection

__all__ = ["PIECE", "PortForward"]

PIECE = 1 << 20
"""Maximum bytes of one call."""

_PAUSE_SECONDS = 1.0
"""Seconds before another attempt to accept connections."""


class PortForward:
    """A port of this machine that is forwarded to the environment's server."""

    def __init__(self, link: ActorConnection):
        self._link = link
        listening = socket.create_server(("127.0.0.1", 0))
        listening.setblocking(False)
        self.port: int = listening.getsockname()[1]
        self._serving = background.spawn(self._serve(listening))

    def close(self) -> None:
        """Close the port and its connections. Thread-safe."""
        self._serving.cancel()

    async def _serve(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listening:
            async with asyncio.TaskGroup() as connections:
                while True:
                    try:
                        client, _ = await loop.sock_accept(listening)
                    except OSError:  # for example, because no descriptor is free
                        await asyncio.sleep(_PAUSE_SECONDS)
                    else:
                        connections.create_task(self._forward(client))

    async def _forward(self, client: socket.socket) -> None:
        """Forward one connection until either end closes it or the actor is lost."""
        with client, contextlib.suppress(Exception):
            client.setblocking(False)
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            number: int = await self._link.ask("connect")
            directions = [
                asyncio.ensure_future(self._send(client, number)),
                asyncio.ensure_future(self._receive(client, number)),
            ]
            try:
                await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for direction in directions:
                    direction.cancel()
                self._link.send("disconnect", number)
                await asyncio.gather(*directions, return_exceptions=True)

    async def _send(self, client: socket.socket, number: int) -> None:
        while data := await asyncio.get_running_loop().sock_recv(client, PIECE):
            await self._link.ask("send", number, data)

    async def _receive(self, client: socket.socket, number: int) -> None:
        while data := await self._link.ask("receive", number):
            await asyncio.get_running_loop().sock_sendall(client, data)
