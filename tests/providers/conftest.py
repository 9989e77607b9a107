"""Marks of the tests of providers, and the fixtures of sandboxes by their kinds."""

from pathlib import Path

import pytest

from tests.support.sandboxes import docker_backend

__all__ = ["docker_backend"]

_CLOUDS = ("daytona", "fargate", "kubernetes", "modal", "ray")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what the tests of each folder need, as `tests.support.targets` marks the contracts."""
    for item in items:
        folder = item.path.parent
        if folder.parent != Path(__file__).parent:
            continue
        item.add_marker(pytest.mark.needs(name=folder.name))
        if folder.name in _CLOUDS:  # a file's tests share a server
            item.add_marker(pytest.mark.xdist_group(f"{folder.name}-{item.path.name}"))
