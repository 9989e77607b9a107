"""The blocks of the pages that run a task on Fargate."""

from __future__ import annotations

import pytest

from tests.support.aws_fixtures import World, aws, moto
from tests.support.pages import check, shown

__all__ = ["aws", "moto"]

pytestmark = pytest.mark.slice


@pytest.mark.parametrize(("block", "output"), shown("fargate"))
def test_a_block_prints_what_the_page_shows(block: str, output: str, aws: World) -> None:
    check(block, output)
