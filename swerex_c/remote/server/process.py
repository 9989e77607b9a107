"""Process of a server: its event loop, its signals, a limit for the time that its end takes, and PID 1."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from types import FrameType
from typing import Any, NoReturn

from swerex_c.remote.server import logs
from swerex_c.utils.threads import start_thread

__all__ = ["exit_after", "first_signal", "leave_first_process", "run"]

_FORWARDED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}

_FROM_KERNEL = 0x80
"""`si_code` of a signal from a terminal, which goes to all processes there."""


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
        with first_signal(numbers, stop.set, graceful):
            await main(stop=stop)

    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        runner.run(work())


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:  # many sessions at once take half the time on it
        from uvloop import new_event_loop
    except ImportError:
        return None
    return new_event_loop


@contextlib.contextmanager
def first_signal(
    numbers: Sequence[int], begin: Callable[[], object], graceful: float, *, chain: bool = False
) -> Iterator[None]:
    """At the first of some signals, call `begin` in the event loop; a second signal ends the process at once.

    The process ends within `graceful` seconds of the first signal, even if something hangs.

    Args:
        chain: whether to call the previous handler of the signal after that.
    """
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in numbers}

    def end(number: int, frame: FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)
        exit_after(graceful)
        loop.call_soon_threadsafe(begin)
        if chain and callable(handler := before[number]):
            handler(number, frame)

    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) is end:
                signal.signal(number, handler)


def exit_after(seconds: float) -> None:
    """Exit the process with status 1 after `seconds`, even if Python would wait for a hanging thread."""

    def leave() -> None:
        time.sleep(seconds)
        if (handler := logs.handler()) is not None:
            handler.flush(0.2)
        os._exit(1)

    start_thread(leave, "swerex-exit")


# The first process of a container


def leave_first_process() -> None:
    """Return in a child process if this is the first process of a container (PID 1), which then never returns.

    A process whose parent has ended becomes a child of the first process of its PID namespace, and later stays a
    zombie until that collects it. A server collects the processes that it started itself, and the first process all
    others. Call this before threads are started.
    """
    if os.getpid() != 1:
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, *_FORWARDED})
    server = os.fork()
    if server:
        _collect(server)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _collect(server: int) -> NoReturn:
    """Collect children and forward signals until the server ends, then exit with its code."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):  # their other ends would otherwise not see that the server closes them
        os.dup2(nothing, fd)
    while True:
        told = signal.sigwaitinfo({signal.SIGCHLD, *_FORWARDED})
        if told.si_signo != signal.SIGCHLD:
            if told.si_code != _FROM_KERNEL:
                os.kill(server, told.si_signo)
            continue
        while True:
            child, status = os.waitpid(-1, os.WNOHANG)
            if child == server:
                code = os.waitstatus_to_exitcode(status)
                os._exit(code if code >= 0 else 128 - code)
            if not child:
                break
