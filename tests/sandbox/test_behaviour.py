"""The behaviour tests through client programs that forward a terminal, in the sandbox of `support/local_backend.py`."""

from __future__ import annotations

import pytest

from tests.support.behaviour_runs import LEFT_OUT, inherited, run_rooms

pytestmark = pytest.mark.slow


_ROOMS = [
    ("state", 90),
    ("prompts", 60),
    ("lifecycle", 15),
    ("concurrency", 6),
    ("hidden_prompts", 20),
    ("text_out", 40),
    ("programs", 25),
    ("interrupts", 25),
    ("redefinitions", 7),
    ("attacks", 8),
    ("spoofing", 5),
    ("time", 45),
    ("text_in", 78),
]


@pytest.mark.timeout(1000)
@pytest.mark.parametrize(("room", "at_least"), _ROOMS)
def test_it_behaves(room: str, at_least: int) -> None:
    assert run_rooms([room], LEFT_OUT, {**inherited(), "SWX_PLACE": "here"}) >= at_least
