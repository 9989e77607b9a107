"""Ending what dead processes left, wherever that is: which of it, and what is told when that fails.

A kind of place says what there is, as `Found`, and how its library's errors read; all else is the same for each.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from swerex_c.deployment import _owners
from swerex_c.exceptions import SwerexException
from swerex_c.exec import loops

__all__ = ["Found", "ask", "sweep"]


@dataclass(frozen=True)
class Found:
    """A place that a process of this package has started."""

    id: str
    """What its cloud knows it by."""

    name: str
    about: str
    facts: Mapping[str, str]
    """What it is labelled with, as `_owners.labels` had it."""

    end: Callable[[], Awaitable[None]]
    """Ends it; it is no error if it has ended."""


async def sweep(
    places: AsyncIterator[Found], *, dry_run: bool, sentence: Callable[[Exception], str]
) -> list[_owners.Left]:
    """End those whose process is dead, each whatever becomes of the others.

    Args:
        dry_run: only tell which they are.
        sentence: an error of the library's, for people.
    """
    left = []
    async for one in places:
        if _owners.lives(one.facts) is not False:
            continue
        error = None
        if not dry_run:
            try:
                await one.end()
            except Exception as raised:
                error = sentence(raised)
        left.append(_owners.Left(one.id, one.name, one.about, _owners.told(one.facts), error=error))
    return left


def ask(
    work: Coroutine[Any, Any, list[_owners.Left]],
    timeout: float,
    failure: Callable[[Exception], SwerexException | None],
) -> list[_owners.Left]:
    """What the work gives, in the loop of `swerex_c.exec.loops`. Blocks.

    Args:
        failure: the error of ours that an error of the library's is; None if it is none of the library's.

    Raises:
        TimeoutError: if it takes longer than `timeout` seconds.
        SwerexException: what `failure` makes of it, or what the work itself raises.
    """
    try:
        return loops.call(work, timeout)
    except (SwerexException, TimeoutError):
        raise
    except Exception as error:
        if (ours := failure(error)) is None:
            raise
        raise ours from error
