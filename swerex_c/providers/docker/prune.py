"""Remove orphaned containers, whose owner process died without ending them."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator

from swerex_c.exceptions import DeploymentStartupError
from swerex_c.providers import orphans, ownership
from swerex_c.providers.docker.engine import Engine, Listed

__all__ = ["prune"]


def prune(engine: Engine, *, dry_run: bool = False) -> list[ownership.Orphan]:
    """End and remove the containers whose owner process is dead. Blocks.

    Only containers that this package started are considered, and only those with an owner process on this machine, in
    the current boot or an earlier one.

    Args:
        dry_run: list the orphans without removing them.

    Raises:
        DeploymentStartupError: if the engine cannot be reached.
        TimeoutError: if the engine does not respond.
    """
    return orphans.prune(_containers(engine), dry_run=dry_run, timeout=None, sentence=str)


async def _containers(engine: Engine) -> AsyncIterator[orphans.OwnedSandbox]:
    for one in await engine.labelled(ownership.LABEL, ownership.OWNER_LABELS):
        keep = ownership.KEEP in one.labels
        if ownership.has_own_labels(one.labels, one.name) and (one.runs or not keep):
            end = functools.partial(_end, engine, one)
            yield orphans.OwnedSandbox(one.id, one.name, f"image {one.image}", one.labels, end, keep)


async def _end(engine: Engine, one: Listed) -> None:
    if problem := await (engine.kill if ownership.KEEP in one.labels else engine.remove)(one.id):
        raise DeploymentStartupError(problem)
