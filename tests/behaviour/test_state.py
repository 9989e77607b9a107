"""State: what one command leaves behind, the next one finds; and whatever it leaves behind, the session works on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from swerex_c.exceptions import SwerexException
from tests.support.harness import no_signals
from tests.support.session import Shell
from tests.support.wait import quicker_than, until

Steps = list[tuple[str, str | None, int]]
"""Commands, each with its output (None: any) and its exit code."""

_LONG, _CONTROL = "x" * 6000, "'\x03\x1b'"  # which a terminal cannot carry
_GOES_ON = [("echo a\necho b", "a\nb\n", 0), ("echo hi; (exit 3)", "hi\n", 3)]

STEPS: dict[str, Steps] = {
    # At a terminal an empty line or a comment leaves `$?` alone; the observation of it is 0 all the same.
    "nothing keeps the status": [
        ("(exit 7)", "", 7),
        *((nothing, "", 0) for nothing in ("", "\n\n", "# comment", "  # a\n# b")),
        ("echo $?", "7\n", 0),
    ],
    "pipestatus": [("false | true | (exit 3)", "", 3), ("echo ${PIPESTATUS[@]}", "1 0 3\n", 0)],
    "pipestatus of lines": [("true\n(exit 5) | false | true\n", "", 0), ("echo ${PIPESTATUS[@]}", "5 1 0\n", 0)],
    **{
        f"pipestatus that cannot be typed: {name}": [
            (f": {extra}; false | true | (exit 3)", "", 3),
            ("echo ${PIPESTATUS[@]}", "1 0 3\n", 0),
        ]
        for name, extra in (("long", _LONG), ("control", _CONTROL))
    },
    "pipestatus of a long pipeline outlives a question": [
        ("PS1=x; " + "true | " * 62 + "(exit 7) | false", "", 1),
        ('echo "${PIPESTATUS[@]}"', "0 " * 62 + "7 1\n", 0),
    ],
    "last argument": [("echo a b last", "a b last\n", 0), ("echo $_", "last\n", 0)],
    "last argument of lines": [("true\necho two lines", "two lines\n", 0), ("echo $_", "lines\n", 0)],
    "last argument of what fails": [("echo fails; false nope", "fails\n", 1), ("echo $_", "nope\n", 0)],
    **{
        f"last argument that cannot be typed: {name}": [
            (f": {extra}; echo a last", "a last\n", 0),
            ("echo $_", "last\n", 0),
        ]
        for name, extra in (("long", _LONG), ("control", _CONTROL))
    },
    "readonly variable": [
        ("readonly R=5", "", 0),
        ("R=6; echo not reached", "bash: R: readonly variable\n", 1),
        ("echo $R", "5\n", 0),
    ],
    "trace": [
        ("set -x", "", 0), ("echo hi", "+ echo hi\nhi\n", 0), ("x=1; false", "+ x=1\n+ false\n", 1),
        ("echo $?", "+ echo 1\n1\n", 0), ("echo a\necho b", "+ echo a\na\n+ echo b\nb\n", 0),
        ("PS4='TRACE '", "+ PS4='TRACE '\n", 0), ("echo hi", "TRACE echo hi\nhi\n", 0),
        ("set +x", "TRACE set +x\n", 0), ("echo hi", "hi\n", 0),
    ],
    "noexec means nothing at a prompt": [("set -n", "", 0), ("set -o noexec", "", 0), *_GOES_ON],
    "posix": [("set -o posix", "", 0), *_GOES_ON, ("echo '!' \"a!b\"", "! a!b\n", 0), ("set +o posix", "", 0)],
    "pipefail and errtrace": [("set -o pipefail -E -T", "", 0), ("(exit 3) | true", "", 3), *_GOES_ON],
    "errexit that does not strike": [
        ("set -e", "", 0), ("true; echo a | cat; if false; then :; fi", "a\n", 0),
        ("false || echo b\n[[ a == b ]] || echo c", "b\nc\n", 0), ("echo $?", "0\n", 0), ("set +e", "", 0),
        ("false", "", 1),
    ],
    "nounset": [
        ("set -u", "", 0),
        ("echo a; echo $no_such_variable; echo b", "a\nbash: no_such_variable: unbound variable\n", 1),
        ("echo still ${x-here}", "still here\n", 0),
        ("echo one\necho two", "one\ntwo\n", 0),
        ("echo 'a\x01b' | wc -c; : " + "z" * 5000, "4\n", 0),
        ("set +u", "", 0),
    ],
    "debug trap": [
        ("trap 'echo \"D:$BASH_COMMAND\"' DEBUG", "", 0), ("echo hi", "D:echo hi\nhi\n", 0),
        ("false", "D:false\n", 1), ("echo $?", "D:echo $?\n1\n", 0),
        ("echo a\necho b", "D:echo a\na\nD:echo b\nb\n", 0), ("trap - DEBUG", "D:trap - DEBUG\n", 0),
        ("echo hi", "hi\n", 0),
    ],
    "debug trap that counts": [
        ("n=0; trap '((++n))' DEBUG", "", 0),
        *((command, "", 0) for command in ("true", "true; true", "true\ntrue\ntrue")),
        ("echo $n", "7\n", 0),
    ],
    "failing debug trap": [("trap false DEBUG", "", 0), ("true", "", 0), *_GOES_ON, ("trap - DEBUG", "", 0)],
    "err trap": [
        ("trap 'echo \"E:$?\"' ERR", "", 0), ("false", "E:1\n", 1), ("echo $?", "1\n", 0),
        ("(exit 4); echo next", "E:4\nnext\n", 0), ("echo a\n(exit 6)", "a\nE:6\n", 6), ("trap - ERR", "", 0),
    ],
    "exit trap of a subshell": [("(trap 'echo sub' EXIT; echo in)", "in\nsub\n", 0)],
    # A script that saves PS1 and puts it back (activate does) finds what it saved.
    "prompt that is put back": [("old=$PS1; PS1='mine '", "", 0), *_GOES_ON, ("PS1=$old", "", 0), *_GOES_ON],
    "bytes that the terminal marks": [
        ("stty parmrk", None, 0),
        ("printf %s '\udcff' | od -An -tx1", " ff\n", 0),
        ("cat <<'E' | od -An -tx1\n\udcff\nE", " ff 0a\n", 0),
    ],
    "stderr to stdout": [("exec 2>&1", "", 0), ("echo hi; echo err >&2", "hi\nerr\n", 0)],
    "input of a group": [
        ("while read -r a b; do echo $b; done <<< $'1 x\\n2 y'; { read l; echo [$l]; } </dev/null", "x\ny\n[]\n", 0)
    ],
    # Nothing of ours sits behind an fd of the shell that text could spoil.
    "junk in all descriptors": [
        ("for f in /proc/$$/fd/*; do n=${f##*/}; [ $n -gt 2 ] && { echo junk >&$n; } 2>/dev/null; done; true", None, 0),
        *_GOES_ON,
    ],
    "other terminals": [
        step
        for term in ("xterm-256color", "vt100", "", "nonsense")
        for step in ((f"export TERM='{term}'", "", 0), ('echo "$TERM"', f"{term}\n", 0), *_GOES_ON)
    ],
    "extdebug": [
        ("shopt -s extdebug; trap 'true' DEBUG", "", 0),
        *_GOES_ON,
        ("shopt -u extdebug; trap - DEBUG", "", 0),
    ],
    "extdebug that skips commands": [
        ("shopt -s extdebug; trap '[[ $BASH_COMMAND != *skipme* ]]' DEBUG", "", 0),
        ("echo one; echo skipme; echo two", "one\ntwo\n", 0),
        ("trap - DEBUG; shopt -u extdebug", "", 0),
        ("shopt -s extdebug; trap '[[ $BASH_COMMAND == echo* || $BASH_COMMAND == trap* ]]' DEBUG", "", 0),
        ("echo hi", "hi\n", 0),
        ("true; echo hi", "hi\n", 0),
        ("trap - DEBUG; shopt -u extdebug", "", 0),
        ("shopt -u extdebug", "", 0),
    ],
    "disabled builtins": [
        ("enable -n echo printf eval source . builtin command export trap test [ true :", "", 0),
        *((f"(exit {code})", "", code) for code in range(3)),
        ("enable echo printf eval source . builtin command export trap test [ true :", "", 0),
    ],
    "restricted mode": [("set -r", "", 0), *_GOES_ON, ("cd /", None, 1)],
    "field separators and locale": [
        ("IFS=; LC_ALL=C; LANG=C; export LC_ALL LANG", "", 0),
        ("echo a b 'ä'; (exit 2)", "a b ä\n", 2),
        ("IFS=0123456789abcdef", "", 0),
        ("echo hi; (exit 21)", "hi\n", 21),
        *_GOES_ON,
        ("IFS=$' \\t\\n'", "", 0),
    ],
    "glob options": [
        ("set -f -C -k -a -b -h; shopt -s nullglob failglob dotglob nocaseglob", "", 0),
        *_GOES_ON,
        ("set +f +C +k +a +b", "", 0),
    ],
    "an interactive shell of the user's own": [
        ("[[ $- == *i* ]] && echo interactive", "interactive\n", 0),
        ("echo $0", "bash\n", 0),
        ("echo $BASH_SUBSHELL $SHLVL | cut -d' ' -f1", "0\n", 0),
        ("jobs; alias; declare -F", "", 0),
    ],
    # Bash 5.2 crashes on `set -o emacs` inside some forms of delivery.
    "line editing turned on inside a longer command": [
        ("set -o emacs\necho a\nset +o emacs\necho b", "a\nb\n", 0),
        (f": {_LONG}; set -o vi; echo a; set +o vi; echo b", "a\nb\n", 0),
    ],
    "all other descriptors closed": 2
    * [
        ('for ((i = 3; i < 256; i++)); do eval "exec $i>&-"; done; true', "", 0),
        ("echo hi", "hi\n", 0),
        ("cat <<E\nx\nE\n(exit 4)", "x\n", 4),
        (f"echo <(:) | grep -c fd; echo 'ctl\x01' | wc -c; : {_LONG}", "1\n5\n", 0),
        ("cat <(echo sub)", "sub\n", 0),
    ],
    "logout is no exit": [("logout", "bash: logout: not login shell: use `exit'\n", 1), *_GOES_ON],
    "a program that execs itself": [
        ("(exec echo replaced)", "replaced\n", 0),
        ("bash -c 'exec sh -c \"echo twice\"'", "twice\n", 0),
    ],
    "random numbers are the shell's": [
        ("RANDOM=42; a=$RANDOM", "", 0),
        ("RANDOM=42", "", 0),
        ("b=$RANDOM; [[ $a == $b ]] && echo same", "same\n", 0),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_steps(sh: Shell, name: str) -> None:
    for command, output, code in STEPS[name]:
        seen = sh.run(command)
        assert (output is None or seen.output == output, seen.exit_code) == (True, code), (command[:200], seen)


def test_exit_status_in_every_way_in(sh: Shell) -> None:
    """A long command, one of several lines and one with control characters find `$?` like a short one."""
    ways = ("{0}; : " + "x" * 6000, "{0}\n:", "{0}; : 'a\x03\x1bb'", "{{\n{0}\n}}")
    for way in ways:
        sh.run("(exit 42)")
        seen = sh.run(way.format("echo $?"))
        assert (seen.output, seen.exit_code) == ("42\n", 0), way[:80]
        seen = sh.run(
            "\n".join(reversed(way.format("(exit 23)").split("\n"))) if way == ways[1] else way.format("(exit 23)")
        )
        sh.gives("echo $?", f"{seen.exit_code}\n")


def test_trace_of_a_command_that_cannot_be_typed(sh: Shell) -> None:
    sh.run("set -x")
    seen = sh.run(f"v='{'y' * 6000}\x1b'\necho ${{#v}}")
    assert seen.exit_code == 0
    assert seen.output.endswith("+ echo 6001\n6001\n")
    assert "eval" not in seen.output
    assert "builtin" not in seen.output
    sh.gives("set +x", "+ set +x\n")


def test_verbose(sh: Shell) -> None:
    """`set -v` shows the text of a command once at most, and never anything of ours."""
    sh.run("set -v")
    assert sh.out("echo hi") in ("hi\n", "echo hi\nhi\n")
    assert sh.run("false").exit_code == 1
    assert sh.out("echo $?") in ("1\n", "echo $?\n1\n")
    seen = sh.out("echo a\necho b")
    assert seen.replace("echo a\n", "").replace("echo b\n", "") == "a\nb\n"
    sh.run("set +v")
    sh.gives("echo hi", "hi\n")


def test_errexit(sh: Shell) -> None:
    """`set -e; false` ends the shell, as by hand: the command is answered, the next one is told why."""
    sh.ended = True
    sh.out("set -euo pipefail")
    sh.gives("echo fine; false || true; ! true", "fine\n", 1)
    seen = sh.run("echo before; false; echo after")
    assert seen.output.startswith("before\n")
    assert "after" not in seen.output
    assert seen.exit_code == 1
    assert seen.failure_reason
    with pytest.raises(SwerexException):
        sh.run("echo hi")


def test_exit_trap(sh: Shell) -> None:
    sh.ended = True
    sh.gives("trap 'echo bye' EXIT", "")
    sh.gives("(exit 1)", "", 1)
    seen = sh.run("echo going; exit 5")
    assert seen.output.startswith("going\n")
    assert seen.output.endswith("bye\n")
    assert seen.exit_code == 5


def test_return_trap(sh: Shell, tmp_path: Path) -> None:
    (tmp_path / "lib.sh").write_text("echo sourced\n")
    sh.out("f() { trap 'echo R' RETURN; echo in; }")
    sh.gives("f", "in\nR\n")
    sh.out("trap 'echo R' RETURN")
    sh.gives(f". {tmp_path}/lib.sh", "sourced\nR\n")
    sh.gives("echo plain\necho two", "plain\ntwo\n")
    sh.out("trap - RETURN")


def test_int_trap(sh: Shell) -> None:
    """A trap on INT, and even an ignored INT, takes nothing of the interrupt's force."""
    for trap in ("echo GOT", ""):
        sh.out(f"trap '{trap}' INT")
        sh.begin("echo begun; sleep 1000", "begun")
        sh.interrupt()
        sh.gives("echo next", "next\n")
    sh.out("trap - INT")


