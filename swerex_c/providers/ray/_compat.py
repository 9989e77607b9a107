"""Private names of Ray that this package reads; tested with ray 2.40 and later.

The public state API needs Ray's dashboard, which a cluster may lack.
"""

from __future__ import annotations

from typing import Any

__all__ = ["actor_state", "has_autoscaler"]


def actor_state(actor_id: str) -> Any:
    """Return the state of an actor, such as "PENDING_CREATION", or None.

    Raises:
        Exception: if the cluster does not answer, or Ray has moved the function.
    """
    from ray._private.state import actors

    return actors(actor_id).get("State")


def has_autoscaler() -> bool:
    """Check whether the cluster has an autoscaler that can add resources."""
    try:
        from ray._private.state import state

        return state.get_max_resources_from_cluster_config() is not None
    except Exception:
        return False
