"""The blocks of the pages that start a sandbox print what the page shows, and leave none."""

from __future__ import annotations

import pytest

from tests.support.pages import check, shown
from tests.support.targets import Target
from tests.support.wait import until

TARGETS = ["daytona", "fargate", "kubernetes", "modal", "ray"]


@pytest.mark.slice
def test_a_block_prints_what_the_page_shows(target: Target) -> None:
    blocks, before = shown(target.name), target.left()
    assert blocks
    for block, output in blocks:
        check(block, output, **target.variables)
    until(lambda: target.left() == before)
