"""Server in its event loop: startup and graceful shutdown."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from uvicorn.config import Config

from swerex_c.exceptions import ResourceError
from swerex_c.remote.server import logs
from swerex_c.remote.server.calls import Registry
from swerex_c.remote.server.connections import Connections
from swerex_c.remote.server.listeners import Listeners
from swerex_c.remote.server.service import Service
from swerex_c.remote.wire.protocol import HEAD_BYTES

__all__ = ["serve"]

KEEP_ALIVE_SECONDS = 75
"""Seconds that an idle HTTP connection stays open for the next request."""


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
    connections = Connections(service, registry or Registry(service), config, listeners)
    lifespan = config.lifespan_class(config)
    try:
        await lifespan.startup()
        if lifespan.should_exit:
            raise ResourceError("The server's application did not start")
        connections.start()
        ready()
        await (stop or asyncio.Event()).wait()
    finally:
        await connections.stop()
        listeners.close()
        await _end(connections, graceful)
        if not lifespan.should_exit:
            await lifespan.shutdown()


async def _end(connections: Connections, graceful: float) -> None:
    """End the runtime, answer open requests, and close all connections, within `graceful` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + graceful * 0.8
    service, http = connections.service, connections.http
    connections.shutdown()
    connections.registry.cancel_detached()
    try:
        async with asyncio.timeout_at(deadline):
            await service.shutdown()
    except TimeoutError:
        logs.LOGGER.warning("Some requests did not end in time")
    except Exception:
        logs.LOGGER.exception("Cannot close the runtime")
    await connections.registry.shutdown(max(0.1, min(2.0, deadline - loop.time())))
    while http.connections and loop.time() < deadline:
        await asyncio.sleep(0.005)
    await connections.abort()
