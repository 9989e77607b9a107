"""Records of runs, kept as JSON below record/, and what two of them say of each other.

A comparison looks at each line's ratio to its row's baseline, round by round, so the speed of the machine cancels out.
A line has become slower if a rank test (Mann and Whitney's, exact) finds the rounds of the two records different at one
in twenty, and their medians differ by more than a tenth. With fewer than four rounds nothing can be said.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

__all__ = ["RECORDS", "Difference", "Record", "compare", "find", "latest", "read", "write"]

Record = dict[str, Any]

RECORDS = Path(__file__).resolve().parent / "record"
FILE = "run.json"

CHANCE, SHARE, ROUNDS = 0.05, 0.1, 4


def write(found: Record) -> Path:
    """Keep a run in a directory of its own, named by date and commit, and return its file."""
    about = found["machine"]
    date = str(about["date"]).replace(" UTC", "").replace(" ", "-").replace(":", "")
    path = RECORDS / f"{date}-{about['commit']}" / FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
    return path


def read(path: Path) -> Record:
    """Read a record."""
    found: Record = json.loads(path.read_text())
    return found


def find(name: str) -> Path:
    """Return the file of a record by its path, or by how the name of its directory below record/ begins.

    Raises:
        LookupError: if there is not exactly one.
    """
    path = Path(name)
    if path.is_file() or (path / FILE).is_file():
        return path if path.is_file() else path / FILE
    fitting = sorted(RECORDS.glob(f"{name}*/{FILE}"))
    if len(fitting) != 1:
        raise LookupError(f"{len(fitting)} records begin with {name!r} in {RECORDS}: name one of them")
    return fitting[0]


def latest(suits: Callable[[Record], bool]) -> Path:
    """Return the file of the newest record that suits.

    Raises:
        LookupError: if there is none.
    """
    for path in sorted(RECORDS.glob(f"*/{FILE}"), reverse=True):
        if suits(read(path)):
            return path
    raise LookupError(f"no record in {RECORDS} has what is needed: make one with `python -m benchmarks`")


class Difference(NamedTuple):
    """A line in two records: the medians of its ratios, and how likely that is if nothing has changed."""

    row: str
    line: str
    before: float
    after: float
    chance: float

    @property
    def verdict(self) -> str:
        """Return "slower", "faster" or "same"."""
        if self.chance > CHANCE or abs(self.after / self.before - 1) <= SHARE:
            return "same"
        return "slower" if self.after > self.before else "faster"


def rank_test(one: list[float], other: list[float]) -> float:
    """Return how likely it is, both ways, that two sets of the same kind differ in their ranks as much as these do."""
    both = sorted(one + other)
    middle = {value: statistics.mean(i for i, it in enumerate(both) if it == value) for value in set(both)}
    ranks = [middle[it] for it in one + other]
    expected = len(one) * (len(both) - 1) / 2
    seen = abs(sum(ranks[: len(one)]) - expected)
    ways = [sum(it) for it in itertools.combinations(ranks, len(one))]
    return sum(abs(it - expected) >= seen - 1e-9 for it in ways) / len(ways)


def compare(before: Record, after: Record) -> Iterator[Difference]:
    """Yield each line that both records have with the same baseline and enough rounds."""
    for key, row in after["rows"].items():
        old = before["rows"].get(key, {"baseline": None, "lines": {}})
        for name, line in row["lines"].items():
            a, b = [list(it.get("rounds", {}).values())[:8] for it in (old["lines"].get(name, {}), line)]
            if old["baseline"] == row["baseline"] != name and min(len(a), len(b)) >= ROUNDS:
                yield Difference(key, name, statistics.median(a), statistics.median(b), rank_test(a, b))
