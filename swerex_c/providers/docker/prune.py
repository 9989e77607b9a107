"""Remove orphaned containers, whose owner process died without ending them."""

from __future__ import annotations

from swerex_c.providers import ownership
from swerex_c.providers.docker.engine import Engine

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
    found = []
    for one in engine.labelled(ownership.LABEL, ownership.OWNER_LABELS):
        if not ownership.has_own_labels(one.labels, one.name):
            continue
        keep = ownership.KEEP in one.labels
        if ownership.is_owner_alive(one.labels) is not False or (keep and not one.runs):
            continue
        error = None
        if not dry_run:
            error = engine.kill(one.id) if keep else engine.remove(one.id)
        found.append(
            ownership.Orphan(one.id, one.name, f"image {one.image}", ownership.describe_owner(one.labels), keep, error)
        )
    return found
