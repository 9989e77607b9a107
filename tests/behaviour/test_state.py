"""State: what one command leaves behind, the next one finds; and whatever it leaves behind, the session works on."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from tests.support.harness import no_signals
from tests.support.session import Shell, Steps
from tests.support.wait import quicker_than, until

_LONG, _CONTROL = "x" * 6000, "'\x03\x1b'"  # which a terminal cannot carry
_NO_DIRECTORY = "bash: cd: /nonexistent-x: No such file or directory\n"
_SHADOWED = "echo printf eval source builtin command export set trap stty : true"
_GOES_ON = [("echo a\necho b", "a\nb\n", 0), ("echo hi; (exit 3)", "hi\n", 3)]
_NONBLOCKING = "python3 -c 'import os; [os.set_blocking(i, False) for i in (0, 1, 2)]'"

# TMP is a directory of the test's own.
STEPS: dict[str, Steps] = {
    # At a terminal an empty line or a comment leaves `$?` alone; the observation of it is 0 all the same.
    "nothing keeps the status": [
        ("(exit 7)", "", 7),
        *((nothing, "", 0) for nothing in ("", "\n\n", "# comment", "  # a\n# b")),
        ("echo $?", "7\n", 0),
    ],
    "pipestatus of lines": [("true\n(exit 5) | false | true\n", "", 0), ("echo ${PIPESTATUS[@]}", "5 1 0\n", 0)],
    **{
        f"pipestatus that cannot be typed: {name}": [
            (f": {extra}; false | true | (exit 3)", "", 3),
            ("echo ${PIPESTATUS[@]}", "1 0 3\n", 0),
        ]
        for name, extra in (("long", _LONG), ("control", _CONTROL))
    },
    **{
        f"pipestatus of {stages} outlives a question": [
            ("PS1=x; " + "true | " * (stages - 2) + "(exit 7) | false", "", 1),
            ('echo "${PIPESTATUS[@]}"', "0 " * (stages - 2) + "7 1\n", 0),
        ]
        for stages in (64, 65, 100)
    },
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
        ("readonly R=5", "", 0), ("R=6; echo not reached", "bash: R: readonly variable\n", 1), ("echo $R", "5\n", 0),
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
        ("echo still ${x-here}", "still here\n", 0), ("echo one\necho two", "one\ntwo\n", 0),
        ("echo 'a\x01b' | wc -c; : " + "z" * 5000, "4\n", 0), ("set +u", "", 0),
    ],
    **{
        f"nounset behind {trap}": [
            (f"set -u; {trap}", "", 0), ("echo b\necho $nope\necho a", "b\nbash: nope: unbound variable\n", 1),
            (f"echo b\n: {'x' * 9000}\necho $nope\necho a", "b\nbash: nope: unbound variable\n", 1),
        ]
        for trap in ("trap - CHLD", "trap : CHLD")
    },
    "debug trap": [
        ("trap 'echo \"D:$BASH_COMMAND\"' DEBUG", "", 0), ("echo hi", "D:echo hi\nhi\n", 0),
        ("false", "D:false\n", 1), ("echo $?", "D:echo $?\n1\n", 0),
        ("echo a\necho b", "D:echo a\na\nD:echo b\nb\n", 0), ("trap - DEBUG", "D:trap - DEBUG\n", 0),
        ("echo hi", "hi\n", 0),
    ],
    "debug trap that counts": [
        ("n=0; trap '((++n))' DEBUG", "", 0),
        *((command, "", 0) for command in ("true", "true; true", "true\ntrue\ntrue")), ("echo $n", "7\n", 0),
    ],
    "failing debug trap": [("trap false DEBUG", "", 0), ("true", "", 0), *_GOES_ON, ("trap - DEBUG", "", 0)],
    "err trap": [
        ("trap 'echo \"E:$?\"' ERR", "", 0), ("false", "E:1\n", 1), ("echo $?", "1\n", 0),
        ("(exit 4); echo next", "E:4\nnext\n", 0), ("echo a\n(exit 6)", "a\nE:6\n", 6), ("trap - ERR", "", 0),
    ],
    # A script that saves PS1 and puts it back (activate does) finds what it saved.
    "prompt that is put back": [("old=$PS1; PS1='mine '", "", 0), *_GOES_ON, ("PS1=$old", "", 0), *_GOES_ON],
    # As `conda activate` does: its part of PS1 is put before it, and taken off again.
    "prompt with a part of its own": [
        ("for p in '' '(base) ' '(dev) '; do PS1=\"$p${PS1#\"$q\"}\" q=$p; done", "", 0), *_GOES_ON,
        ('PS1="${PS1#"$q"}"', "", 0), *_GOES_ON,
    ],
    "a prompt command of the user runs": [
        ("n=0; PROMPT_COMMAND='n=$((n+1))'", "", 0), ("true", "", 0), ("true; ((n >= 1))", "", 0),
        ("env | grep -E '^(PS[012]|PROMPT_COMMAND)='", "", 1), ("unset PROMPT_COMMAND", "", 0),
    ],
    "bytes that the terminal marks": [
        ("stty parmrk", None, 0), ("printf %s '\udcff' | od -An -tx1", " ff\n", 0),
        ("cat <<'E' | od -An -tx1\n\udcff\nE", " ff 0a\n", 0),
    ],
    "stderr to stdout": [("exec 2>&1", "", 0), ("echo hi; echo err >&2", "hi\nerr\n", 0)],
    # Nothing of ours sits behind an fd of the shell that text could spoil.
    "junk in all descriptors": [
        ("for f in /proc/$$/fd/*; do n=${f##*/}; [ $n -gt 2 ] && { echo junk >&$n; } 2>/dev/null; done; true", None, 0),
        *_GOES_ON,
    ],
    "extdebug": [
        ("shopt -s extdebug; trap 'true' DEBUG", "", 0), *_GOES_ON, ("shopt -u extdebug; trap - DEBUG", "", 0),
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
        ("IFS=; LC_ALL=C; LANG=C; export LC_ALL LANG", "", 0), ("echo a b 'ä'; (exit 2)", "a b ä\n", 2),
        ("IFS=0123456789abcdef", "", 0), ("echo hi; (exit 21)", "hi\n", 21), *_GOES_ON, ("IFS=$' \\t\\n'", "", 0),
    ],
    "glob options": [
        ("set -f -C -k -a -b -h; shopt -s nullglob failglob dotglob nocaseglob", "", 0), *_GOES_ON,
        ("set +f +C +k +a +b", "", 0),
    ],
    "an interactive shell of the user's own": [
        ("[[ $- == *i* ]] && echo interactive", "interactive\n", 0), ("echo $0", "bash\n", 0),
        ("echo $BASH_SUBSHELL $SHLVL | cut -d' ' -f1", "0\n", 0), ("jobs; alias; declare -F", "", 0),
    ],
    **{
        f"line editing by {mode} on {term}": [
            (f"export TERM={term}", "", 0), (f"set -o {mode}", "", 0), ("echo hi", "hi\n", 0),
            ("printf '%s|' a\tb 'c\td'", "a|b|c\td|", 0), ("echo '!!' \"x!y\"", "!! x!y\n", 0),
            ("echo one\n\techo two\n(exit 5)", "one\ntwo\n", 5), (f"echo {'y' * 500}", "y" * 500 + "\n", 0),
            (f"echo {'y' * 6000} | wc -c", "6001\n", 0), (f"set +o {mode}", "", 0),
        ]
        for mode in ("emacs", "vi")
        for term in ("dumb", "xterm-256color", "''", "nonsense")
    },
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
    "random numbers are the shell's": [
        ("RANDOM=42; a=$RANDOM", "", 0), ("RANDOM=42", "", 0),
        ("b=$RANDOM; [[ $a == $b ]] && echo same", "same\n", 0),
    ],
    "a command finds the status in every way in": [
        step
        for way, code in (("{}; : " + _LONG, 0), ("{}\n:", 0), ("{}; : 'a\x03\x1bb'", 0), ("{{\n{}\n}}", 23))
        for step in [("(exit 42)", "", 42), (way.format("echo $?"), "42\n", 0),
                     (way.format("(exit 23)"), "", code), ("echo $?", f"{code}\n", 0)]
    ],
    "return trap": [
        ("echo 'echo sourced' >TMP/lib; f() { trap 'echo R' RETURN; echo in; }", "", 0), ("f", "in\nR\n", 0),
        ("trap 'echo R' RETURN", "", 0), (". TMP/lib", "sourced\nR\n", 0), ("echo a\necho b", "a\nb\n", 0),
        ("trap - RETURN", "", 0),
    ],
    # node and others leave O_NONBLOCK on the shared open file; bash must still get its next command.
    "nonblocking terminal": [(_NONBLOCKING, "", 0), ("echo hi", "hi\n", 0), ("seq 100000 | tail -1", "100000\n", 0)],
    # Bash clears it when it has to wait for that command.
    "much output to a nonblocking terminal": [
        (_NONBLOCKING, "", 0), ("seq 50000", "".join(f"{i}\n" for i in range(1, 50001)), 0),
    ],
    "standard output to a file": [
        ("exec >TMP/log", "", 0), ("echo into", "", 0), ("(exit 4)", "", 4), ("echo a\necho b", "", 0),
        ("echo err >&2", "err\n", 0), ("exec >/dev/tty", "", 0), ("cat TMP/log", "into\na\nb\n", 0),
    ],
    **{
        f"standard error to {target}": [
            (f"exec 2>{target}", "", 0), *_GOES_ON, ("cd /nonexistent-x", "", 1), ("exec 2>/dev/tty", "", 0),
            ("cd /nonexistent-x", _NO_DIRECTORY, 1),
            *([(f"grep -ac '{_NO_DIRECTORY.strip()}$' TMP/log", "1\n", 0)] if "TMP" in target else []),
        ]
        for target in ("/dev/null", "TMP/log", "&-")
    },
    "everything to a file, and away": [
        ("exec >TMP/out 2>&1", "", 0), ("echo hi; (exit 3)", "", 3), ("exec >&- 2>&-", "", 0), ("true", None, 0),
        ("echo x", None, 1), ("exec >/dev/tty 2>&1", "", 0), ("grep -ac 'hi$' TMP/out", "1\n", 0),
    ],
    **{
        f"a directory that is gone, by {how.split()[0]}": [
            ("mkdir TMP/here; cd TMP/here", "", 0), (how.format("TMP/here"), "", 0), *_GOES_ON,
            ("bash -c 'echo inner' 2>/dev/null", "inner\n", 0), ("cd /; pwd", "/\n", 0),
        ]
        for how in ("rmdir {0}", "rm -rf {0}", "mv {0} {0}.gone")
    },
    # Limits hit the user's programs. The session needs nothing that they forbid.
    **{
        f"ulimit {limit}": [
            (f"ulimit -S {limit}", "", 0), *_GOES_ON, ("x='a\x01b'; echo ${#x}", "3\n", 0),
            (f": {_LONG}; echo long", "long\n", 0),
            (f"ulimit -S {limit[:2]} hard", "", 0),
        ]
        for limit in ("-n 10", "-n 7", "-c 0", "-f 0", "-s 512", "-t 600", "-v 500000", "-u 1")
        if os.geteuid() == 0 or limit != "-u 1"  # which forbids only others to fork
    },
    "history expansion turned on": [
        ("set -H", "", 0), ("echo plain", "plain\n", 0),
        ('echo "a !nosuchevent-x b"', "bash: !nosuchevent: event not found\n", None),
        ("echo 'single !quoted'", "single !quoted\n", 0), ("echo end!", "end!\n", 0), ("set +H", "", 0),
        ('echo "a !x b"', "a !x b\n", 0),
    ],
    "history off and on": [
        ("set +o history", "", 0), ("echo a", "a\n", 0),
        ("set -o history; HISTFILE=/dev/null; HISTCONTROL=; history -c", "", 0), ("echo remember me", None, 0),
        ("history | grep -c 'remember [m]e'", "1\n", 0),
    ],
    # What the session itself typed at its start is no command of the user.
    "history is the users": [
        ("echo one", "one\n", 0), ("history | tail -n 2 | grep -c 'echo [o]ne$'", "1\n", 0),
        ("history | grep -c [b]uiltin", "0\n", 1),
    ],
    # Functions and aliases may take any name, `builtin` and `printf` too.
    "shadowed builtins": [
        *((f"{name}() {{ return 9; }}", "", 0) for name in _SHADOWED.split()),
        ("alias cd=false test=false", None, None),
        *((f"(exit {code})", "", code) for code in range(3)), (f"x={'l' * 100}\n[[ -n $x ]]", None, 0),
        ("unset -f builtin command unset unalias", None, None), (f"unset -f {_SHADOWED}", None, None),
        ("unalias -a", None, None),
    ],
    **{
        f"job notices under {mode}": [
            (mode, "", 0), ("sleep 0.1 & sleep 0.1 &", None, 0), ("sleep 0.2", None, 0), *_GOES_ON,
        ]
        for mode in ("set -b", "set +m", "set -m", "shopt -s checkjobs huponexit")
    },
    # A program that stops itself gives the terminal back, as at a terminal; `fg` goes on with it.
    "stopped job": [("sh -c 'kill -STOP $$; echo went on'", None, 147),
                    ("fg", "sh -c 'kill -STOP $$; echo went on'\nwent on\n", 0)],
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_steps(sh: Shell, tmp_path: Path, name: str) -> None:
    sh.take([(command.replace("TMP", str(tmp_path)), output, code) for command, output, code in STEPS[name]])


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
        assert (seen.output.lower().replace("\r", ""), seen.exit_code) == (f"hi{i}\n", i)
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


def test_exec_through_tee(sh: Shell, tmp_path: Path) -> None:
    log = tmp_path / "log"
    sh.run(f"exec 3>&1 4>&2 > >(tee {log}) 2>&1")
    for i in range(5):
        assert sh.run(f"echo line{i}; (exit {i})").exit_code == i
    sh.run("exec >&3 2>&4 3>&- 4>&-")
    until(lambda: re.findall(r"line\d\n", log.read_text()) == [f"line{i}\n" for i in range(5)])
    sh.out("sleep 0.1")


def test_standard_error_through_a_helper(sh: Shell) -> None:
    """The START mark goes the same way, and may come after the command's output."""
    sh.run("exec 2> >(tee /dev/null >&1)")
    for i in range(30):
        sh.gives(f"echo line{i}; (exit {i})", f"line{i}\n", i)
        assert sorted(sh.out("echo a; echo b >&2").splitlines()) == ["a", "b"]


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


