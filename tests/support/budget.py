"""`--budget SECONDS`: tests that would begin later are skipped, and say so.

On a machine many times slower than usual a run then ends in time with most of its answers, instead of being cut off
with none.
"""

from __future__ import annotations

import time

import pytest

_begin = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--budget", type=float, help="seconds after which no further test is begun")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    budget = item.config.getoption("--budget")
    if budget is not None and time.monotonic() - _begin > budget:
        pytest.skip(f"not run: the {budget:.0f} seconds for these tests were over")
