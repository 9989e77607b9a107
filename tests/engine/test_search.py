"""Patterns of `expect` that are not regular: the rules are those of regular ones, and the search holds nobody up."""

from __future__ import annotations

import asyncio
import random
import sys

import pytest

from swerex_c.engine.patterns import make_matcher
from swerex_c.engine.search import Search
from swerex_c.exceptions import CommandTimeoutError, NotAvailableError
from swerex_c.runtime.local import LocalRuntime
from tests.support.local_backend import runtime_in
from tests.support.patterns import CATASTROPHIC, NOT_REGULAR, Hit, first_hit
from tests.support.session import Gate, Shell
from tests.support.wait import DEADLINE, cancel


def search_of(patterns: list[str]) -> Search:
    search = make_matcher(patterns)
    assert isinstance(search, Search)
    return search


def find(patterns: list[str], text: bytes, cuts: list[int]) -> Hit | None:
    """Search the text in the pieces between the cuts, and return the hit as `first_hit` does."""
    search = search_of(patterns)
    places = sorted({0, len(text), *cuts})
    for begin, end in zip(places, places[1:], strict=False):
        if (hit := search._find(begin, text[begin:end])) is not None:
            return hit[2], hit[1], hit[0]
    return None


CASES = [
    r"<(\w+)>[^<]*</\1>", r"b(?=\n)", r"(?<=\n)b", r"(?<!a)b", r"a(?!b)c", r"(?!a)[ab]c", r"(a+)-\1",
    r"(?P<n>a|b)(?P=n)", r"(?>ab?)c", r"(?>a|ab)c", r"a++b", r"a*+c", r"(?:ab)?+c", r"(a)?(?(1)b|c)", r"(a)\1?c",
    r"(?i)(A)\1b", r"(.)\1\1", r"(?<=a)b$", r"(?m)^(a|b)\1$", r"\A(.).*\1\Z", r"(?<=-)\b(a)\1?", r"(?=a(b|c))a\1b",
    r"(?=(a+))\1c", r"(?<!\A)b", r"^a(?!b)c", r"(?<=[^\x00-\x7f])b", r"(é)\1", r"(a)\1{e}", r"(a){b}(?<=})",
    r"[{](?<=a{)", r"(?x) (a) \1 # {", r"(?s:(a).*\1)b", r"a(?=b.)", r"(?<=\n)b|(a)\1c", r"(?<=a)(?<!ba)c",
    r"(?:(?<=a)b|a)+c", r"(?:a(?=b)|b(?=c))+", r"((?:a|b)(?!c))+b",
]  # fmt: skip


REGULAR = ["ab", "b-", "a+c", "[^a]b", "é", "(?m)^c", "bb|cc"]


@pytest.mark.parametrize("pattern", CASES)
def test_what_it_means_is_what_re_says_after_each_character(pattern: str) -> None:
    """Regular ones beside it keep their place."""
    rng = random.Random(pattern)
    parts = ["a", "b", "c", "-", "\n", "é", "A", "<a>", "</a>", "{e}", "{b}", "a{"]
    near = [part for part in parts if set(part) & set(pattern)] or parts
    found = 0
    for number in range(300):
        patterns = [pattern, *rng.sample(REGULAR, number % 4)]
        rng.shuffle(patterns)
        few = rng.sample(near, min(len(near), 3))
        text = "".join(rng.choices(rng.choice((few, parts)), k=rng.randrange(1, 15))).encode()
        expected = first_hit(patterns, text.decode())
        cuts = [rng.randrange(len(text) + 1) for _ in range(rng.randrange(4))]
        assert find(patterns, text, cuts) == expected, (patterns, text)
        assert find(patterns, text, list(range(len(text)))) == expected, (patterns, text)
        found += expected is not None and patterns[expected[0]] == pattern
    assert found


@pytest.mark.parametrize("turned", ["(?<!\\x00)(?:{})", "(?!\\x00)(?:{})"])
def test_it_finds_what_the_core_finds(turned: str) -> None:
    rng = random.Random(2)
    regular = ["ab", "a.c", "a+?b", "(?:a|b){2}c", "[^a-b]c", r"\w\W", r"a\b.", "é.", "(?i:B)a", "a|bc|cab"]
    for _ in range(400):
        patterns = rng.sample(regular, 3)
        text = b"".join(rng.choices([b"ab", b"\xc3", "é".encode(), b"c-ab", b"\xff", b"\x80", b"\x1b"], k=8))
        cuts = [rng.randrange(len(text) + 1) for _ in range(rng.randrange(4))]
        assert find([turned.format(each) for each in patterns], text, cuts) == make_matcher(patterns).feed(text)


def test_output_without_end_needs_no_memory() -> None:
    search = search_of([r"(?<!\d)x(\d)\1", "never"])
    block = b"x12 " * 16_384
    at = 0
    for _ in range(40):
        assert search._find(at, block) is None
        at += len(block)
    assert len(search._text) < 3 * len(block)
    assert search._find(at, b" x11") == (at + 4, at + 1, 0)


# ---- the package


def test_it_is_named_what_has_to_be_installed(sh: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "regex", None)
    with pytest.raises(NotAvailableError, match=r"^expect\[1\].*pip install 'swerex-c\[patterns\]'$"):
        sh.run("sent=yes", expect=["good", r"(here)-\1 is no module"])
    sh.gives('echo "${sent-no}"', "no\n")


# ---- in sessions


