"""`expect`: which patterns are searched for, which are refused, and what searching may cost."""

from __future__ import annotations

import asyncio
import random
import re
import time
from pathlib import Path

import pytest

from swerex_c.engine.patterns import make_matcher
from swerex_c.exceptions import CommandTimeoutError, InvalidInputError
from tests.support.patterns import CATASTROPHIC, COSTLY
from tests.support.session import Session, Shell
from tests.support.wait import DEADLINE, quicker_than

# ---- refused


REFUSED = [
    "(", "(?P<x", "*", "", "x*", "(|a){60}b|", "a|", "(x{1000}){1000}", "[", "a" * 300_000,
    "a(?!b)", "a(?!b)c*", r"(a)\1(?!b)", r"(?<=a)[\w.]\b", r"(?<=a+)b", "(?!a)", "(?=a)?",  # later text decides
]  # fmt: skip


@pytest.mark.parametrize("kind", ["normal", "interactive", "interrupt", "stream"])
def test_others_are_refused_before_anything_is_sent(sh: Shell, kind: str) -> None:
    for bad in REFUSED:
        with pytest.raises(InvalidInputError, match=rf"^expect\[1\], {re.escape(repr(bad)[:20])}") as caught:
            if kind == "interrupt":
                sh.interrupt(expect=["good", bad])
            elif kind == "stream":
                sh.stream("sent=yes", expect=["good", bad])
            else:
                sh.run("sent=yes", expect=["good", bad], is_interactive_command=kind == "interactive")
        assert len(str(caught.value)) < 2000
    sh.gives('echo "${sent-no}"', "no\n")


LARGE = {
    "repeats": "((((|a){999}){999}){999})b",
    "classes": r"[\w]" * 60_000,
    "classes that differ": "".join(f"[{chr(0x4E00 + i)}-{chr(0x4E00 + 2 * i + 1)}]" for i in range(20_000)),
    "one class": "[" + r"\w" * 100_000 + "]x",
    "empty alternatives": "(|){30}" * 30 + "b",
    "groups": "(" * 5000 + "a" + ")" * 5000,
    "empty groups": "(?:" + "()" * 20_000 + "a){16000}",
    "letters": "|".join(chr(0x4E00 + i) + "x*" for i in range(20_000)),
}


@pytest.mark.idle
@pytest.mark.parametrize("name", LARGE)
def test_a_large_one_takes_no_time(name: str) -> None:
    with quicker_than(1):
        try:
            make_matcher([LARGE[name]])
        except InvalidInputError as error:
            assert "expect[0]" in str(error)


# ---- the cost of searching


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    path = tmp_path / "letters"
    path.write_bytes(bytes(random.Random(1).choices(b"ab", k=1_000_000)))
    return path


@pytest.mark.parametrize("pattern", [COSTLY, CATASTROPHIC], ids=["regular", "not regular"])
def test_one_that_costs_too_much_ends_its_action_only(sh: Shell, letters: Path, pattern: str) -> None:
    sh.wait(costly_beside_short_ones(sh, letters, pattern))
    sh.interrupt()
    sh.gives("echo next", "next\n")


@pytest.mark.idle
@pytest.mark.parametrize("pattern", [COSTLY, CATASTROPHIC], ids=["regular", "not regular"])
def test_one_that_costs_too_much_holds_nobody_up(sh: Shell, letters: Path, pattern: str) -> None:
    with quicker_than(5):
        waits = sh.wait(costly_beside_short_ones(sh, letters, pattern))
    assert len(waits) > 1 and max(waits) < 1.5
    sh.interrupt()


@pytest.mark.idle
def test_what_was_cheap_is_not_saved_up() -> None:
    matcher, cheap = make_matcher(["a.{16000}b"]), b"x" * 1_000_000
    for _ in range(200):
        matcher.feed(cheap)
    with quicker_than(3), pytest.raises(RuntimeError):
        matcher.feed(bytes(random.Random(1).choices(b"ax", k=100_000)))


async def costly_beside_short_ones(sh: Shell, letters: Path, pattern: str) -> list[float]:
    """Search for a costly pattern until it is given up; how long commands of another session took meanwhile."""
    await Session(sh.aio, "other").create()
    costly = asyncio.ensure_future(sh.go(f"cat {letters}; sleep 1000", expect=["never", pattern]))
    waits = []
    while not costly.done():
        began = time.monotonic()
        await sh.go("true", session="other")
        waits.append(time.monotonic() - began)
    with pytest.raises(CommandTimeoutError, match="simpler") as caught:
        await costly
    assert caught.value.output and letters.read_text().startswith(caught.value.output)
    assert waits
    return waits


def test_one_that_costs_too_much_for_an_interrupt(sh: Shell, letters: Path) -> None:
    sh.begin(f"""sh -c "trap 'cat {letters}' INT; echo ready; while :; do sleep 0.1; done" """, "ready")
    with pytest.raises(CommandTimeoutError, match="simpler"):
        sh.interrupt(timeout=DEADLINE, expect=[COSTLY])
    sh.interrupt(n_retry=1)
    sh.gives("echo next", "next\n")