def test_signals_are_default_under_nohup(shells: type[Shell]) -> None:
    old = {n: signal.signal(n, signal.SIG_IGN) for n in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1, signal.SIGCHLD, signal.SIGWINCH})
    try:
        sh = shells()
        assert no_signals(sh.out("cat /proc/self/status"))
        sh.gives("trap 'echo hup' HUP; kill -HUP $$", "hup\n")
        sh.interrupted("sleep 1000", timeout=1, n_retry=60)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in old.items():
            signal.signal(number, handler)


def test_startup_files(shells: type[Shell], tmp_path: Path) -> None:
    """~/.bashrc first, then `startup_source` in order; what they print is the output of the creation."""
    Path(os.environ["HOME"], ".bashrc").write_text("echo from bashrc\nFIRST=1\nPS1='rc> '\nalias ll='echo alias-ll'\n")
    one, two = tmp_path / "one with space.sh", tmp_path / "two.sh"
    one.write_text("echo one; A=$FIRST$FIRST\nPS1='one> '\n")
    two.write_text("echo two; B=$A$A\nset +o emacs\nfalse\n")
    sh = shells(startup_source=[str(one), str(two)])
    assert sh.greeting.replace("\r", "").endswith("one\ntwo\n")
    assert "from bashrc\n" in sh.greeting
    sh.gives("echo $FIRST $A $B; ll", "1 11 1111\nalias-ll\n")


def test_environment_of_a_session(shells: type[Shell], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SWX_SOMETHING", 'it\'s "here"\n$x')
    sh = shells()
    sh.gives('printf %s "$SWX_SOMETHING"', 'it\'s "here"\n$x')
    sh.gives("echo $TERM; pwd", f"dumb\n{os.getcwd()}\n")


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
    for job in ("for i in 1; do sleep 0.05; done &", "sh -c 'sleep 0.05\n\n:' <<E > /dev/null &\nE\nE"):
        sh.run(job)
        sh.gives("printf X; sleep 0.1", "X")
        sh.run("wait")