@pytest.mark.parametrize("check", ["raise", "silent", "ignore"])
def test_the_answer_is_that_of_a_regular_pattern(sh: Shell, gate: Gate, check: str) -> None:
    escape = r"\e[31mred\e[0m"
    for command in (
        f"printf 'one\\n{escape} go'; {gate.pass_}",
        f"printf '{escape} \\xff \\xc3 go'; printf more; {gate.pass_}; true",
        "printf 'one\\r\\ntwo go three'; true",
        "printf 'one go'",
    ):
        if check == "raise" and gate.pass_ in command:
            continue
        gate.open()
        regular = sh.run(command, check=check, expect=["never", " go"])
        sh.run("true")
        gate.open()
        for pattern in (r"(?<!q) go", r"(?!q) go", r"( )go(?<!\1)"):
            irregular = sh.run(command, check=check, expect=["never", pattern])
            sh.run("true")
            gate.open()
            assert irregular.expect_string == pattern
            assert irregular.output == regular.output
            assert regular.exit_code is None or irregular.exit_code == regular.exit_code


def test_the_end_of_a_command_and_of_the_shell_wait_for_the_search(sh: Shell) -> None:
    for number in range(30):
        seen = sh.run(f"printf 'a{number} xx'; (exit 5)", expect=[r"(x)\1"])
        assert (seen.output, seen.exit_code, seen.expect_string) == (f"a{number} ", 5, r"(x)\1")
        seen = sh.run(f"printf 'a{number} xy'; (exit 5)", expect=[r"(x)\1"])
        assert (seen.output, seen.exit_code) == (f"a{number} xy", 5)
    sh.ended = True
    seen = sh.run("printf 'bye xx'; exit 5", expect=[r"(x)\1"])
    assert (seen.output, seen.exit_code, seen.expect_string) == ("bye ", None, r"(x)\1")


def test_a_program_and_its_prompts(sh: Shell) -> None:
    prompt, more = r"(?<![^\n])>>> ", r"(?<![^\n])\.\.\. "
    seen = sh.talk("PYTHON_BASIC_REPL=1 python3 -q", prompt, more)
    assert seen.expect_string == prompt
    seen = sh.talk("print('no >>> here')", prompt, more)
    assert (seen.output, seen.expect_string) == ("no >>> here", prompt)
    assert sh.talk("if True:", prompt, more).expect_string == more
    assert sh.talk("  print(6 * 7)", prompt, more).expect_string == more
    assert sh.talk("", prompt, more).output == "42"
    with pytest.raises(CommandTimeoutError):
        sh.talk("import time; time.sleep(1000)", prompt, timeout=1)
    seen = sh.interrupt(expect=[prompt])
    assert seen.expect_string == prompt
    assert "KeyboardInterrupt" in seen.output
    sh.leave("quit()")


def test_a_timeout_and_a_cancellation(sh: Shell) -> None:
    with pytest.raises(CommandTimeoutError) as caught:
        sh.run("echo one; sleep 1000", timeout=0.5, expect=[r"(x)\1"])
    assert caught.value.output in ("one\n", "")
    sh.interrupt()

    async def give_up() -> None:
        running = asyncio.ensure_future(sh.go("sleep 1000", expect=[r"(x)\1"]))
        await asyncio.sleep(0)
        await cancel(running)

    sh.wait(give_up())
    sh.interrupt()
    sh.gives("echo next", "next\n")


def test_a_limit_of_output(shells: type[Shell]) -> None:
    sh = shells(aio=LocalRuntime(output_limit=1024))
    seen = sh.run("seq 200000; printf 'xx'; seq 10", expect=[r"(x)\1"])
    assert (seen.exit_code, seen.expect_string, seen.output_dropped) == (0, r"(x)\1", 1_288_895 - 1024)
    assert seen.output.endswith("\n199999\n200000\n")


def test_in_a_sandbox(shells: type[Shell]) -> None:
    sh, pattern = shells(aio=runtime_in("here")), r"([a-z])\1"
    seen = sh.run("printf 'up xx'; (exit 3)", expect=[pattern])
    assert (seen.output, seen.exit_code, seen.expect_string) == ("up ", 3, pattern)
    trapped = """bash -c 'trap "printf abcc; sleep 1000" INT; printf xx; while :; do sleep 0.01; done'"""
    seen = sh.run(trapped, check="ignore", expect=[pattern])
    assert (seen.output, seen.exit_code) == ("", None)
    seen = sh.interrupt(timeout=DEADLINE, expect=["never", pattern])
    assert (seen.output, seen.expect_string) == ("ab", pattern)
    sh.interrupt()


# ---- its cost


def test_a_catastrophic_one_does_not_outlast_its_timeout(sh: Shell) -> None:
    """Without one it is given up, as in test_patterns.py, also where the command has ended before."""
    with pytest.raises(CommandTimeoutError, match="timeout after 0.2 seconds"):
        sh.run(f"printf {'x' * 60}w; sleep 1000", timeout=0.2, expect=[CATASTROPHIC])
    sh.interrupt()
    with pytest.raises(CommandTimeoutError, match="simpler"):
        sh.run(f"printf {'x' * 60}w", expect=[CATASTROPHIC])


@pytest.mark.parametrize("pattern", NOT_REGULAR)
def test_much_output_is_searched(sh: Shell, pattern: str) -> None:
    seen = sh.run("seq 50000", expect=[pattern])
    assert (seen.exit_code, len(seen.output)) == (0, 288_894)
