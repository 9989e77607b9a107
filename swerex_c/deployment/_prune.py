"""Ending the containers of processes that died without doing so."""

from __future__ import annotations

from swerex_c.deployment import _owners
from swerex_c.deployment._engine import Engine

__all__ = ["prune"]


def prune(engine: Engine, *, dry_run: bool = False) -> list[_owners.Left]:
    """End the containers whose process is dead, and remove them. Blocks.

    Only containers that this package started are looked at, and only of processes of this machine, in this boot of it
    or an earlier one.

    Args:
        dry_run: only tell which they are.

    Raises:
        DeploymentStartupError: if the engine cannot be reached.
        TimeoutError: if it does not answer.
    """
    found = []
    for one in engine.labelled(_owners.LABEL, _owners.FACTS):
        if not _owners.labelled(one.labels, one.name):
            continue
        keep = _owners.KEEP in one.labels
        if _owners.lives(one.labels) is not False or (keep and not one.runs):
            continue
        error = None
        if not dry_run:
            error = engine.kill(one.id) if keep else engine.remove(one.id)
        found.append(
            _owners.Left(one.id, one.name, f"image {one.image}", _owners.told(one.labels), keep, error)
        )
    return found
