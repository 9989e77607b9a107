"""The signal that tells of the end of child processes, in programs of this package."""

from __future__ import annotations

import contextlib
import signal

__all__ = ["restore_child_signal"]


def restore_child_signal() -> None:
    """Set SIGCHLD to its default, in programs: the library does not change its host's signals.

    If the parent ignored the signal, a program inherits that, and the kernel discards its child processes' exit codes.
    """
    with contextlib.suppress(ValueError):  # the main function was called in another thread, so the process is a host's
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
