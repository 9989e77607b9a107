"""Private names of Modal's SDK: the installed version still has them."""

from __future__ import annotations

import pytest

pytest.importorskip("modal")

from modal._utils.async_utils import synchronizer


def test_the_implementation_of_a_sandbox_can_be_had() -> None:
    assert callable(synchronizer._translate_in)
