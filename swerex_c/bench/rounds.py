"""The rounds of a run: what each engine does in one, in which order they come, and the environment that they share.

The benchmarks of the source tree use this file as well, by its path: it needs nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

__all__ = ["Turn", "environment", "in_order"]


@dataclass
class Turn:
    """What an engine does in each round of a row."""

    engine: str
    request: dict[str, Any] = field(default_factory=dict)
    """What it is asked; where the row asks something itself, what differs from that."""

    label: str = ""
    """In place of the engine's name."""

    rounds: int | None = None
    """Fewer than the others, for those that take long."""

    @property
    def name(self) -> str:
        return self.label or self.engine


T = TypeVar("T", bound=Turn)


def in_order(turns: Iterable[T], number: int, order: random.Random) -> list[T]:
    """Those that have a turn in the round of that number, from 0, in random order."""
    found = [turn for turn in turns if turn.rounds is None or number < turn.rounds]
    order.shuffle(found)
    return found


def environment(directory: Path, **more: str) -> dict[str, str]:
    """The same for all that is measured: a home in `directory` with the distribution's startup file, and a terminal
    that all can handle.

    Args:
        more: variables besides.
    """
    home = directory / "home"
    if not home.exists():
        home.mkdir()
        with contextlib.suppress(OSError):
            shutil.copy("/etc/skel/.bashrc", home / ".bashrc")
    found = {**os.environ, "HOME": str(home), "TERM": "dumb", "LC_ALL": "C.UTF-8", **more}
    for name in ("PROMPT_COMMAND", "PS1", "PS2", "PS0", "BASH_ENV", "ENV"):
        found.pop(name, None)
    return found
