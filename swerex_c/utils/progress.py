"""How far a transfer is, for whoever looks at the terminal."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

__all__ = ["Progress", "adding", "shown"]

Progress = Callable[[int, int | None], None]
"""Called with the bytes that were transferred and, if it is known, how many there will be."""

_AFTER = 1.0
"""Seconds that a transfer takes before it shows how far it is."""


def adding(progress: Progress | None) -> Callable[[int], None] | None:
    """What is called with the size of each piece that was transferred, where nobody knows how many there will be."""
    if progress is None:
        return None
    done = 0

    def add(size: int) -> None:
        nonlocal done
        done += size
        progress(done, None)

    return add


@contextlib.contextmanager
def shown(what: str) -> Iterator[Progress | None]:
    """A way to tell how far a transfer is; None if there is nobody to see it, for standard error is no terminal.

    It may be called from any thread, by one at a time.

    Args:
        what: a few words, such as "Uploading data".
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
            with contextlib.suppress(Exception):  # another display has the terminal
                bar.start()
        if started:
            bar.update(task, completed=done, total=size)

    try:
        yield progress
    finally:
        if started:
            bar.stop()
