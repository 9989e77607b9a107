"""Server in its event loop: startup, graceful shutdown and signal handling."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from uvicorn.config import Config

from swerex_c.exceptions import NotAvailableError, ResourceError
from swerex_c.remote.server import logs, output
from swerex_c.remote.server.accept import Acceptor
from swerex_c.remote.server.connections import Connections
from swerex_c.remote.server.listeners import ListenAddresses, Listeners, ServeOptions
from swerex_c.remote.wire.protocol import HEAD_BYTES

if TYPE_CHECKING:
    from swerex_c.remote.server.calls import Registry
    from swerex_c.remote.server.service import Service

__all__ = ["App", "Listeners", "ListenAddresses", "ServeOptions", "shutdown_on_signal", "run", "run_stdio", "serve"]

App = Callable[[Any, Any, Any], Awaitable[None]]
"""An ASGI application."""

KEEP_ALIVE_SECONDS = 75
"""Seconds that an idle HTTP connection stays open for the next request."""


async def serve(
    service: Service,
    app: App,
    options: ServeOptions,
    *,
    registry: Registry | None = None,
    listeners: Listeners | None = None,
    ready: Callable[[ListenAddresses], None] | None = None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve until `stop` is set, then shut down gracefully.

    The shutdown first ends all that the runtime runs, and sends responses.

    Args:
        registry: channels and connections of frame clients; None means a new one.
        listeners: sockets that were created before; they are closed at the end.
        ready: called when the server accepts requests.

    Raises:
        ResourceError: if the server cannot listen, see `Listeners`, or the app does not start.
    """
    from swerex_c.remote.server import calls

    with contextlib.closing(listeners or Listeners(options)) as listeners:
        connections = Connections(service, registry or calls.Registry(service), options.limits)
        config = Config(
            app, ws="none", interface="asgi3", log_config=None, access_log=False, proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS, h11_max_incomplete_event_size=HEAD_BYTES,
        )  # fmt: skip
        config.load()
        uvicorns: Any = config.http_protocol_class
        connections.new_http = partial(uvicorns, config, connections.http, _loop=asyncio.get_running_loop())
        lifespan = config.lifespan_class(config)
        acceptor: Acceptor | None = None
        try:
            await lifespan.startup()
            if lifespan.should_exit:
                raise ResourceError("The server's application did not start")
            tls = {} if listeners.tls is None else {"ssl": listeners.tls, "ssl_shutdown_timeout": 2.0}
            acceptor = Acceptor(listeners.all, connections, **tls)
            if ready is not None:
                ready(listeners.addresses)
            await (stop or asyncio.Event()).wait()
        finally:
            if acceptor is not None:
                acceptor.close()
            listeners.close()
            await _end(connections, options.graceful)
            if not lifespan.should_exit:
                await lifespan.shutdown()


async def _end(connections: Connections, graceful: float) -> None:
    """End the runtime, answer open requests, and close all connections, within `graceful` seconds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + graceful * 0.8
    service, http = connections.service, connections.http
    connections.shutdown()
    try:
        async with asyncio.timeout_at(deadline):
            await service.shutdown()
            while service.in_flight:
                await asyncio.sleep(0.005)
    except TimeoutError:
        logs.LOGGER.warning("Some requests did not end in time")
    except Exception:
        logs.LOGGER.exception("Cannot close the runtime")
    await connections.registry.shutdown(max(0.1, min(2.0, deadline - loop.time())))
    while http.connections and loop.time() < deadline:
        await asyncio.sleep(0.005)
    await connections.abort()


# The process


def run(
    service: Service,
    app: App,
    options: ServeOptions,
    *,
    listeners: Listeners | None = None,
    ready: Callable[[ListenAddresses], None] | None = None,
) -> None:
    """Run `serve` until a signal.

    The first signal ends the process gracefully, within `options.graceful` seconds even if something hangs; a second
    signal ends it at once. Call this function from the main thread, as the last call.
    """

    async def main(stop: asyncio.Event) -> None:
        await serve(service, app, options, listeners=listeners, ready=ready, stop=stop)

    _run(main, options.graceful, options.loop)


def run_stdio(service: Service, read_fd: int, write_fd: int, graceful: float = 5.0, loop: str = "auto") -> None:
    """Serve one client with frames over two descriptors; see `run`.

    It ends when the client disconnects or a signal comes.

    Args:
        graceful, loop: see `ServeOptions`.
    """
    from swerex_c.remote.server.stdio import serve_stdio

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
                await asyncio.sleep(0.05)  # let the responses be written
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
    """Return the factory for `ServeOptions.loop`; None for the default of asyncio.

    Raises:
        NotAvailableError: if the name is "uvloop", and uvloop is not installed.
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
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # it is ignored under nohup
        numbers.append(signal.SIGHUP)

    def end() -> None:
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)
        _exit_after(graceful)
        stop.set()

    for number in numbers:
        loop.add_signal_handler(number, end)


@contextlib.contextmanager
def shutdown_on_signal(service: Service, graceful: float = 5.0) -> Iterator[None]:
    """Shut the service down on a signal, before the ASGI server waits.

    Without this, the ASGI server waits for open requests before it tells the app. The signal handlers that the server
    has set are wrapped. The process ends within `graceful` seconds even if something hangs, and at once on a second
    signal. Outside of the main thread this context manager does nothing.
    """
    loop = asyncio.get_running_loop()
    handlers: dict[int, Any] = {}
    tasks: list[asyncio.Task[None]] = []

    def end(number: int, frame: FrameType | None) -> None:
        for wrapped in handlers:
            signal.signal(wrapped, signal.SIG_DFL)
        _exit_after(graceful)
        loop.call_soon_threadsafe(lambda: tasks.append(loop.create_task(service.shutdown())))
        handlers[number](number, frame)

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            if callable(handler := signal.getsignal(number)):
                handlers[number] = handler
                signal.signal(number, end)
    try:
        yield
    finally:
        for wrapped, handler in handlers.items():
            signal.signal(wrapped, handler)


def _exit_after(seconds: float) -> None:
    """Exit the process with status 1 after `seconds`, even if Python would wait for a hanging thread."""

    def leave() -> None:
        output.end(0.2)
        os._exit(1)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()
