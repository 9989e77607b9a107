"""The blocks of the pages that start an environment on a cluster."""

from __future__ import annotations

import pytest

from tests.support.pages import check, shown
from tests.support.ray_cluster import Nodes

pytestmark = pytest.mark.slice


@pytest.mark.parametrize(("block", "output"), shown("ray"))
def test_a_block_prints_what_the_page_shows(block: str, output: str, nodes: Nodes) -> None:
    check(block, output, RAY_ADDRESS=nodes.address)
