"""The blocks of the pages that start a sandbox of Daytona."""

from __future__ import annotations

import pytest

pytest.importorskip("daytona")

from tests.support.daytona_fixtures import DaytonaWorld, server, world
from tests.support.pages import check, shown

__all__ = ["server", "world"]

pytestmark = pytest.mark.slice


@pytest.mark.parametrize(("block", "output"), shown("daytona"))
def test_a_block_prints_what_the_page_shows(block: str, output: str, world: DaytonaWorld) -> None:
    check(block, output)
    assert world.sandboxes() == []