STTY = (
    "raw, -icanon, cbreak, -isig, -icrnl, inlcr, igncr, tostop, -opost, opost onlcr, olcuc, iuclc, "
    "istrip, cs7, parmrk, echo extproc, -ixon, intr ^A, eof x, eol e, erase a, kill h, lnext o, "
    "werase i, stop c start q, nl, evenp, ixoff, -cread, noflsh, flusho, extproc, litout"
).split(", ")


@pytest.mark.parametrize("mode", STTY)
def test_stty_whatever(sh: Shell, mode: str) -> None:
    """Letters may change (`olcuc` is asked for), synchronisation may not."""
    sh.run(f"stty {mode}")
    for i in range(3):
        seen = sh.run(f"echo hi{i}; (exit {i})")
        assert seen.output.lower().replace("\r", "") == f"hi{i}\n"
        assert seen.exit_code == i
    sh.run("stty sane")
    sh.gives("echo hi", "hi\n")


def test_stty_that_the_user_asked_for_stays(sh: Shell) -> None:
    sh.out("stty cols 132 rows 50")
    sh.gives("stty size", "50 132\n")
    sh.gives("echo a\nstty size", "a\n50 132\n")
    sh.gives("stty opost onlcr; echo x; (exit 3)", "x\n", 3)
    sh.times_out("cat", timeout=0.2)
    sh.interrupt()
    sh.gives("stty size", "50 132\n")


