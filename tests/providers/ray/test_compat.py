"""Private names of Ray: the installed version still has them."""

from __future__ import annotations

from ray._private.state import actors, state


def test_the_state_of_the_cluster_can_be_read() -> None:
    assert callable(actors) and callable(state.get_max_resources_from_cluster_config)
