"""Show the progress of a transfer on the terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

__all__ = ["Progress", "shown"]

Progress = Callable[[int, int | None], None]
"""Function to call with the number of bytes transferred so far and the total, or None if that is unknown."""

_AFTER = 1.0
"""Seconds of a transfer before its progress is shown."""


@contextlib.contextmanager
def shown(what: str) -> Iterator[Progress | None]:
    """Yield a function that shows the progress of a transfer on standard error, or None if that is no terminal.

    The function may be called from any thread, but by one thread at a time.

    Args:
        what: a short description, such as "Uploading data".
    """
    if sys.stderr is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = Bar(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task(what, total=None)
    begin = time.monotonic()
    started = False

    def progress(done: int, size: int | None) -> None:
        nonlocal started
        if not started and time.monotonic() - begin > _AFTER:
            started = True
            with contextlib.suppress(Exception):  # another display uses the terminal
                bar.start()
        if started:
            bar.update(task, completed=done, total=size)

    try:
        yield progress
    finally:
        if started:
            bar.stop()
