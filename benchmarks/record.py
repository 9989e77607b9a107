"""Records of runs, kept as JSON below record/, and what two of them say of each other.

A comparison looks at the ratio of each line to its row's baseline, round by round: so the speed of the machine, and its
mood, cancel out. A line has become slower if a rank test (Mann and Whitney's, exact) says that the two sets of rounds
differ at one in twenty, and their medians do by more than a tenth. With fewer than four rounds on a side nothing can
be said.
"""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from measure import HERE
from rows import Result

__all__ = ["RECORDS", "Difference", "compare", "find", "latest", "rank_test", "read", "write"]

RECORDS = HERE / "record"
FILE = "run.json"

CHANCE = 0.05
SHARE = 0.1
ROUNDS = 4


def write(found: Result) -> Path:
    """Keep a run in a directory of its own, which is named by date and commit; its file."""
    about = found["machine"]
    date = str(about["date"]).replace(" UTC", "").replace(" ", "-").replace(":", "")
    directory = RECORDS / f"{date}-{about['commit']}"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / FILE
    path.write_text(json.dumps(found, indent=1) + "\n")
    return path


def read(name: str) -> Result:
    """A record by its file, or by the beginning of its name below record/."""
    found: Result = json.loads(find(name).read_text())
    return found


def find(name: str) -> Path:
    """The file of a record."""
    path = Path(name)
    if path.is_dir():
        return path / FILE
    if path.exists():
        return path
    fitting = sorted(RECORDS.glob(f"{name}*/{FILE}"))
    if len(fitting) != 1:
        raise LookupError(f"{len(fitting)} records begin with {name!r} in {RECORDS}")
    return fitting[0]


def latest(suits: Callable[[Result], bool] = lambda record: True) -> Path:
    """The file of the newest record that suits. Raises LookupError if there is none."""
    newest = sorted(RECORDS.glob(f"*/{FILE}"), reverse=True)
    path = next((path for path in newest if suits(json.loads(path.read_text()))), None)
    if path is None:
        raise LookupError(f"no record in {RECORDS}")
    return path


@dataclass(frozen=True)
class Difference:
    row: str
    line: str
    before: float
    after: float
    chance: float
    """How likely so great a difference is if nothing has changed."""

    @property
    def change(self) -> float:
        return self.after / self.before - 1

    @property
    def certain(self) -> bool:
        return self.chance <= CHANCE and abs(self.change) > SHARE


def rank_test(one: list[float], other: list[float]) -> float:
    """How likely it is, both ways, that two sets of the same kind differ in their ranks as much as these do."""
    both = sorted(one + other)
    middle = {value: statistics.mean(i for i, it in enumerate(both) if it == value) for value in set(both)}
    ranks = [middle[it] for it in one + other]
    expected = len(one) * (len(both) - 1) / 2
    seen = abs(sum(ranks[: len(one)]) - expected)
    ways = [sum(it) for it in itertools.combinations(ranks, len(one))]
    return sum(abs(it - expected) >= seen - 1e-9 for it in ways) / len(ways)


def compare(before: Result, after: Result) -> Iterator[Difference]:
    """Every line that both runs have and that can be compared."""
    for key, row in after["rows"].items():
        for name, line in row["lines"].items():
            old = before["rows"].get(key, {}).get("lines", {}).get(name, {})
            a, b = [list(it.get("rounds", {}).values())[:8] for it in (old, line)]
            if min(len(a), len(b)) >= ROUNDS:
                yield Difference(key, name, statistics.median(a), statistics.median(b), rank_test(a, b))
