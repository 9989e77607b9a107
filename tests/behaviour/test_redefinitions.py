"""Shells in which words that commands are typed and asked for by mean something else."""

from __future__ import annotations

import pytest

from tests.support.session import Shell


@pytest.mark.parametrize("spoils", [
    ("PROMPT_COMMAND='(exit 9)'", "trap : CHLD", "PS1=x"), ("alias '{'='echo BAD'", "PS1=x"),
    ("alias case='echo BAD'", "PS1=x"), ("readonly PS1='$ '", "set -e"),
    ("readonly PS0=x PS1='$ ' PS2", "set -e"), ("readonly PROMPT_COMMAND='PS1=x'", "set -e"),
    ("enable -n eval", "PS1=x"), ("eval() { echo BAD; }", "PS1=x"), ("alias eval='echo BAD'", "PS1=x"),
    ("alias test='echo BAD' printf='echo BAD'", "function test { echo BAD; }", "PS1=x"),
    ("readonly PS1='$ '", "alias '{'='echo BAD'"), ("PROMPT_COMMAND='PS1=x'", "BASH_ALIASES[{]='echo BAD #'"),
    ("alias builtin='echo BAD'",), ("enable -n test", "readonly PS1='$ '"), ("exec 0</dev/tty", "PS1="),
    ("exec 0</dev/tty", "PROMPT_COMMAND='PS1=x'"),
    ("exec 2>&-", "unset PROMPT_COMMAND; readonly PS2='$ '", "exec 2>&1"),
    ("readonly PS1='$ '", "set -k", "set -o posix", "exec 2>&1"),
])  # fmt: skip
def test_answers_stay_right(sh: Shell, spoils: tuple[str, ...]) -> None:
    for command in spoils:
        sh.gives(command, "")
    sh.gives("echo a\necho b", "a\nb\n")
    assert sh.run("cat <<E\na").output.endswith("\na\n")
    sh.gives("echo a\\", "a\\\n")
    sh.gives("x=3\nfor i in 1 2; do\n  x=$((x + i))\ndone\necho $x", "6\n")
    sh.gives("(exit 3) || :\n(exit 4) || x=$?; echo $x", "4\n")
    sh.gives(": " + "x" * 9000 + "\necho long", "long\n")
    sh.run("set +e; trap - CHLD; unalias -a; unset -f eval test; PROMPT_COMMAND=")


def test_lines_end_together_in_a_shell_without_eval(sh: Shell) -> None:
    """Also if they are sourced: a trap on SIGCHLD forbids a group, or one is long and the terminal elsewhere."""
    sh.run("set -u; enable -n eval")
    for before, after in (":", ""), ("trap : CHLD", ""), (":", "x" * 5000):
        sh.run(before)
        sh.gives(f'echo "$nope"\n: {after}', "bash: nope: unbound variable\n", 1)


def test_a_trap_runs_while_the_shell_is_asked(sh: Shell) -> None:
    """Bash loses a line that it reads in several parts, when a trap on SIGCHLD runs in between."""
    sh.run("trap : CHLD; exec 2>/dev/null")
    for number in range(60):
        sh.gives(f"sleep 0.00{number % 8} &", "")


def test_a_trap_runs_while_a_command_is_read(sh: Shell) -> None:
    """Bash forgets what it has of a line or a word then, and knows no reserved words."""
    sh.run("set +m; trap : CHLD")
    for size in (10, 2000, 20000) * 10:
        sh.run(" ".join(f"sleep 0.00{n} &" for n in range(8)))
        sh.gives(f"echo {'x' * size}", "x" * size + "\n")
        sh.gives(f"if :; then\necho {'x' * size}\nfi; (exit 7)", "x" * size + "\n", 7)


def test_a_trap_runs_while_a_shell_without_eval_reads(sh: Shell) -> None:
    """The end of the program that prints a text for `source` may be the child's end that the trap is due for."""
    sh.run("trap : CHLD; enable -n eval")
    for _ in range(10):
        sh.gives("echo a\nb=2", "a\n")
        sh.gives(f": {'x' * 20000}\necho end", "end\n")


@pytest.mark.parametrize("mode", ["emacs", "vi"])
def test_a_newline_that_is_bound(sh: Shell, mode: str) -> None:
    sh.run("bind -x '\"\\C-j\": echo BAD'")
    sh.gives(f"set -o {mode}", "")
    sh.gives("echo ok; (exit 3)", "ok\n", 3)