@pytest.mark.parametrize(
    "setting",
    [
        "tty.setraw(0)",
        "tty.setcbreak(0)",
        "a[3] |= termios.ECHO; termios.tcsetattr(0, 0, a)",
        "a[3] &= ~termios.ISIG; a[1] |= termios.OPOST; a[0] |= termios.INLCR; termios.tcsetattr(0, 0, a)",
        "a[6][termios.VEOF] = b'x'; a[6][termios.VEOL] = b'e'; termios.tcsetattr(0, 0, a)",
    ],
)
@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "os._exit(137)"])
def test_a_program_that_dies_without_restoring_the_terminal(sh: Shell, tmp_path: Path, setting: str, end: str) -> None:
    program = tmp_path / "spoil.py"
    program.write_text(f"import os, termios, tty\na = termios.tcgetattr(0)\n{setting}\n{end}\n")
    assert sh.run(f"python3 {program}").exit_code == 137
    for i in range(2):
        sh.gives(f"echo hi{i}\n(exit {i})", f"hi{i}\n", i)
    sh.times_out("cat", timeout=0.2)
    sh.interrupt()


def test_nonblocking_terminal(sh: Shell) -> None:
    """node and others leave O_NONBLOCK on the shared open file; bash must still get its next command."""
    program = "import os; [os.set_blocking(i, False) for i in (0, 1, 2)]"
    sh.out(f"python3 -c '{program}'")
    sh.gives("echo hi", "hi\n")
    sh.gives("seq 100000 | tail -1", "100000\n")
    sh.gives("seq 50000", "".join(f"{i}\n" for i in range(1, 50001)))


