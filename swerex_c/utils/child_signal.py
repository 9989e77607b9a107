"""The signal that tells of the end of child processes, in programs of this package."""

from __future__ import annotations

import contextlib
import signal

__all__ = ["restore_child_signal"]


def restore_child_signal() -> None:
    """Set SIGCHLD to its default.

    A program inherits from its parent that the signal is ignored, and then the kernel discards the exit codes of its
    child processes. Only for programs, which own their process: the library does not change its host's signals.
    """
    with contextlib.suppress(ValueError):  # the main function was called in another thread, so the process is a host's
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
