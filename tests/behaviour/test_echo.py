"""Echo: in all modes no answer holds what was typed for the shell, and programs find the user's modes."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.support.harness import busy_machine
from tests.support.session import Session, Shell

STATES = {
    "echo": ["stty echo"],
    "sane": ["stty sane"],
    "raw echo": ["stty raw echo"],
    "everything": ["stty echo echonl echoe echok echoctl parmrk iuclc -iexten"],
    "stderr closed": ["stty echo", "exec 2>/dev/null"],
    "closed before": ["exec 2>/dev/null", "stty echo"],
    "readonly PS0": ["stty echo", "readonly PS0=x"],
    "empty PS0": ["readonly PS0=", "stty echo"],
    "readonly PS1": ["stty echo", "readonly PS1='$ '"],
    "job": ["stty echo", "sleep 1000 &"],
    "readline": ["set -o emacs", "stty echo"],
}


@pytest.mark.parametrize("state", STATES)
def test_nothing_typed_is_output(sh: Shell, state: str) -> None:
    for command in STATES[state]:
        sh.run(command)
    for command in ("", " ", "# comment", "\n\n# c\n"):
        sh.gives(command, "")
    sh.gives("printf hi", "hi")
    sh.gives("echo ABC\n(exit 3)", "ABC\n", 3)
    sh.gives("printf '\\001\x01\x02\t|'", "\x01\x01\x02\t|")
    sh.gives("cat <<'E'\n" + "x" * 3000 + "\n" + "y" * 3000 + "\nE", "x" * 3000 + "\n" + "y" * 3000 + "\n")
    sh.gives("alias say='echo al'\nsay b\n: " + "z" * 9000, "al b\n")
    sh.gives("(exit 4); # \\", "", 4)
    sh.gives("stty -a | grep -c -- ' echo '", "1\n")
    assert sh.run("printf abc; sh -c 'kill -9 $$'; (exit 5)").exit_code == 5
    sh.synced()


def test_every_length_of_a_line(sh: Shell) -> None:
    sh.run("stty echo")
    for length in (*range(1015, 1035), *range(2040, 2056), *range(4080, 4100)):
        text = "q" * (length - len("echo "))
        sh.gives(f"echo {text}", text + "\n")


def test_a_pattern_is_not_found_in_the_command_itself(sh: Shell) -> None:
    for setup in ("true", "stty echo", "readonly PS0=", "exec 2>/dev/null"):
        sh.run(setup)
        seen = sh.run("echo first; : PAT; echo second; echo PAT; read x", expect=["PAT"], check="ignore")
        assert (seen.output, seen.expect_string) == ("first\nsecond\n", "PAT")
        assert sh.run("over", is_interactive_command=True).exit_code == 0


def test_lines_for_programs_are_echoed(sh: Shell) -> None:
    """What is typed to a program shows, as at a terminal; what is typed to the shell does not."""
    sh.run("stty echo")
    seen = sh.run("read -p name: x", expect=["name:"], is_interactive_command=True)
    assert seen.output == ""
    seen = sh.run("somebody", expect=["body"], is_interactive_command=True)
    assert seen.output == "some"
    sh.gives("echo $x", "somebody\n")
    sh.synced()


def test_modes_are_the_users(sh: Shell) -> None:
    """A program that changes one mode keeps the others: it has found those that the user has set."""
    sh.run("stty echo -echoe; stty -ixon")
    for _ in range(20):
        words = "stty cols 90; stty -a | tr ' ;' '\\n\\n' | grep -xe echo -e -ixon -e -echoe | sort"
        sh.gives(words, "-echoe\n-ixon\necho\n")
    sh.run("stty -echo")
    sh.gives("stty -a | grep -c -- ' -echo '", "1\n")
    sh.synced()


def test_many_sessions_on_a_busy_machine(sh: Shell) -> None:
    """The echo and the mark that begins the output come from two sides, and either may be first there."""
    chance = random.Random(5)

    async def one(number: int) -> None:
        session = Session(sh.aio, f"echo{number}")
        await session.create()
        await session.run(f"stty {chance.choice(['echo', 'sane', 'raw echo'])}")
        for i in range(25):
            text = f"{number}.{i}"
            command, output = chance.choice(
                [
                    (f"printf {text}", text),
                    (f"# {text}", ""),
                    (f"echo {text}\ntrue", f"{text}\n"),
                    (f"cat <<E\n{text}\n{'x' * 5000}\nE", f"{text}\n{'x' * 5000}\n"),
                ]
            )
            await session.gives(command, output)

    async def all_of_them() -> None:
        await asyncio.gather(*map(one, range(24)))

    with busy_machine():
        sh.wait(all_of_them())