def test_exec_stdout_to_a_file(sh: Shell, tmp_path: Path) -> None:
    log = tmp_path / "log"
    sh.gives(f"exec >{log}", "")
    sh.gives("echo into", "")
    sh.gives("(exit 4)", "", 4)
    sh.gives("echo a\necho b", "")
    sh.gives("echo err >&2", "err\n")
    sh.gives("exec >/dev/tty", "")
    sh.gives("echo back", "back\n")
    assert log.read_text() == "into\na\nb\n"


@pytest.mark.parametrize("target", ["/dev/null", "FILE", "&-"])
def test_exec_stderr_away(sh: Shell, tmp_path: Path, target: str) -> None:
    log = tmp_path / "log"
    sh.gives(f"exec 2>{target.replace('FILE', str(log))}", "")
    sh.gives("echo hi", "hi\n")
    sh.gives("echo a; (exit 3)", "a\n", 3)
    sh.gives("cd /nonexistent-x", "", 1)
    sh.gives("echo a\necho b", "a\nb\n")
    sh.gives("exec 2>/dev/tty", "")
    sh.gives("cd /nonexistent-x", "bash: cd: /nonexistent-x: No such file or directory\n", 1)
    if target == "FILE":
        assert log.read_text().count("bash: cd: /nonexistent-x: No such file or directory\n") == 1


