"""`expect` with patterns that only `re` can do: back-references and look-around."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from swerex_c import _core
from swerex_c.exceptions import CommandTimeoutError, InvalidInputError, NoExitCodeError
from swerex_c.runtime._patterns import WINDOW, WindowMatcher, make_matcher
from swerex_c.runtime._watch import _Kept
from traps.harness import Shell, quicker_than

pytestmark = pytest.mark.only_here("patterns that are not regular")

BACK_REFERENCE = r"<(\w+)>[^<]*</\1>"
LOOK_AHEAD = r"ready(?=\n)"
LOOK_BEHIND = r"(?<=\n)ready"


@pytest.fixture
def python(sh: Shell) -> Iterator[Shell]:
    sh.run("python3 -q", is_interactive_command=True, expect=[">>> "])
    yield sh
    sh.leave("exit()")


# ---- the search itself


@pytest.mark.parametrize("pattern", [BACK_REFERENCE, LOOK_AHEAD, LOOK_BEHIND, r"a(?!b)", r"(?<!a)b"])
def test_the_core_leaves_them_to_us(pattern: str) -> None:
    assert isinstance(make_matcher(["plain", pattern]), WindowMatcher)
    assert isinstance(make_matcher(["plain"]), _core.Matcher)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_a_match_is_found_however_the_output_is_cut(size: int) -> None:
    text = "ä\n<b>no</i>\xff🦊\n<i>yes</i>!".encode("utf-8", "surrogateescape")
    matcher = WindowMatcher(["never", BACK_REFERENCE])
    found = None
    for at in range(0, len(text), size):
        found = matcher.feed(text[at : at + size])
        if found is not None:
            break
    assert found == (1, text.index(b"<i>yes"))


def test_positions_count_bytes_beyond_the_window_and_invalid_ones() -> None:
    matcher = WindowMatcher([r"(x)\1"])
    before = "漢".encode() * WINDOW + b"\xfe" * 10
    for at in range(0, len(before), 50_000):
        assert matcher.feed(before[at : at + 50_000]) is None
    assert matcher.feed(b"-xx") == (0, len(before) + 1)


def test_the_match_that_ends_first_then_starts_first_then_is_listed_first_wins() -> None:
    assert WindowMatcher([r"(a)\1b", r"(a)\1"]).feed(b"-aab") == (1, 1)
    assert WindowMatcher([r"(?<=a)a", r"(a)\1"]).feed(b"-aa") == (1, 1)
    assert WindowMatcher([r"(a)a", r"(a)\1"]).feed(b"-aa") == (0, 1)


def test_half_a_character_at_the_end_counts_when_nothing_more_comes() -> None:
    matcher = WindowMatcher([r"(?<=a)."])
    assert matcher.feed(b"a\xe6") is None
    assert matcher.feed(b"", True) == (0, 1)


@pytest.mark.parametrize("limit", [10, 11, 100])
def test_what_is_kept_is_the_beginning_and_the_end(limit: int) -> None:
    data = bytes(range(65, 90)) * 2
    for cut in range(len(data) + 1):
        kept = _Kept(limit)
        for byte in data:
            kept.add(bytes([byte]))
        kept.cut(cut)
        text, half = kept.text(False), limit // 2
        assert text.startswith(data[: min(half, cut)].decode())
        note = f"\n[... {kept.dropped} bytes of output were dropped here ...]\n"
        assert (note in text) == (kept.dropped > 0)
        assert len(text.replace(note, "")) == cut - kept.dropped <= limit
        if limit >= len(data):
            assert text == data[:cut].decode()


# ---- in sessions


@pytest.mark.parametrize(
    ("pattern", "printed", "output"),
    [
        (BACK_REFERENCE, "before\\n<b>no</i>\\n<i>yes</i>\\n", "before\n<b>no</i>\n"),
        (LOOK_AHEAD, "ready, not yet\\nready\\n", "ready, not yet\n"),
        (LOOK_BEHIND, "not ready\\nready\\n", "not ready\n"),
    ],
)
def test_a_running_command(sh: Shell, pattern: str, printed: str, output: str) -> None:
    with quicker_than(3):
        seen = sh.run(f"printf '{printed}'; sleep 20", check="ignore", expect=["nothing", pattern])
    assert (seen.output, seen.exit_code, seen.expect_string) == (output, None, pattern)
    sh.interrupt()


def test_a_match_across_writes(sh: Shell) -> None:
    command = "for c in a - o n e - o n e; do printf %s $c; sleep 0.03; done; sleep 20"
    seen = sh.run(command, check="ignore", expect=[r"(\w{3})-\1"])
    assert seen.output == "a-"
    sh.interrupt()


def test_a_command_that_ends_has_its_exit_code(sh: Shell) -> None:
    seen = sh.run("echo a; echo ready; (exit 3)", check="silent", expect=[LOOK_BEHIND])
    assert (seen.exit_code, seen.expect_string) == (3, LOOK_BEHIND)
    assert seen.output.startswith("a\n")


def test_a_command_that_goes_on_has_none(sh: Shell) -> None:
    with quicker_than(4), pytest.raises(NoExitCodeError):
        sh.run("echo; echo ready; sleep 20", check="raise", expect=[LOOK_BEHIND])
    sh.interrupt()


def test_a_pattern_that_does_not_come(sh: Shell) -> None:
    seen = sh.run("echo ready; (exit 4)", expect=[r"ready(?!\n)"])
    assert (seen.output, seen.exit_code) == ("ready\n", 4)
    seen = sh.run("", expect=[LOOK_BEHIND])
    assert (seen.output, seen.exit_code) == ("", 0)


def test_time_limits_hold(sh: Shell) -> None:
    with quicker_than(2), pytest.raises(CommandTimeoutError) as caught:
        sh.run("echo some; sleep 20", 0.3, expect=[LOOK_BEHIND])
    assert caught.value.output == "some\n"
    sh.interrupt()
    with quicker_than(2), pytest.raises(CommandTimeoutError):
        sh.run("echo some; sleep 20", 10, no_output_timeout=0.3, expect=[LOOK_BEHIND])
    sh.interrupt()


def test_a_cancelled_wait_leaves_the_session_usable(sh: Shell) -> None:
    async def give_up() -> None:
        run = asyncio.ensure_future(sh.aio.run_in_session(sh.action("sleep 0.5", 10, expect=[LOOK_BEHIND])))
        await asyncio.sleep(0.1)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run

    sh.wait(give_up())
    sh.gives("echo next", "next\n")


def test_much_output(sh: Shell) -> None:
    with quicker_than(10):
        seen = sh.run("seq 400000; echo ready; sleep 20", check="ignore", expect=[LOOK_BEHIND])
    assert seen.output == "".join(f"{i}\n" for i in range(1, 400_001))
    sh.interrupt()


def test_sequences_of_the_terminal_are_no_part_of_the_output(sh: Shell) -> None:
    seen = sh.run(r"printf '\033[31mred\033[0m\nready'; sleep 20", check="ignore", expect=[LOOK_BEHIND])
    assert seen.output == "red\n"
    sh.interrupt()


def test_an_interactive_program(python: Shell) -> None:
    seen = python.run("print('<b>bold</b>')", is_interactive_command=True, expect=[r"<(\w)>bold</\1>"])
    assert seen.expect_string == r"<(\w)>bold</\1>"
    python.talk("print('a', 'end', sep='-')", r"(?<=end\n)>>> ")


def test_an_interrupt(python: Shell) -> None:
    with pytest.raises(CommandTimeoutError):
        python.run("import time; time.sleep(30)", 0.3, is_interactive_command=True, expect=["never"])
    with quicker_than(2):
        seen = python.interrupt(expect=[r"(?<=KeyboardInterrupt\n)>>> "])
    assert seen.expect_string == r"(?<=KeyboardInterrupt\n)>>> "
    assert seen.output.endswith("KeyboardInterrupt")


def test_an_interrupt_that_brings_the_shell_back(sh: Shell) -> None:
    sh.times_out("sleep 30")
    with quicker_than(2):
        seen = sh.interrupt(expect=[LOOK_BEHIND])
    assert seen.expect_string == "SHELLPS1PREFIX"


def test_an_interrupt_of_nothing(sh: Shell) -> None:
    with quicker_than(2):
        sh.interrupt(expect=[LOOK_BEHIND])


# ---- streamed


def collect(sh: Shell, command: str, **more: Any) -> tuple[str, Any, float]:
    """The text of the stream, its observation, and the seconds to the first piece."""

    async def read() -> tuple[str, Any, float]:
        text, last, first, start = "", None, 0.0, time.monotonic()
        async for item in sh.aio.stream_in_session(sh.action(command, 10, **more)):
            first = first or time.monotonic() - start
            if isinstance(item, str):
                text += item
            else:
                last = item
        return text, last, first

    return sh.wait(read())


def test_a_stream_ends_where_the_match_begins(sh: Shell) -> None:
    with quicker_than(3):
        text, last, first = collect(
            sh, "echo one; sleep 0.4; echo two; echo ready; sleep 20", check="ignore", expect=[LOOK_BEHIND]
        )
    assert (text, last.output, last.expect_string) == ("one\ntwo\n", "one\ntwo\n", LOOK_BEHIND)
    assert first < 0.3
    sh.interrupt()


def test_a_stream_without_a_match_is_whole(sh: Shell) -> None:
    text, last, _ = collect(sh, "seq 50000; (exit 2)", check="silent", expect=[LOOK_BEHIND])
    assert text == last.output == "".join(f"{i}\n" for i in range(1, 50_001))
    assert (last.exit_code, last.expect_string) == (2, "SHELLPS1PREFIX")


# ---- refused


@pytest.mark.parametrize("bad", ["(", "(?P<x", "*", "", "x*", "(?!a)", r"(?:a|)\1", "a|"])
@pytest.mark.parametrize("kind", ["normal", "interactive", "interrupt", "stream"])
def test_invalid_and_empty_patterns_are_refused_before_anything_is_sent(sh: Shell, bad: str, kind: str) -> None:
    expect = ["good", bad]
    with pytest.raises(InvalidInputError, match=r"expect\[1\]"):
        if kind == "interrupt":
            sh.interrupt(expect=expect)
        elif kind == "stream":
            collect(sh, "sent=yes", expect=expect)
        else:
            sh.run("sent=yes", expect=expect, is_interactive_command=kind == "interactive")
    sh.gives('echo "${sent-no}"', "no\n")
