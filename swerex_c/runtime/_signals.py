"""Signals for a main thread that waits for a person, none of them late and no ^C in the wrong place.

Python's own handler only notes a signal. What wakes the call that the thread waits in is the interruption itself, and
one that comes in the instant before that call has passed by then: the signal is handled after the next key. So a thread
of its own is told of each signal, and interrupts the main thread again and again until it has left the call.
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
"""Seconds from a signal to the first nudge, and the longest time between two; each takes twice as long as the one
before. A handler that does not end the call needs none; this is how they end for it."""


class Signals:
    """A context in which signals are handled at once, and ^C raises KeyboardInterrupt only where it is allowed:

        try:
            signals.allow()
            ...
        finally:
            signals.allowed = False

    Outside of the main thread, where Python handles no signals, it changes nothing; ^C is left alone where the
    application handles it itself. Whatever was set before is put back at the end.
    """

    def __init__(self) -> None:
        self.allowed = False
        """Set to False by a statement without a call in it, between which and its `try` no signal is handled."""

        self.came = False
        """Whether there was a ^C where it was not allowed that has not raised KeyboardInterrupt yet."""

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
        """From now on ^C raises KeyboardInterrupt; one that came before does so right away."""
        self._times += 1
        self.allowed = True
        self.check()

    def check(self) -> None:
        """Raise KeyboardInterrupt if there was a ^C that has not raised it yet."""
        if self.came:
            self.came = False
            raise KeyboardInterrupt

    def _interrupted(self, _number: int, _frame: FrameType | None) -> None:
        # Python may call this twice before the first exception has left `input`: then it has to raise again.
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
            if self._others >= 0 and not self._stopped:  # an event loop's, which waits for them too
                with contextlib.suppress(OSError):
                    os.write(self._others, number)
            pause = _FIRST_NUDGE
            while self.allowed and times == self._times and pause < _LAST_NUDGE and not self._stopped:
                time.sleep(pause)
                pause *= 2
                _core.interrupt_thread(self._thread)