def test_exec_everything_away(sh: Shell, tmp_path: Path) -> None:
    sh.gives(f"exec >{tmp_path}/out 2>&1", "")
    sh.gives("echo hi; (exit 3)", "", 3)
    sh.gives("exec >&- 2>&-", "")
    assert sh.run("true").exit_code == 0
    assert sh.run("echo x").exit_code == 1
    sh.gives("exec >/dev/tty 2>&1", "")
    sh.gives("echo hi", "hi\n")
    assert "hi\n" in (tmp_path / "out").read_text()


def test_exec_through_tee(sh: Shell, tmp_path: Path) -> None:
    log = tmp_path / "log"
    sh.run(f"exec 3>&1 4>&2 > >(tee {log}) 2>&1")
    for i in range(5):
        assert sh.run(f"echo line{i}; (exit {i})").exit_code == i
    sh.run("exec >&3 2>&4 3>&- 4>&-")
    until(lambda: re.findall(r"line\d\n", log.read_text()) == [f"line{i}\n" for i in range(5)])
    sh.out("sleep 0.1")


@pytest.mark.idle
def test_exec_through_a_helper_that_is_late(sh: Shell) -> None:
    """What was not read yet is waited for, as on a machine that is too busy to run the helper; but not for ever."""
    sh.run("exec 3>&1 > >(sleep 0.2; cat)")
    sh.gives("echo first; (exit 3)", "first\n", 3)
    sh.gives("echo second", "second\n")
    sh.run("exec > >(sleep 1000)")
    with quicker_than(2.5):
        sh.gives("echo never seen; (exit 4)", "", 4)
    sh.run("exec >&3")


def test_exec_stdin_away(sh: Shell, tmp_path: Path) -> None:
    """Bash reads its commands from stdin. Without one it ends: that is told, and nothing hangs."""
    sh.ended = True
    seen = sh.run("exec </dev/null", check="ignore")
    if not seen.failure_reason:
        try:
            seen = sh.run("echo hi")
            assert seen.failure_reason or (seen.output, seen.exit_code) == ("hi\n", 0)
        except SwerexException:
            pass


@pytest.mark.parametrize("how", ["rmdir {0}", "rm -rf {0}", "mv {0} {0}.gone"])
def test_directory_that_is_removed(sh: Shell, tmp_path: Path, how: str) -> None:
    where = tmp_path / "here"
    where.mkdir()
    sh.out(f"cd {where}")
    subprocess.run(how.format(where), shell=True, check=True)
    sh.gives("echo hi", "hi\n")
    sh.gives("echo a\n(exit 3)", "a\n", 3)
    assert sh.run("bash -c 'echo inner'").output.endswith("inner\n")
    sh.gives("cd /; pwd", "/\n")


