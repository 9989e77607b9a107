"""Spoofing: nothing that is written, not even a perfect copy of our marks, ends a command or changes its exit code."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from swerex_c.exceptions import SwerexException
from tests.support.session import Gate, Shell
from tests.support.wait import until

ATTACKER = Path(__file__).parents[1] / "support" / "attacker.py"
LEARN = 'A_PS1P="${PS1@P}" A_PS0P="${PS0@P}" A_NUMBER="$(n=\'\\#\'; printf %s "${n@P}")"'


def attack(mode: str, code: int = 99) -> str:
    return f"{LEARN} {shlex.quote(sys.executable)} {ATTACKER} {code} {mode}"


# Marks with the number that the next real one will carry, made by bash itself.
AHEAD = "n='\\#'; n=${n@P}; p=${PS1@P}; for d in -1 0 1 2 3; do printf %s \"${p//$n/$((n+d))}\"; done"


def undisturbed(sh: Shell, command: str) -> str:
    """Run a command between START and END, and return the output, which has both; the exit code is 7."""
    seen = sh.run(f"echo START; {command}; echo END; (exit 7)")
    assert seen.output.startswith("START\n") and seen.output.endswith("END\n")
    assert seen.exit_code == 7
    return str(seen.output)


def test_the_attacker_knows_our_marks(sh: Shell) -> None:
    """The tests below prove something only if the forger has something to forge."""
    forged, with_escape = map(int, sh.out(attack("probe")).split())
    assert forged >= 1
    assert with_escape >= 2


# What is printed between START and END, or alone, and the exit code of the command.
FORGED: dict[str, tuple[str, int]] = {
    **{
        f"in the middle, {mode}, {code}": (f"{{start}}\n{attack(mode, code)}\nsleep 0.1\n{{end}}", 7)
        for mode in ("once", "twice")
        for code in (99, 0, 7)
    },
    **{
        f"as the last output, {code}, {real}": (f"{{start}}; {attack('once', code)}", real)
        for code, real in ((99, 7), (0, 7), (99, 0), (7, 8))
    },
    "as the first output": (f"{attack('once', 0)}; {{end}}", 7),
    # The forger takes its time: whoever believed the mark has long answered.
    "then silence": (f"{{start}}; {AHEAD}; sleep 1.3; {{end}}", 7),
    "with the coming number": (f"{{start}}; {AHEAD}; sleep 0.1; {{end}}", 7),
    # Without a python start in between: bash's own printf of its own expanded prompt.
    **{
        f"plain {text}": (f"{{start}}; printf %s {text}; sleep 0.1; {{end}}", 7)
        for text in (
            '"${PS1@P}"', '"${PS0@P}"', '"${PS1@P}${PS1@P}"', '"${PS0@P}x${PS1@P}"', '"$PS1"', '"${PS1@P}${PS0@P}"',
        )
    },
    **{
        f"on {target}": (f"{{start}}; {{ {AHEAD}; }} {target}; sleep 0.05; {{end}}", 7)
        for target in (">&2", ">/dev/tty", ">/proc/$$/fd/1", '> "$(tty)"')
    },
}  # fmt: skip


@pytest.mark.parametrize("name", FORGED)
def test_perfect_marks_end_nothing(sh: Shell, name: str) -> None:
    forged, code = FORGED[name]
    seen = sh.run(forged.replace("{start}", "echo START").replace("{end}", "echo END") + f"; (exit {code})")
    assert "START\n" in seen.output or "{start}" not in forged
    assert seen.output.endswith("END\n") or "{end}" not in forged
    assert seen.exit_code == code
    sh.gives("echo next", "next\n")


@pytest.mark.parametrize("waiting", [
    "read x", "read -r -p '' x", "read -n 1 x", "read -s x", "IFS= read -r -d '' x", "mapfile -n 1 x",
    "select x in a b; do break; done", "cat", "head -c 1", "sleep 1000",
    "wait_forever() { while :; do :; done; }; wait_forever", "read -u 0 x", "read x </dev/tty", "read -e x",
    "bash --norc --noediting", "sh", "sleep 1000 & wait",
])  # fmt: skip
def test_marks_then_a_wait(sh: Shell, waiting: str) -> None:
    """Bash prints its own prompt with the right numbers, then something that looks like waiting for a command."""
    sh.times_out(f"echo START; {AHEAD}; {waiting}", timeout=0.35)
    sh.interrupt()
    sh.gives('echo "[$x]"', "[]\n")


def test_a_program_that_plays_the_shell(sh: Shell, tmp_path: Path) -> None:
    """It prints perfect marks and reads what comes next, to answer in the shell's place: nothing comes."""
    log = tmp_path / "log"
    sh.times_out(attack(f"then-read {log}", 0), timeout=0.8)
    until(log.exists, "the attacker has not begun to read")
    sh.times_out("echo secret", timeout=0.3)
    sh.interrupt()
    sh.gives("echo next", "next\n")
    assert log.read_bytes() == b""


@pytest.mark.parametrize("during", [True, False], ids=["during a command", "between commands"])
def test_marks_from_the_background(sh: Shell, gate: Gate, tmp_path: Path, during: bool) -> None:
    written = tmp_path / "written"
    sh.run(f"({gate.pass_}; {attack('twice', 99)}; touch {written}) &")
    gate.open()
    if during:
        seen = sh.run(f"echo START; while [[ ! -e {written} ]]; do sleep 0.01; done; echo END; (exit 7)")
        assert "START\n" in seen.output
        assert seen.output.endswith("END\n")
        assert seen.exit_code == 7
    until(written.exists)
    for i in range(4):
        sh.gives(f"echo out{i}; (exit {i})", f"out{i}\n", i)


