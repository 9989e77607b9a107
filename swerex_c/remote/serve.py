"""A server process, from its first byte to a graceful end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from swerex_c.exceptions import NotAvailableError, ResourceError
from swerex_c.remote import logs
from swerex_c.remote.door import HEAD_BYTES, App, Front, House, MakePeers, door
from swerex_c.remote.listen import BACKLOG, Listeners, Places, ServeOptions

if TYPE_CHECKING:
    from uvicorn.config import Config

    from swerex_c.remote.service import Service

__all__ = ["Listeners", "Places", "ServeOptions", "run", "run_stdio", "serve"]

KEEP_ALIVE_SECONDS = 75
"""How long an HTTP connection may wait for its next request."""


async def serve(
    service: Service,
    app: App,
    options: ServeOptions,
    make_peers: MakePeers | None = None,
    *,
    listeners: Listeners | None = None,
    ready: Callable[[Places], None] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve until `stop` is set, then end gracefully: all that the runtime runs is ended and answered first.

    Args:
        make_peers: makes, in this event loop, what speaks frames; without it there is only HTTP.
        listeners: the sockets, if they were made before; they are closed in the end.
        ready: called when requests are taken.

    Raises:
        ResourceError: if it cannot listen, see `Listeners`; or if the app does not start.
        NotAvailableError: if metrics are asked for and prometheus-client is not installed.
    """
    with contextlib.closing(listeners or Listeners(options)) as listeners:
        page = None
        if options.metrics:
            from swerex_c.remote import metrics

            page = metrics.page(service)
        house = House(service, options.limits, None if make_peers is None else make_peers(service))
        config = _config(Front(app, house, page), house)
        lifespan = config.lifespan_class(config)
        servers: list[asyncio.Server] = []
        try:
            await lifespan.startup()
            if lifespan.should_exit:
                raise ResourceError("The server's application did not start")
            servers = await _start(listeners, config, house, lifespan.state)
            if ready is not None:
                ready(listeners.places)
            await (stop or asyncio.Event()).wait()
        finally:
            for server in servers:
                server.close()
            listeners.close()
            await _end(house, options.graceful)
            if not lifespan.should_exit:
                await lifespan.shutdown()


def _config(app: App, house: House) -> Config:
    from uvicorn.config import Config
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

    config = Config(
        app=app, http=door(AutoHTTPProtocol, house), ws="none", interface="asgi3", log_config=None, access_log=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS, h11_max_incomplete_event_size=HEAD_BYTES,
    )  # fmt: skip
    config.load()
    return config


async def _start(listeners: Listeners, config: Config, house: House, app_state: dict[str, Any]) -> list[asyncio.Server]:
    loop = asyncio.get_running_loop()

    protocol: Any = config.http_protocol_class

    def connection() -> Any:
        return protocol(config=config, server_state=house, app_state=app_state, _loop=loop)

    tls: dict[str, Any] = {}
    if listeners.tls is not None:
        tls = {"ssl": listeners.tls, "ssl_handshake_timeout": house.limits.head_seconds, "ssl_shutdown_timeout": 2.0}
    servers = [await loop.create_server(connection, sock=one, backlog=BACKLOG, **tls) for one in listeners.tcp]
    if listeners.unix is not None:
        servers.append(await loop.create_unix_server(connection, sock=listeners.unix, backlog=BACKLOG))
    return servers


async def _end(house: House, graceful: float) -> None:
    """Answer what is open, close all connections, and be done within `graceful` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + graceful * 0.8
    house.ending = True
    for connection in list(house.connections):
        connection.shutdown()  # closes those that wait; the others close after their answer
    try:
        async with asyncio.timeout_at(deadline):
            await house.service.shutdown()
            while house.service.in_flight:
                await asyncio.sleep(0.005)
    except TimeoutError:
        logs.LOGGER.warning("Not everything has ended in time")
    except Exception:
        logs.LOGGER.exception("The runtime could not be closed")
    if house.peers is not None:
        await house.peers.shutdown(max(0.1, min(2.0, deadline - loop.time())))
    while house.connections and loop.time() < deadline:
        await asyncio.sleep(0.005)
    house.abort_all()
    await asyncio.sleep(0)


# The process


def run(
    service: Service,
    app: App,
    options: ServeOptions,
    make_peers: MakePeers | None = None,
    *,
    listeners: Listeners | None = None,
    ready: Callable[[Places], None] | None = None,
) -> None:
    """`serve` until a signal ends the process: the first one gracefully, within `options.graceful` seconds whatever
    hangs, the second one at once. Call it from the main thread, last of all."""

    async def main(stop: asyncio.Event) -> None:
        await serve(service, app, options, make_peers, listeners=listeners, ready=ready, stop=stop)

    _run(main, options.graceful, options.loop)


def run_stdio(service: Service, read_fd: int, write_fd: int, graceful: float = 5.0, loop: str = "auto") -> None:
    """Serve one client by frames over two descriptors, until it is gone or a signal ends the process; see `run`.

    Args:
        graceful: see `ServeOptions`, and for `loop`.
    """
    from swerex_c.remote.pipes import serve_stdio

    async def main(stop: asyncio.Event) -> None:
        served = asyncio.ensure_future(serve_stdio(service, read_fd, write_fd))
        stopped = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((served, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            _exit_after(graceful)
            stopped.cancel()
            await service.shutdown()
            while service.in_flight:
                await asyncio.sleep(0.005)
            if not served.done():
                await asyncio.sleep(0.05)  # so that what was answered is written
                served.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await served

    _run(main, graceful, loop)


def _run(main: Callable[[asyncio.Event], Coroutine[Any, Any, None]], graceful: float, loop: str) -> None:
    async def work() -> None:
        stop = asyncio.Event()
        _end_by_signals(stop, graceful)
        await main(stop)

    with asyncio.Runner(loop_factory=_loop_factory(loop)) as runner:
        runner.run(work())


def _loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """What makes a loop of a kind, see `ServeOptions`; None: asyncio does.

    Raises:
        NotAvailableError: if it is uvloop's, and uvloop is not installed.
    """
    if name == "asyncio":
        return None
    try:
        from uvloop import new_event_loop
    except ImportError:
        if name == "uvloop":
            raise NotAvailableError("--loop uvloop needs the package uvloop: pip install 'swerex-c[fast]'") from None
        return None
    return new_event_loop


def _end_by_signals(stop: asyncio.Event, graceful: float) -> None:
    loop = asyncio.get_running_loop()
    numbers = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as under nohup
        numbers.append(signal.SIGHUP)

    def end() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        _exit_after(graceful)
        stop.set()

    for number in numbers:
        loop.add_signal_handler(number, end)


def _exit_after(seconds: float) -> None:
    """End the process then, even if a thread hangs in a system call: Python would wait for it."""
    timer = threading.Timer(seconds, os._exit, (0,))
    timer.daemon = True
    timer.start()
