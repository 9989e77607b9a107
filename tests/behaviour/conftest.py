"""Every test of this package runs in the quiet environment."""

from __future__ import annotations

import pytest

from tests.support.processes import Family


@pytest.fixture(autouse=True)
def _quiet(family: Family) -> None:
    pass