def test_marks_from_the_background_all_the_time(sh: Shell) -> None:
    """Whatever is written in between: each answer has its own text and its own exit code, never 99."""
    sh.run(f"{attack('for 4', 99)} &")
    for i in range(60):
        command = f"echo '<{i}>'; (exit {i})" if i % 3 else f"echo '<{i}>'; sleep 0.02; (exit {i})"
        seen = sh.run(command)
        assert re.findall(r"<\d+>", seen.output) == [f"<{i}>"]
        assert seen.exit_code == i
    sh.run("kill %1; wait 2>/dev/null; true")
    sh.out("sleep 0.05")


def test_replay_of_recorded_marks(sh: Shell, tmp_path: Path) -> None:
    """Everything that the terminal ever showed, shown again."""
    for i in range(3):
        sh.run(f'printf \'%s\\n\' "${{PS0@P}}out{i}" "${{PS1@P}}" >>{tmp_path}/record; (exit {i})')
    output = undisturbed(sh, f"cat {tmp_path}/record; sleep 0.05; cat {tmp_path}/record")
    for i in range(3):
        assert output.count(f"out{i}\n") == 2


def test_pieces_of_marks(sh: Shell) -> None:
    """A mark cut off at any byte, as the last output, joined with the real one that follows."""
    length = int(sh.out("p=${PS1@P}; echo ${#p}"))
    assert length
    for cut in range(0, length + 1, max(1, length // 24)):
        seen = sh.run(f'p=${{PS1@P}}; printf "text\\n%s" "${{p:0:{cut}}}"; (exit 5)')
        assert seen.output.startswith("text\n")
        assert seen.exit_code == 5
        seen = sh.run(f'p=${{PS1@P}}; printf "%s\\ntext\\n" "${{p:{cut}}}"; (exit 6)')
        assert seen.output.endswith("text\n")
        assert seen.exit_code == 6


DUMPS = [
    "set", "env", "export -p", "declare -p", "declare -p PS1 PS0 PROMPT_COMMAND", "declare -f", "alias", "trap -p",
    "history", "fc -l", "shopt -p; set +o", 'echo "$PS1|$PS0|$PS2|${PROMPT_COMMAND[*]}"', 'echo "${PS1@P}"',
    'echo "${PS1@Q} ${PS1@E} ${PS1@A} ${PS0@P}"', "printf '%q\\n' \"$PS1\"", "printf '%b\\n' \"$PS1\"",
    'echo -e "$PS1"', "cat /proc/$$/environ", "cat /proc/$$/cmdline", "cat /proc/$$/status /proc/$$/stat",
    "cat /proc/self/environ | tr '\\0' '\\n'", "strings -n 8 /proc/$$/environ 2>/dev/null; true",
    'compgen -v | while read -r v; do printf \'%s=%s\\n\' "$v" "${!v}"; done',
    'for v in ${!P*}; do echo "$v=${!v}"; done; for v in PS1 PS0 PS2 PWD; do echo "${!v@P}"; done',
]  # fmt: skip


@pytest.mark.parametrize("command", DUMPS)
def test_the_shells_own_state_may_be_printed(sh: Shell, command: str) -> None:
    for _ in range(2):
        undisturbed(sh, f"{command}; sleep 0.02")
    sh.gives("echo next", "next\n")


@pytest.mark.parametrize("prints", [
    "trap 'printf %s \"${PS1@P}\"' DEBUG", "PROMPT_COMMAND='(exit 77); printf %s \"${PS1@P}\"'",
])  # fmt: skip
def test_marks_before_each_command_or_prompt(sh: Shell, prints: str) -> None:
    """The second one has a code of its own, right before the real one."""
    sh.run(prints)
    for i in range(3):
        seen = sh.run(f"echo text; sleep 0.02; (exit {i})")
        assert seen.output.strip() == "text" if "DEBUG" in prints else seen.output.startswith("text\n")
        assert seen.exit_code == i
    sh.run("trap - DEBUG; unset PROMPT_COMMAND")


def test_garbage_to_every_inherited_fd(sh: Shell, tmp_path: Path) -> None:
    program = tmp_path / "garbage.py"
    program.write_text(
        "import os, random, sys\ncode = int(sys.argv[1])\nr = random.Random(code)\nfor fd in range(256):\n"
        "  try: os.write(fd, r.randbytes(6000))\n  except OSError: pass\nos._exit(code)\n"
    )
    for code in range(10):
        assert sh.run(f"python3 {program} {code}").exit_code == code
        sh.gives("echo next", "next\n")


def test_the_last_words_of_a_shell(sh: Shell) -> None:
    """A shell that prints a perfect mark and dies is dead, not idle."""
    sh.ended = True
    seen = sh.run(f"echo START; {AHEAD}; exec sh -c 'sleep 0.05; exit 9'")
    assert seen.output.startswith("START\n")
    assert seen.exit_code == 9
    assert seen.failure_reason
    with pytest.raises(SwerexException):
        sh.run("echo next")
