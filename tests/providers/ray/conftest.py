"""A Ray cluster of two nodes on this machine for all tests of a process; without Ray they are skipped."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

pytest.importorskip("ray")

from tests.support.ray_cluster import Made, Nodes

_numbers = itertools.count(os.getpid() * 1000)


@pytest.fixture
def mark() -> str:
    """An argument for `sleep` by which a process of this test is known."""
    return f"9{next(_numbers)}"


@pytest_asyncio.fixture
async def made(nodes: Nodes) -> AsyncIterator[Made]:
    made = Made()
    yield made
    for deployment in made:
        await deployment.stop()