@pytest.mark.parametrize("limit", ["-n 10", "-n 7", "-c 0", "-f 0", "-s 512", "-t 600", "-v 500000", "-u 1"])
def test_ulimit(sh: Shell, limit: str) -> None:
    """Limits hit the user's programs. The session needs nothing that they forbid."""
    assert sh.run(f"ulimit -S {limit}").exit_code == 0
    for i in range(3):
        sh.gives(f"echo hi{i}", f"hi{i}\n")
    sh.gives("x='a\x01b'; echo ${#x}", "3\n")
    sh.gives("echo a\necho b", "a\nb\n")
    sh.gives(f": {'w' * 3000}; echo long", "long\n")
    assert sh.run(f"ulimit -S {limit[:2]} hard").exit_code == 0  # without a fork, which -u forbids whoever is not root


@pytest.mark.parametrize("mode", ["emacs", "vi"])
@pytest.mark.parametrize("term", ["dumb", "xterm-256color"])
def test_line_editing_turned_on(shells: type[Shell], monkeypatch: pytest.MonkeyPatch, mode: str, term: str) -> None:
    monkeypatch.setenv("TERM", term)
    sh = shells()
    sh.gives(f"set -o {mode}", "")
    sh.gives("echo hi", "hi\n")
    sh.gives("printf '%s|' a\tb 'c\td'", "a|b|c\td|")
    sh.gives("echo '!!' \"x!y\"", "!! x!y\n")
    sh.gives("echo one\n\techo two\n(exit 5)", "one\ntwo\n", 5)
    sh.gives("echo " + "long " * 100, ("long " * 100).strip() + "\n")
    sh.gives(f"echo {'y' * 6000} | wc -c", "6001\n")
    sh.gives(f"set +o {mode}", "")
    sh.synced()


def test_history_expansion_turned_on(sh: Shell) -> None:
    """The user asked for it: an event is expanded or left alone, the session stays in step."""
    sh.run("set -H")
    sh.gives("echo plain", "plain\n")
    assert sh.run('echo "a !nosuchevent-x b"').exit_code in (0, 1)
    sh.gives("echo 'single !quoted'", "single !quoted\n")
    sh.gives("echo end!", "end!\n")
    sh.run("set +H")
    sh.gives('echo "a !x b"', "a !x b\n")


def test_history_is_off_or_on(sh: Shell) -> None:
    sh.run("set +o history")
    sh.gives("echo a", "a\n")
    sh.run("set -o history; HISTFILE=/dev/null; HISTCONTROL=; history -c")
    sh.out("echo remember me")
    assert "remember me" in sh.out("history")


def test_shadowed_builtins(sh: Shell) -> None:
    """Functions and aliases may take any name, `builtin` and `printf` too."""
    for name in "echo printf eval source builtin command export set trap stty : true".split():
        sh.run(f"{name}() {{ return 9; }}")
    sh.run("alias cd=false test=false")
    for i in range(3):
        seen = sh.run(f"(exit {i})")
        assert (seen.output, seen.exit_code) == ("", i)
    assert sh.run(f"x={'l' * 100}\n[[ -n $x ]]").exit_code == 0
    sh.run("unset -f builtin command unset unalias")
    sh.run("unset -f echo printf eval source export set trap stty : true")
    sh.run("unalias -a")


def test_signals_are_default_under_nohup(shells: type[Shell]) -> None:
    old = {n: signal.signal(n, signal.SIG_IGN) for n in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGCHLD, signal.SIGWINCH})
    try:
        sh = shells()
        assert no_signals(sh.out("grep -E 'Sig(Ign|Blk)' /proc/self/status"))
        sh.gives("trap 'echo hup' HUP; kill -HUP $$", "hup\n")
        sh.begin("echo begun; sleep 1000", "begun")
        sh.interrupt(timeout=1, n_retry=60)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in old.items():
            signal.signal(number, handler)


