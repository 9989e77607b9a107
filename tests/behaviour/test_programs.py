"""Programs: the real ones that agents run, with their prompts, pagers, full screens and hidden passwords."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.harness import needs
from tests.support.needs import Lacking, skip
from tests.support.session import Shell

PROGRAM = "int f(int a) { return a * 2; }\nint main(void) { return f(21) != 42; }"
GDB = r"\(gdb\) "
TALKS: dict[str, tuple[str, str, list[tuple[str, str, str]], str]] = {
    "python": ("python3", ":", [
        ("python3 -q", ">>> ", ".*"), ("print(6 * 7)", ">>> ", "42"), ("x = [i for i in range(3)]", ">>> ", ""),
        ("print('a\\n b')", ">>> ", "a\n b"), ("def f(a):", r"\.\.\. ", ".*"), ("    return a + 1", r"\.\.\. ", ".*"),
        ("", ">>> ", ".*"), ("f(41)", ">>> ", "42"), ("1/0", ">>> ", ".*ZeroDivisionError.*"),
    ], "quit()"),
    "node": ("node", "export NODE_NO_READLINE=1 TERM=dumb", [
        ("node -i", "> ", ".*"), ("6 * 7", "> ", ".*42.*"),
    ], ".exit"),
    "sqlite3": ("sqlite3", "sqlite3 db 'create table t(a); insert into t values (1), (2)'", [
        ("sqlite3 -list -noheader -interactive db", "sqlite> ", ".*"),
        ("select a from t order by a;", "sqlite> ", ".*1\n2.*"),
        ("select a", r"\.\.\.> ", ".*"), ("from t where a = 2;", "sqlite> ", ".*2"),
    ], ".quit"),
    # prompt_toolkit asks for the cursor position and draws; the terminal is whole afterwards.
    "ipython": (sys.executable, "export TERM=xterm", [
        (f"{sys.executable} -m IPython --no-banner --no-confirm-exit", r"In \[", ".*"),
    ], "exit"),
    "gdb": ("gdb gcc", f"echo '{PROGRAM}' | gcc -g -o p -xc -", [
        ("gdb -q -nx ./p", GDB, ".*"), ("set confirm off", GDB, ""), ("break f", GDB, "Breakpoint 1.*"),
        ("run", GDB, r".*Breakpoint 1, f \(a=21\).*"), ("print a", GDB, r"\$1 = 21"),
        ("continue", GDB, ".*exited normally.*"),
    ], "quit"),
    # A shell in the shell is an interactive program: nothing ends until it does.
    **{
        nested: (nested.split()[0], ":", [
            (nested, "[#$] ", ".*"), ("PS1='nested> '; echo in $((1+1))", "nested> ", ".*in 2"),
            ('echo "<$level>"', "nested> ", ".*<>"),
        ], "exit")
        for nested in ("bash --norc", "sh", "su -s /bin/sh root")
    },
}  # fmt: skip
"""Programs, what comes before, lines with the prompt behind them and what they print (a pattern), the last line."""


@pytest.mark.parametrize("name", TALKS)
def test_a_talk(sh: Shell, tmp_path: Path, name: str) -> None:
    programs, before, lines, last = TALKS[name]
    for program in programs.split():
        needs(program)
    if name == "ipython":
        pytest.importorskip("IPython")
    if "su" in programs.split() and os.getuid():
        skip(Lacking("root, and su would ask for a password"))
    sh.out(f"cd {tmp_path}; level=outer; {before}")
    for line, prompt, output in lines:
        seen = sh.talk(line, prompt).output
        if name == "gdb" and ("ptrace" in seen or "not permitted" in seen):
            pytest.skip("this machine has no ptrace")
        assert re.fullmatch(output, seen, re.DOTALL), (line, seen)
    sh.leave(last)
    sh.gives("echo $level", "outer\n")


def repository(path: Path) -> None:
    """Make a repository with two commits, the second large."""
    script = """
        git init -q -b main . && git config user.email a@example.org && git config user.name A
        echo one >f && git add f && git commit -q -m first
        seq 400 >f && git add f && git commit -q -m second
    """
    subprocess.run(["bash", "-c", script], cwd=path, check=True)


PASSWORD = [
    ("read -s", "read -s -p 'Password: ' pw; echo; echo \"length ${#pw}\""),
    ("getpass", "python3 -c 'import getpass; print(\"length\", len(getpass.getpass()))'"),
    ("/dev/tty", 'sh -c \'printf "Password: " >/dev/tty; stty -echo </dev/tty; read pw </dev/tty; '
                 "stty echo </dev/tty; echo length ${#pw}' </dev/null"),
]  # fmt: skip

_TMUX = """export TERM=xterm; tmux -S s -f /dev/null new-session -d 'echo attached; sleep 1000'
server=$(tmux -S s display -p '#{pid}')"""

WAIT = [
    "read x", "cat", 'read -r x; echo "got $x"', "python3 -c 'input()'", "head -1", "read -s x",
    'while read -r x; do echo "got $x"; done', "select x in a b; do echo $x; done", "python3 -q", "bash",
    "bash --norc", "sh", "env -i bash --noprofile --norc -i",
]  # fmt: skip

LEFT_OPEN: dict[str, tuple[str, str, str, str]] = {
    **{waiting: ("", "", f"echo begun; {waiting}", "begun") for waiting in WAIT},
    "bc": ("bc", "", "echo begun; bc -q", "begun"),
    "less": ("less", "export TERM=dumb", "less long", "not fully functional"),
    # `git diff` opens less, which waits for a key. That is a command that has not ended.
    "git and its pager": ("git less", "unset GIT_PAGER PAGER; export LESS= TERM=dumb", "git diff HEAD~1",
                          "not fully functional"),
    "git and its editor": ("git vim", "export EDITOR=vim TERM=xterm", "git commit --allow-empty", "COMMIT_EDITMSG"),
    "vim": ("vim", "export TERM=xterm", "vim -u NONE new", '"new"'),
    "vim on a dumb terminal": ("vim", "export TERM=dumb", "vim -u NONE new", '"new"'),
    "top": ("top", "export TERM=xterm", "top", "PID"),
    "tmux": ("tmux", _TMUX, "tmux -S s attach", "attached"),
    **{name: ("", "", command, "Password: ") for name, command in PASSWORD},
}  # fmt: skip
"""Programs, what comes before, the command, and what it has printed when it is open."""


@pytest.mark.parametrize("name", LEFT_OPEN)
def test_a_program_that_is_left_open(sh: Shell, tmp_path: Path, name: str) -> None:
    """The next command does not answer it, and an interrupt ends it."""
    programs, before, command, ready = LEFT_OPEN[name]
    for program in programs.split():
        needs(program)
    if "git" in programs:
        repository(tmp_path)
    (tmp_path / "long").write_text("".join(f"line {i}\n" for i in range(500)))
    sh.out(f"cd {tmp_path}; {before}")
    sh.begin(command, ready)
    error = sh.times_out("echo secret-text", timeout=0.3)
    assert "secret-text" not in error.output + sh.interrupt().output
    if name == "tmux":
        sh.run("kill -9 $server")  # it may be stuck in a read of the terminal, whose modes are no longer its own
    sh.gives('echo "[$x]"', "[]\n")
    for i in range(2):
        sh.gives(f"echo next{i}", f"next{i}\n")
    sh.gives("stty -a | grep -c -- '-icanon'", "0\n", 1)
    if "git" in programs:
        sh.gives("git log -1 --format=%s | cat", "second\n")


def test_vim_in_batch(sh: Shell, tmp_path: Path) -> None:
    needs("vim")
    (tmp_path / "f").write_text("one\ntwo\n")
    sh.run(f"vim -u NONE -es -c '%s/two/2!/' -c wq {tmp_path}/f")
    assert (tmp_path / "f").read_text() == "one\n2!\n"
    sh.run(f"vim -u NONE -c 's/one/1/' -c wq {tmp_path}/f")
    assert (tmp_path / "f").read_text() == "1\n2!\n"
    sh.gives("echo next", "next\n")


HIDDEN: dict[str, tuple[str, list[tuple[str, str]], str]] = {
    **{name: ("sh", [(command, "Password: ")], "length") for name, command in PASSWORD},
    # Its prompt goes to /dev/tty.
    "git": ("git", [
        ("GIT_ASKPASS= SSH_ASKPASS= git credential fill <<< $'protocol=https\\nhost=a.b\\n'", "Username for .*: "),
        ("somebody", "Password for .*: "),
    ], "username=somebody"),
    "ssh-keygen": ("ssh-keygen", [
        ("ssh-keygen -q -t ed25519 -f key && ls key", "nter passphrase.*: "), ("hunter2!\\x", "again: "),
    ], "key"),
}  # fmt: skip
"""The program, lines with the prompt behind them, and what is printed behind the password."""


@pytest.mark.parametrize("name", HIDDEN)
def test_passwords_without_echo(sh: Shell, tmp_path: Path, name: str) -> None:
    program, lines, behind = HIDDEN[name]
    needs(program)
    sh.out(f"cd {tmp_path}")
    for line, prompt in lines:
        assert "hunter2" not in sh.talk(line, prompt).output
    seen = sh.leave("hunter2!\\x")
    assert behind in seen.output
    assert "hunter2" not in seen.output.replace("password=hunter2", "")  # which git prints as its result
    sh.gives("echo next", "next\n")


def test_script_and_nested_terminals(sh: Shell) -> None:
    needs("script")
    assert "inside" in sh.out("script -qec 'echo inside' /dev/null </dev/null")
    sh.gives("echo next", "next\n")
