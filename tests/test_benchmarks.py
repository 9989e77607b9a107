"""What the benchmarks say of two runs, and of growth: by numbers whose answer is known."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

DIRECTORY = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def record() -> Any:
    sys.path.insert(0, str(DIRECTORY))
    try:
        import record

        yield record
    finally:
        sys.path.remove(str(DIRECTORY))


def run(*values: float) -> dict[str, Any]:
    rounds = {str(i): value for i, value in enumerate(values)}
    return {"rows": {"true": {"lines": {"ours": {"rounds": rounds}}}}}


@pytest.mark.parametrize(
    ("before", "after", "certain"),
    [
        ((1.0, 1.1, 0.9, 1.05, 0.95), (1.5, 1.6, 1.4, 1.55, 1.45), True),
        ((1.0, 1.1, 0.9, 1.05, 0.95), (0.5, 0.6, 0.4, 0.55, 0.45), True),
        ((1.0, 1.1, 0.9, 1.05, 0.95), (1.02, 1.12, 0.92, 1.07, 0.97), False),
        ((1.0, 1.001, 0.999, 1.0005, 0.9995), (1.05, 1.051, 1.049, 1.0505, 1.0495), False),
        ((1.0, 3.0, 0.5, 2.0, 1.5), (2.0, 4.0, 0.7, 1.0, 3.0), False),
    ],
)
def test_only_what_is_certain_is_called_slower_or_faster(
    record: Any, before: tuple[float, ...], after: tuple[float, ...], certain: bool
) -> None:
    (found,) = record.compare(run(*before), run(*after))
    assert found.certain == certain


def test_few_rounds_say_nothing(record: Any) -> None:
    assert list(record.compare(run(1.0, 1.0, 1.0), run(9.0, 9.0, 9.0))) == []


def test_the_rank_test_is_exact(record: Any) -> None:
    """Four beside four that are all larger: two of the 70 ways to share them out are as far apart."""
    assert record.rank_test([1, 2, 3, 4], [5, 6, 7, 8]) == pytest.approx(2 / 70)
    assert record.rank_test([1, 1, 1, 1], [1, 1, 1, 1]) == 1


def test_the_exponent_of_growth(record: Any) -> None:
    assert record.exponent([(1, 3), (10, 30), (100, 300)]) == pytest.approx(1)
    assert record.exponent([(1, 3), (10, 300), (100, 30000)]) == pytest.approx(2)
    assert record.exponent([(1, 3), (10, 30)]) is None