def test_job_notices(sh: Shell) -> None:
    assert re.fullmatch(r"(\[1\] \d+\n)?", sh.out("sleep 0.15 &"))
    sh.gives("sleep 0.3", "")
    sh.gives("echo hi", "hi\n")
    sh.run("(exit 3) & (exit 4) &")
    sh.gives("sleep 0.1", "")
    for i in range(3):
        sh.gives(f"echo {i}", f"{i}\n")


@pytest.mark.parametrize("mode", ["set -b", "set +m", "set -m", "shopt -s checkjobs huponexit"])
def test_job_notices_in_every_mode(sh: Shell, mode: str) -> None:
    sh.out(mode)
    sh.run("sleep 0.1 & sleep 0.1 &")
    sh.out("sleep 0.2")
    sh.gives("echo hi", "hi\n")
    sh.gives("(exit 3)", "", 3)


def test_wait_gives_the_jobs_status(sh: Shell) -> None:
    sh.run("(sleep 0.1; exit 9) & p=$!")
    sh.run("wait $p; echo status=$?")
    sh.run("(exit 8) &")
    seen = sh.run("wait $!; echo status=$?")
    assert "status=8\n" in seen.output


def test_stopped_job(sh: Shell) -> None:
    """A program that stops itself gives the terminal back, as at a terminal; `fg` goes on with it."""
    seen = sh.run("sh -c 'kill -STOP $$; echo went on'")
    assert seen.exit_code == 128 + signal.SIGSTOP
    seen = sh.run("fg")
    assert "went on\n" in seen.output
    assert seen.exit_code == 0


@pytest.mark.parametrize("mode", ["set +m", "set -m"])
def test_commands_in_both_kinds_of_job_control(sh: Shell, mode: str) -> None:
    sh.out(mode)
    sh.gives("/bin/echo hi | cat; (exit 6)", "hi\n", 6)
    sh.begin("echo begun; sleep 1000", "begun")
    sh.interrupt()
    sh.gives("echo next", "next\n")


def test_startup_files(shells: type[Shell], tmp_path: Path) -> None:
    """~/.bashrc first, then `startup_source` in order; what they print is the output of the creation."""
    Path(os.environ["HOME"], ".bashrc").write_text("echo from bashrc\nFIRST=1\nPS1='rc> '\nalias ll='echo alias-ll'\n")
    one, two = tmp_path / "one with space.sh", tmp_path / "two.sh"
    one.write_text("echo one; A=$FIRST$FIRST\nPS1='one> '\n")
    two.write_text("echo two; B=$A$A\nset +o emacs\nfalse\n")
    sh = shells(startup_source=[str(one), str(two)])
    assert sh.created.output.replace("\r", "").endswith("one\ntwo\n")
    assert "from bashrc\n" in sh.created.output
    sh.gives("echo $FIRST $A $B; ll", "1 11 1111\nalias-ll\n")


def test_environment_of_a_session(shells: type[Shell], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWX_SOMETHING", 'it\'s "here"\n$x')
    sh = shells()
    sh.gives('printf %s "$SWX_SOMETHING"', 'it\'s "here"\n$x')
    sh.gives("echo $TERM; pwd", f"dumb\n{os.getcwd()}\n")


def test_history_is_the_users(sh: Shell) -> None:
    """What the session itself typed at its start is no command of the user."""
    sh.run("echo one")
    seen = [line.split(maxsplit=1)[1] for line in sh.run("history").output.splitlines()]
    assert seen[-2:] == ["echo one", "history"]
    assert not any("builtin" in line for line in seen)


def test_a_notice_behind_half_a_line(sh: Shell) -> None:
    """Bash reports a job wherever the cursor is; what a program has printed stays, even if it looks like that."""
    fake = "[1]+  Done                    fake"
    for command, output in (
        ("printf X; sleep 0.1", "X"),
        ("printf X; sleep 0.1; printf Y", "XY"),
        ("echo; printf 'a\\nb '; sleep 0.1; echo c", "\na\nb c\n"),
        (f"printf '{fake}'; sleep 0.1", fake),
        (f"disown; printf '{fake}\\n'", fake + "\n"),
        ("cd /tmp; printf X; sleep 0.1; cd /", "X"),
        ("printf '[1]'; sleep 0.1; printf '[2]'", "[1][2]"),
    ):
        sh.run("cd /; sleep 0.05 &")
        sh.gives(command, output)
        sh.run("wait")
