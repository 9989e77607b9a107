"""Prompts: the user may change them as they like, and none is seen in an output."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.session import Shell

PROMPTS = [
    "PS1='> '", "PS1=", "PS1='\\u@\\h:\\w\\$ '", "PS1='(env) '\"$PS1\"", "PS1=$PS1'more'", "PS1='two\nlines $ '",
    "PS1='$(echo run)\\$ '", "PS1='$(exit 9)'", "PS1='\\[\\e[32m\\]green\\[\\e[0m\\] '", "PS1='\\e]0;title\\a$ '",
    "PS1='$PS1 $? \\# \\!'", "unset PS1", "PS1=(a b)", "PS1[1]=x", "export PS1='exported '", "declare -u PS1=loud",
    "declare -n PS1=other", "local_() { local PS1='inner '; :; }; local_", "PS0='zero '", "PS0='$(echo started)'",
    "unset PS0", "PS0+=' behind'", 'PS0="before $PS0"', "PS0=${PS0/7733/7734}", "PS0=$'\\e[1mtwo\\nlines\\a'",
    "set -u; unset PS0", "PS2='more> '", "unset PS2", "PS2=(x)", "PS3='pick '", "PS4='trace '",
    "unset PS1 PS2 PS3 PS4 PS0 PROMPT_COMMAND", "PROMPT_COMMAND=:", "PROMPT_COMMAND=false",
    "PROMPT_COMMAND='(exit 9)'", "PROMPT_COMMAND=", "unset PROMPT_COMMAND", "PROMPT_COMMAND='PS1=\"\\u@\\h \\$ \"'",
    "PROMPT_COMMAND='PS1=x; PS0=y; PS2=z'", "PROMPT_COMMAND='__prompt() { PS1=\"❯ \"; }; __prompt'",
    "PROMPT_COMMAND+=('PS1=last')", "PROMPT_COMMAND=('PS1=a' 'false' 'PS1=b')",
    "unset PROMPT_COMMAND; PROMPT_COMMAND=(true 'PS1=b')", "PROMPT_COMMAND=nosuchcommand-prompt",
    "PROMPT_COMMAND='history -a'", "PROMPT_COMMAND='return'", "PROMPT_COMMAND='echo noise'", "shopt -u promptvars",
    "PROMPT_DIRTRIM=2", "PS1=${PS1@P}; (exit 41)", "eval 'P''S1=${PS1@P}'; (exit 41)",
    "readonly PS1='$ '", "readonly PS1", "readonly PS0='x'", "readonly PS0=$'\\e[1mtwo\\nlines'", "readonly PS2='> '",
    "readonly PROMPT_COMMAND=:", "readonly PS1='a ' PS2='b ' PS0='c ' PROMPT_COMMAND=:", "declare -r PS1=x",
]  # fmt: skip


NOISE = {
    "PROMPT_COMMAND=nosuchcommand-prompt": "bash: nosuchcommand-prompt: command not found\n",
    "PROMPT_COMMAND='return'": "bash: return: [^\n]*\n",
    "PROMPT_COMMAND='echo noise'": "noise\n",
}
"""What a PROMPT_COMMAND itself prints, which may be seen."""


@pytest.mark.parametrize("command", PROMPTS)
def test_prompts_may_be_changed(sh: Shell, command: str) -> None:
    """No prompt, however made, is seen in an output, and none changes an exit code."""
    sh.run(command)
    for text, output, code in (
        ("echo hi", "hi\n", 0),
        ("echo a; (exit 3)", "a\n", 3),
        ("printf x\necho y", "xy\n", 0),
        ("for i in 1 2\ndo\n  echo $i\ndone", "1\n2\n", 0),
        ("false", "", 1),
    ):
        seen = sh.run(text)
        assert re.fullmatch(f"{output}({NOISE.get(command, '')})?", seen.output), (text, seen.output)
        assert seen.exit_code == code
    sh.run("unset PROMPT_COMMAND 2>/dev/null")


@pytest.mark.parametrize("commands", [
    ["PS0=x"], ["readonly PS0=x"], ["PROMPT_COMMAND=PS0=x"], ["readonly PS1=", "PS0=x"], ["readonly PS1= PS0=x"],
    ["PROMPT_COMMAND='PS0=x; PS1=\"$? \"'", "PROMPT_COMMAND+=('PS1=y')"],
    ["PROMPT_COMMAND=(PS1=a PS1=b)", "PROMPT_COMMAND+=(PS1=y)", "PROMPT_COMMAND=(PS1=a PS1=b)", "PS0=x"],
])  # fmt: skip
def test_output_that_begins_as_what_ps0_prints(sh: Shell, commands: list[str]) -> None:
    """What PS0 prints is taken out where it printed it, and not where the session has put PS0 back since."""
    for command in commands:
        sh.run(command)
    for _ in range(2):
        sh.gives(f"printf {'y' * 300}", "y" * 300)
        sh.gives("printf xxy; (exit 3)", "xxy", 3)


def test_venv(sh: Shell, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "venv")], check=True)
    before = sh.out("command -v python3")
    for _ in range(2):
        sh.gives(f"source {tmp_path}/venv/bin/activate", "")
        sh.gives("echo hi", "hi\n")
        sh.gives("command -v python3; echo $VIRTUAL_ENV", f"{tmp_path}/venv/bin/python3\n{tmp_path}/venv\n")
        sh.gives("python3 -c 'import sys; print(sys.prefix)'\nfalse", f"{tmp_path}/venv\n", 1)
        sh.gives("deactivate", "")
        sh.gives("command -v python3", before)
    sh.gives("echo a\necho b", "a\nb\n")


@pytest.mark.parametrize("size", [1025, 5000, 14_000])
@pytest.mark.parametrize("piece", ["x", "\\'", "\u00e4"])
def test_long_last_argument_outlives_a_question(sh: Shell, size: int, piece: str) -> None:
    """The prompts are put back, and `$_` is what it was."""
    sh.run(f'PS1=x; true "{piece * size}"')
    sh.gives('printf %s "$_"', piece * size)
