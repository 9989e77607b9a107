"""A start of a program or a shell that lasts as long as a test wants."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tests.support.wait import DEADLINE, settle, until_async


class Slow:
    """Stands for something that starts a program, and takes until it is told to go on."""

    def __init__(self, start: Callable[..., Any], waits: bool = True):
        self.start = start
        self.threads: list[int] = []
        self.go_on = threading.Event()
        if not waits:
            self.go_on.set()

    def __call__(self, *arguments: Any, **more: Any) -> Any:
        self.threads.append(threading.get_ident())
        assert self.go_on.wait(DEADLINE), "the event loop has to go on meanwhile"
        return self.start(*arguments, **more)

    async def begun(self) -> None:
        """Until a start is under way: the event loop gets to this only where it is not held up by it."""
        await until_async(lambda: self.threads)
        await settle()
