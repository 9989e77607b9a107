"""Process of a server: its event loop, its signals, and a limit for the time that its end takes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from types import FrameType
from typing import Any

from swerex_c.remote.server import logs

__all__ = ["exit_after", "first_signal", "run"]


def run(main: Callable[..., Coroutine[Any, Any, None]], graceful: float) -> None:
    """Run `main` until it ends or a signal comes; see `first_signal`. Call this from the main thread, as the last call.

    Args:
        main: called with the event `stop`; it serves until that is set, then shuts down.
        graceful: maximum number of seconds from the signal to the end.
    """

    async def work() -> None:
        stop = asyncio.Event()
        numbers = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # it is ignored under nohup
            numbers.append(signal.SIGHUP)
        with first_signal(dict.fromkeys(numbers), stop.set, graceful):
            await main(stop=stop)

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(work())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the maker of uvloop's event loop, if that is installed: many sessions at once take half the time on it."""
    try:
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop


@contextlib.contextmanager
def first_signal(
    then: Mapping[signal.Signals, Callable[[int, FrameType | None], Any] | None],
    begin: Callable[[], object],
    graceful: float,
) -> Iterator[None]:
    """At the first of some signals, call `begin` in the event loop; a second signal ends the process at once.

    The process ends within `graceful` seconds of the first signal, even if something hangs.

    Args:
        then: the signals, and what to call in the signal handler after that, if anything.
    """
    loop = asyncio.get_running_loop()

    def end(number: int, frame: FrameType | None) -> None:
        for each in then:
            signal.signal(each, signal.SIG_DFL)
        exit_after(graceful)
        loop.call_soon_threadsafe(begin)
        if (handler := then[signal.Signals(number)]) is not None:
            handler(number, frame)

    before = {number: signal.signal(number, end) for number in then}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is end:
                signal.signal(number, handler)


def exit_after(seconds: float) -> None:
    """Exit the process with status 1 after `seconds`, even if Python would wait for a hanging thread."""

    def leave() -> None:
        if (handler := logs.handler()) is not None:
            handler.flush(0.2)
        os._exit(1)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()
