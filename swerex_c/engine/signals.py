"""Prompt handling of signals in a main thread that waits for a person's input.

The module also limits where ^C raises an exception.

Python's own handler only records a signal, and the interruption wakes the system call that the thread waits in. A
signal that arrives just before that call starts does not interrupt it, and would be handled after the next key. A
helper thread therefore receives each signal and interrupts the main thread repeatedly until it has left the call.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from types import FrameType

from swerex_c import _core

__all__ = ["Signals"]

_FIRST_NUDGE, _LAST_NUDGE = 0.005, 10.0
"""Seconds from a signal to the first interruption of the main thread, and the limit for the interval, which doubles
each time. A handler that lets the call continue needs no interruption; this limit ends them in that case."""


class Signals:
    """A context that handles signals at once, and limits where ^C raises.

    ^C raises KeyboardInterrupt only where it is allowed:

        try:
            signals.allow()
            ...
        finally:
            signals.allowed = False

    Outside the main thread, where Python handles no signals, the context changes nothing. It leaves SIGINT alone if the
    application has its own handler. Previous handlers are restored at the end.
    """

    def __init__(self) -> None:
        self.allowed = False
        """True if ^C may raise. Reset it without a call, so that no signal is handled between its `try` and that."""

        self.came = False
        """True if ^C arrived while it was not allowed, and KeyboardInterrupt is still to be raised."""

        self._thread = threading.get_ident()
        self._times = 0
        self._stopped = False
        self._others = -1
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Signals:
        if self._thread == threading.main_thread().ident:
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                self._undo.callback(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, self._interrupted))
            if signal.getsignal(signal.SIGURG) is signal.SIG_DFL:
                self._start_watching()
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def allow(self) -> None:
        """Let ^C raise KeyboardInterrupt from now on; raise it now if ^C came before."""
        self._times += 1
        self.allowed = True
        self.check()

    def check(self) -> None:
        """Raise KeyboardInterrupt if ^C came and has not raised it yet."""
        if self.came:
            self.came = False
            raise KeyboardInterrupt

    def _interrupted(self, _number: int, _frame: FrameType | None) -> None:
        # Python may call this twice before the first exception has left `input`; the second call has to raise again.
        if self.allowed:
            raise KeyboardInterrupt
        self.came = True

    def _start_watching(self) -> None:
        told, tell = os.pipe()
        self._undo.callback(os.close, told)
        self._undo.callback(os.close, tell)
        os.set_blocking(tell, False)
        thread = threading.Thread(target=self._watch, args=(told,), name="swerex-signals", daemon=True)
        thread.start()
        self._undo.callback(self._stop_watching, thread, tell)
        self._others = signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
        self._undo.callback(signal.set_wakeup_fd, self._others)

    def _stop_watching(self, thread: threading.Thread, tell: int) -> None:
        self._stopped = True
        os.write(tell, b"\0")
        thread.join()
        _core.interrupt_no_more()

    def _watch(self, told: int) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while not self._stopped:
            number = os.read(told, 1)
            times = self._times
            if self._others >= 0 and not self._stopped:  # forward to an event loop's wakeup descriptor
                with contextlib.suppress(OSError):
                    os.write(self._others, number)
            pause = _FIRST_NUDGE
            while self.allowed and times == self._times and pause < _LAST_NUDGE and not self._stopped:
                time.sleep(pause)
                pause *= 2
                _core.interrupt_thread(self._thread)
