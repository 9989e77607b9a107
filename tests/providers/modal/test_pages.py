"""The blocks of the pages that start a sandbox of Modal."""

from __future__ import annotations

import pytest

pytest.importorskip("modal")

from tests.support.modal_fixtures import ModalWorld, modal_world
from tests.support.pages import check, shown

__all__ = ["modal_world"]

pytestmark = pytest.mark.slice


@pytest.mark.parametrize(("block", "output"), shown("modal"))
def test_a_block_prints_what_the_page_shows(block: str, output: str, modal_world: ModalWorld) -> None:
    check(block, output)
    assert modal_world.running() == []
