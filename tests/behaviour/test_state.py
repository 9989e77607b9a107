"""State: what one command leaves behind, the next one finds; and whatever it leaves behind, the session works on."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.harness import no_signals
from tests.support.session import ON_ORIGINAL, Shell, wrong
from tests.support.wait import quicker_than, until


@wrong("$? does not survive to the next command", but=["true"])
@pytest.mark.parametrize("command", ["false", "(exit 42)", "true", "nosuchcommand-x 2>/dev/null", "false\n(exit 9)"])
def test_exit_status_of_the_command_before(sh: Shell, command: str) -> None:
    code = sh.run(command).exit_code
    sh.gives("echo $?", f"{code}\n")
    sh.gives("echo $?", "0\n")


@wrong("$? does not survive to the next command")
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


@wrong("$? does not survive to the next command")
def test_exit_status_is_kept_by_nothing(sh: Shell) -> None:
    """At a terminal an empty line or a comment leaves `$?` alone; the observation of it is 0 all the same."""
    sh.run("(exit 7)")
    for nothing in ("", "\n\n", "# comment", "  # a\n# b"):
        sh.gives(nothing, "", 0)
    sh.gives("echo $?", "7\n")


@wrong("PIPESTATUS is that of the engine's own commands")
def test_pipestatus(sh: Shell) -> None:
    assert sh.run("false | true | (exit 3)").exit_code == 3
    sh.gives("echo ${PIPESTATUS[@]}", "1 0 3\n")
    sh.run("true\n(exit 5) | false | true\n")
    sh.gives("echo ${PIPESTATUS[@]}", "5 1 0\n")


@wrong("PIPESTATUS is that of the engine's own commands")
@pytest.mark.parametrize("extra", ["x" * 6000, "'\x03\x1b'"], ids=["long", "control"])
def test_pipestatus_of_a_command_that_cannot_be_typed(sh: Shell, extra: str) -> None:
    sh.run(f": {extra}; false | true | (exit 3)")
    sh.gives("echo ${PIPESTATUS[@]}", "1 0 3\n")


@wrong("$_ is that of the engine's own commands")
def test_last_argument(sh: Shell) -> None:
    sh.run("echo a b last")
    sh.gives("echo $_", "last\n")
    sh.run("true\necho two lines")
    sh.gives("echo $_", "lines\n")
    sh.run("echo fails; false nope")
    sh.gives("echo $_", "nope\n")


@wrong("$_ is that of the engine's own commands")
@pytest.mark.parametrize("extra", ["x" * 6000, "'\x03\x1b'"], ids=["long", "control"])
def test_last_argument_of_a_command_that_cannot_be_typed(sh: Shell, extra: str) -> None:
    sh.run(f": {extra}; echo a last")
    sh.gives("echo $_", "last\n")


def test_variables_functions_and_directory(sh: Shell, tmp_path: Path) -> None:
    sh.out(f"cd {tmp_path}; a=1; export B='two words'; declare -A m=([k]=v); f() {{ echo \"f $1\"; }}; readonly R=5")
    sh.gives("echo $a $B ${m[k]} $R; f x; pwd", f"1 two words v 5\nf x\n{tmp_path}\n")
    sh.gives("bash -c 'echo \"$a.$B\"'", ".two words\n")
    sh.out("unset a; unset -f f; cd ..")
    sh.gives('echo "[$a]"; pwd', f"[]\n{tmp_path.parent}\n")
    assert sh.run("f").exit_code == 127


def test_readonly_assignment_is_an_error_only(sh: Shell) -> None:
    sh.out("readonly R=5")
    seen = sh.run("R=6; echo not reached")
    assert (seen.output, seen.exit_code) == ("bash: R: readonly variable\n", 1)
    sh.gives("echo $R", "5\n")


@wrong("the engine's own commands are traced too")
def test_trace(sh: Shell) -> None:
    sh.gives("set -x", "")
    sh.gives("echo hi", "+ echo hi\nhi\n")
    sh.gives("x=1; false", "+ x=1\n+ false\n", 1)
    sh.gives("echo $?", "+ echo 1\n1\n")
    sh.gives("echo a\necho b", "+ echo a\na\n+ echo b\nb\n")
    sh.gives("PS4='TRACE '", "+ PS4='TRACE '\n")
    sh.gives("echo hi", "TRACE echo hi\nhi\n")
    sh.gives("set +x", "TRACE set +x\n")
    sh.gives("echo hi", "hi\n")


@wrong("the engine's own commands are traced too")
def test_trace_of_a_command_that_cannot_be_typed(sh: Shell) -> None:
    sh.run("set -x")
    seen = sh.run(f"v='{'y' * 6000}\x1b'\necho ${{#v}}")
    assert seen.exit_code == 0
    assert seen.output.endswith("+ echo 6001\n6001\n")
    assert "eval" not in seen.output
    assert "builtin" not in seen.output
    sh.gives("set +x", "+ set +x\n")


@wrong("the engine's own commands are shown too")
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


def test_noexec_means_nothing_at_a_prompt(sh: Shell) -> None:
    sh.out("set -n")
    sh.gives("echo hi", "hi\n")
    sh.out("set -o noexec")
    sh.gives("echo a\necho b", "a\nb\n")


def test_posix_mode(sh: Shell) -> None:
    sh.out("set -o posix")
    sh.gives("echo hi; (exit 4)", "hi\n", 4)
    sh.gives("echo '!' \"a!b\"", "! a!b\n")
    sh.gives("echo a\necho b", "a\nb\n")
    sh.out("set +o posix")


def test_pipefail_and_errtrace(sh: Shell) -> None:
    sh.out("set -o pipefail -E -T")
    assert sh.run("(exit 3) | true").exit_code == 3
    sh.gives("echo ok", "ok\n")


@wrong("the shell dies and another library's error is raised")
def test_errexit(sh: Shell, swerex_error: type[Exception]) -> None:
    """`set -e; false` ends the shell, as by hand: the command is answered, the next one is told why."""
    sh.ended = True
    sh.out("set -euo pipefail")
    sh.gives("echo fine; false || true; ! true", "fine\n", 1)
    seen = sh.run("echo before; false; echo after")
    assert seen.output.startswith("before\n")
    assert "after" not in seen.output
    assert seen.exit_code == 1
    assert seen.failure_reason
    with pytest.raises(swerex_error):
        sh.run("echo hi")


def test_errexit_that_does_not_strike(sh: Shell) -> None:
    sh.out("set -e")
    sh.gives("true; echo a | cat; if false; then :; fi", "a\n")
    sh.gives("false || echo b\n[[ a == b ]] || echo c", "b\nc\n")
    sh.gives("echo $?", "0\n")
    sh.out("set +e")
    assert sh.run("false").exit_code == 1


def test_nounset(sh: Shell) -> None:
    """An interactive shell reports the name and goes on."""
    sh.out("set -u")
    sh.gives("echo a; echo $no_such_variable; echo b", "a\nbash: no_such_variable: unbound variable\n", 1)
    sh.gives("echo still ${x-here}", "still here\n")
    sh.gives("echo one\necho two", "one\ntwo\n")
    sh.gives("echo 'a\x01b' | wc -c; : " + "z" * 5000, "4\n")
    sh.out("set +u")


@wrong("DEBUG fires for the engine's own commands")
def test_debug_trap(sh: Shell) -> None:
    sh.gives("trap 'echo \"D:$BASH_COMMAND\"' DEBUG", "")
    sh.gives("echo hi", "D:echo hi\nhi\n")
    sh.gives("false", "D:false\n", 1)
    sh.gives("echo $?", "D:echo $?\n1\n")
    sh.gives("echo a\necho b", "D:echo a\na\nD:echo b\nb\n")
    sh.gives("trap - DEBUG", "D:trap - DEBUG\n")
    sh.gives("echo hi", "hi\n")


@wrong("DEBUG fires for the engine's own commands")
def test_debug_trap_counts_only_the_users_commands(sh: Shell) -> None:
    sh.out("n=0; trap '((++n))' DEBUG")
    sh.out("true")
    sh.out("true; true")
    sh.out("true\ntrue\ntrue")
    sh.gives("echo $n", "7\n")


def test_debug_trap_that_changes_the_status(sh: Shell) -> None:
    sh.out("trap 'false' DEBUG")
    assert sh.run("true").exit_code == 0
    assert sh.run("(exit 3)").exit_code == 3
    sh.out("trap - DEBUG")


@wrong("ERR fires for the engine's own commands")
def test_err_trap(sh: Shell) -> None:
    sh.out("trap 'echo \"E:$?\"' ERR")
    sh.gives("false", "E:1\n", 1)
    sh.gives("echo $?", "1\n")
    sh.gives("(exit 4); echo next", "E:4\nnext\n")
    sh.gives("true", "")
    sh.gives("echo a\n(exit 6)", "a\nE:6\n", 6)
    sh.run("trap - ERR")


@wrong("the trap of EXIT is lost with the shell")
def test_exit_trap(sh: Shell) -> None:
    sh.ended = True
    sh.gives("trap 'echo bye' EXIT", "")
    sh.gives("(exit 1)", "", 1)
    seen = sh.run("echo going; exit 5")
    assert seen.output.startswith("going\n")
    assert seen.output.endswith("bye\n")
    assert seen.exit_code == 5


def test_exit_trap_of_a_subshell(sh: Shell) -> None:
    sh.gives("(trap 'echo sub' EXIT; echo in)", "in\nsub\n")


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


def test_usr_trap_runs_between_commands(sh: Shell) -> None:
    sh.out("trap 'x=caught' USR1")
    sh.out("kill -USR1 $$")
    sh.gives("echo $x", "caught\n")


PROMPTS = [
    "PS1='> '",
    "PS1=",
    "PS1='\\u@\\h:\\w\\$ '",
    "PS1='(env) '\"$PS1\"",
    "PS1=$PS1'more'",
    "PS1='two\nlines $ '",
    "PS1='$(echo run)\\$ '",
    "PS1='$(exit 9)'",
    "PS1='\\[\\e[32m\\]green\\[\\e[0m\\] '",
    "PS1='\\e]0;title\\a$ '",
    "PS1='$PS1 $? \\# \\!'",
    "unset PS1",
    "PS1=(a b)",
    "PS1[1]=x",
    "export PS1='exported '",
    "declare -u PS1=loud",
    "declare -n PS1=other",
    "local_() { local PS1='inner '; :; }; local_",
    "PS0='zero '",
    "PS0='$(echo started)'",
    "unset PS0",
    "PS0+=' behind'",
    "PS0=\"before $PS0\"",
    "PS0=${PS0/7733/7734}",
    "PS0=$'\\e[1mtwo\\nlines\\a'",
    "set -u; unset PS0",
    "PS2='more> '",
    "unset PS2",
    "PS2=(x)",
    "PS3='pick '",
    "PS4='trace '",
    "unset PS1 PS2 PS3 PS4 PS0 PROMPT_COMMAND",
    "PROMPT_COMMAND=:",
    "PROMPT_COMMAND=false",
    "PROMPT_COMMAND='(exit 9)'",
    "PROMPT_COMMAND=",
    "unset PROMPT_COMMAND",
    "PROMPT_COMMAND='PS1=\"\\u@\\h \\$ \"'",
    "PROMPT_COMMAND='PS1=x; PS0=y; PS2=z'",
    "PROMPT_COMMAND='__prompt() { PS1=\"❯ \"; }; __prompt'",
    "PROMPT_COMMAND+=('PS1=last')",
    "PROMPT_COMMAND=('PS1=a' 'false' 'PS1=b')",
    "unset PROMPT_COMMAND; PROMPT_COMMAND=(true 'PS1=b')",
    "PROMPT_COMMAND=nosuchcommand-prompt",
    "PROMPT_COMMAND='history -a'",
    "PROMPT_COMMAND='return'",
    "shopt -u promptvars",
    "PROMPT_DIRTRIM=2",
]


@pytest.mark.parametrize("command", PROMPTS)
def test_prompts_may_be_changed(sh: Shell, command: str) -> None:
    """No prompt, however made, is seen in an output; what a PROMPT_COMMAND itself prints may be."""
    noise = r"(bash: nosuchcommand-prompt: command not found\n)?" if "nosuch" in command else ""
    if command == "PROMPT_COMMAND='return'":
        noise = "(bash: return: [^\n]*\n)?"
    sh.run(command)
    for text, output, code in (
        ("echo hi", "hi\n", 0),
        ("echo a; (exit 3)", "a\n", 3),
        ("printf x\necho y", "xy\n", 0),
        ("for i in 1 2\ndo\n  echo $i\ndone", "1\n2\n", 0),
        ("false", "", 1),
    ):
        seen = sh.run(text)
        assert re.fullmatch(re.escape(output) + noise, seen.output), (text, seen.output)
        assert seen.exit_code == code
    sh.run("unset PROMPT_COMMAND 2>/dev/null")


@wrong("a changed PS1 makes every later command time out")
@pytest.mark.parametrize("command", ["PS1='> '", "unset PS1", "PS1='(env) '$PS1", "PROMPT_COMMAND='PS1=\"\\w \"'"])
def test_a_changed_prompt_is_nothing(sh: Shell, command: str) -> None:
    sh.gives(command, "")
    sh.gives("echo hi", "hi\n")
    sh.gives("echo a\necho b", "a\nb\n")


@wrong(
    "a changed PS1 makes every later command time out",
    but=["readonly PROMPT_COMMAND=:", "readonly PS1", "readonly PS2='> '"],
)
@pytest.mark.parametrize(
    "command",
    [
        "readonly PS1='$ '",
        "readonly PS1",
        "readonly PS0='x'",
        "readonly PS0=$'\\e[1mtwo\\nlines'",
        "readonly PS2='> '",
        "readonly PROMPT_COMMAND=:",
        "readonly PS1='a ' PS2='b ' PS0='c ' PROMPT_COMMAND=:",
        "declare -r PS1=x",
    ],
)
def test_readonly_prompts(sh: Shell, swerex_error: type[Exception], command: str) -> None:
    """The worst that a user can do to our marks: codes and outputs stay right, or a typed error says so."""
    sh.ended = True
    try:
        sh.run(command)
    except swerex_error as error:
        assert command.count("=") > 2
        assert not isinstance(error, TimeoutError)
        return
    for text, output, code in (("echo hi", "hi\n", 0), ("echo a; (exit 3)", "a\n", 3), ("echo b\necho c", "b\nc\n", 0)):
        seen = sh.run(text)
        assert (seen.output, seen.exit_code) == (output, code)


@wrong("a changed PS1 makes every later command time out")
@pytest.mark.parametrize(
    "commands",
    [
        ["PS0=x"],
        ["readonly PS0=x"],
        ["PROMPT_COMMAND=PS0=x"],
        ["readonly PS1=", "PS0=x"],
        ["readonly PS1= PS0=x"],
        ["PROMPT_COMMAND='PS0=x; PS1=\"$? \"'", "PROMPT_COMMAND+=('PS1=y')"],
        ["PROMPT_COMMAND=(PS1=a PS1=b)", "PROMPT_COMMAND+=(PS1=y)", "PROMPT_COMMAND=(PS1=a PS1=b)", "PS0=x"],
    ],
)
def test_output_that_begins_as_what_ps0_prints(sh: Shell, commands: list[str]) -> None:
    """What PS0 prints is taken out where it printed it, and not where the session has put PS0 back since."""
    for command in commands:
        sh.run(command)
    for _ in range(2):
        sh.gives(f"printf {'y' * 300}", "y" * 300)
        sh.gives("printf xxy; (exit 3)", "xxy", 3)


@wrong("a changed PS1 makes every later command time out")
def test_prompt_is_what_the_user_made_it(sh: Shell) -> None:
    """A script that saves PS1 and puts it back (activate does) finds what it saved."""
    sh.out("old=$PS1; PS1='mine '")
    sh.out("echo between")
    sh.out("PS1=$old")
    sh.gives("echo after", "after\n")


@wrong("what PROMPT_COMMAND prints goes into the exit code's parser")
def test_prompt_command_that_prints(sh: Shell) -> None:
    sh.run("PROMPT_COMMAND='echo noise'")
    for i in range(3):
        seen = sh.run(f"echo out{i}; (exit {i})")
        assert re.fullmatch(rf"out{i}\n(noise\n)?", seen.output)
        assert seen.exit_code == i
    sh.run("unset PROMPT_COMMAND")


def test_prompt_command_of_the_user_runs(sh: Shell) -> None:
    """PROMPT_COMMAND is the user's: direnv and friends depend on it."""
    sh.out("n=0; PROMPT_COMMAND='n=$((n+1))'")
    sh.out("true")
    sh.out("true")
    assert int(sh.out("echo $n")) >= 2


@wrong("source venv/bin/activate adds the prompt to every output")
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


@wrong("source venv/bin/activate adds the prompt to every output")
def test_venv_in_one_command(sh: Shell, tmp_path: Path) -> None:
    seen = sh.out(f"cd {tmp_path} && python3 -m venv --without-pip v && . v/bin/activate && python -c 'print(6*7)'", 20)
    assert seen == "42\n"
    sh.run("deactivate")


@wrong("conda's prompt is added to every output")
def test_conda_like_activation(sh: Shell) -> None:
    """What `conda activate` does to a shell: functions, PS1 with its own part taken off and put on again."""
    sh.out(
        textwrap.dedent("""\
        __conda_activate() {
            local new="($1) "
            PS1="${PS1#"${CONDA_PROMPT_MODIFIER-}"}"
            export CONDA_PROMPT_MODIFIER="$new" CONDA_DEFAULT_ENV="$1"
            PS1="$new${PS1-}"
            hash -r
        }
        conda() {
            case $1 in
                activate) __conda_activate "$2" ;;
                deactivate) PS1="${PS1#"$CONDA_PROMPT_MODIFIER"}" ;;
            esac
        }
        """)
    )
    for name in ("base", "dev", "base"):
        sh.gives(f"conda activate {name}", "")
        sh.gives("echo $CONDA_DEFAULT_ENV", f"{name}\n")
    sh.gives("conda deactivate", "")
    sh.gives("echo done", "done\n")


@wrong("an echoing terminal shows what is typed")
def test_stty_echo(sh: Shell) -> None:
    for mode in ("echo", "echo echoctl echoe echok echonl", "sane", "echo -icanon", "cooked"):
        sh.gives(f"stty {mode}", "")
        sh.gives("echo hi", "hi\n")
        sh.gives("echo a\necho b", "a\nb\n")
        sh.gives("false", "", 1)


@wrong("an echoing terminal shows what is typed")
@pytest.mark.parametrize("before", ["exec 2>/dev/null", "readonly PS0=x", "sleep 0.01 &", "true"])
def test_echo_is_no_output(sh: Shell, before: str) -> None:
    """Whether prompts show or not; and the command runs in the modes that were asked for."""
    sh.run("stty sane")
    sh.run(before)
    for text, output in (
        ("printf hi", "hi"),
        ("", ""),
        ("  ", ""),
        ("# comment", ""),
        ("echo a\necho b", "a\nb\n"),
        ("echo 'a\tb\x01'", "a\tb\x01\n"),
        ("cat <<E\n" + 2000 * "line\n" + "E", 2000 * "line\n"),
        ("echo " + 4050 * "x", 4050 * "x" + "\n"),
        ("stty -a | grep -ow -- '-*echo'", "echo\n"),
        ("echo a\nstty -a | grep -ow -- '-*echo'", "a\necho\n"),
    ):
        sh.gives(text, output)
    seen = sh.run("sleep 0.05; printf 'PA%sT' ''", expect=["PAT"])
    assert "printf" not in seen.output


@pytest.mark.parametrize(
    "mode",
    [
        "raw",
        "-icanon",
        "cbreak",
        "-isig",
        "-icrnl",
        "inlcr",
        "igncr",
        "tostop",
        "-opost",
        "opost onlcr",
        "olcuc",
        "iuclc",
        "istrip",
        "cs7",
        "parmrk",
        "echo extproc",
        "-ixon",
        "intr ^A",
        "eof x",
        "eol e",
        "erase a",
        "kill h",
        "lnext o",
        "werase i",
        "stop c start q",
        "nl",
        "evenp",
        "ixoff",
        "-cread",
        "noflsh",
        "flusho",
        "extproc",
        "litout",
    ],
)
def test_stty_whatever(sh: Shell, mode: str) -> None:
    """Letters may change (`olcuc` is asked for), synchronisation may not."""
    sh.run(f"stty {mode}")
    for i in range(3):
        seen = sh.run(f"echo hi{i}; (exit {i})")
        assert seen.output.lower().replace("\r", "") == f"hi{i}\n"
        assert seen.exit_code == i
    sh.run("stty sane")
    sh.gives("echo hi", "hi\n")


def test_a_byte_arrives_once_whatever_the_terminal_marks(sh: Shell) -> None:
    sh.run("stty parmrk")
    sh.gives("printf %s '\udcff' | od -An -tx1", " ff\n")
    sh.gives("cat <<'E' | od -An -tx1\n\udcff\nE", " ff 0a\n")


def test_stty_that_the_user_asked_for_stays(sh: Shell) -> None:
    sh.out("stty cols 132 rows 50")
    sh.gives("stty size", "50 132\n")
    sh.gives("echo a\nstty size", "a\n50 132\n")
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


@wrong("a redirected stdout takes the markers along")
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


@wrong("the prompt goes to stderr")
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


def test_exec_stderr_to_stdout(sh: Shell) -> None:
    sh.gives("exec 2>&1", "")
    sh.gives("echo hi; echo err >&2", "hi\nerr\n")


@wrong("stdout and the prompt are both gone")
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


@wrong("the shell ends unnoticed")
def test_exec_stdin_away(sh: Shell, tmp_path: Path, swerex_error: type[Exception]) -> None:
    """Bash reads its commands from stdin. Without one it ends: that is told, and nothing hangs."""
    sh.ended = True
    seen = sh.run("exec </dev/null", check="ignore")
    if not seen.failure_reason:
        try:
            seen = sh.run("echo hi")
            assert seen.failure_reason or (seen.output, seen.exit_code) == ("hi\n", 0)
        except swerex_error:
            pass


def test_stdin_of_a_group_is_put_back(sh: Shell) -> None:
    sh.gives("while read -r a b; do echo $b; done <<< $'1 x\\n2 y'; { read l; echo [$l]; } </dev/null", "x\ny\n[]\n")


def test_all_other_fds_closed(sh: Shell) -> None:
    for _ in range(2):
        sh.out('for ((i = 3; i < 256; i++)); do eval "exec $i>&-"; done; true')
        sh.gives("echo hi", "hi\n")
        sh.gives("cat <<E\nx\nE\n(exit 4)", "x\n", 4)
        sh.gives("echo <(:) | grep -c fd; echo 'ctl\x01' | wc -c; : " + "q" * 5000, "1\n5\n")
    sh.gives("cat <(echo sub)", "sub\n")


def test_junk_in_all_fds_of_the_shell(sh: Shell) -> None:
    """Nothing of ours sits behind an fd of the shell that text could spoil."""
    sh.run("for f in /proc/$$/fd/*; do n=${f##*/}; [ $n -gt 2 ] && { echo junk >&$n; } 2>/dev/null; done; true")
    sh.gives("echo hi", "hi\n")


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


def test_umask(sh: Shell, tmp_path: Path) -> None:
    sh.out("umask 077")
    sh.out(f"touch {tmp_path}/f; mkdir {tmp_path}/d")
    assert oct((tmp_path / "f").stat().st_mode & 0o777) == "0o600"
    assert oct((tmp_path / "d").stat().st_mode & 0o777) == "0o700"
    sh.gives("umask", "0077\n")


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


def test_term_may_change(sh: Shell) -> None:
    for term in ("xterm-256color", "vt100", "", "nonsense"):
        sh.out(f"export TERM='{term}'")
        sh.gives('echo "$TERM"', f"{term}\n")
        sh.gives("echo a\necho b", "a\nb\n")


@wrong("readline comes on: TABs complete, bracketed paste, echo")
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


@wrong("lines above 4,095 bytes")
def test_line_editing_turned_on_inside_a_longer_command(sh: Shell) -> None:
    """bash 5.2 crashes on `set -o emacs` inside some forms of delivery."""
    sh.gives("set -o emacs\necho a\nset +o emacs\necho b", "a\nb\n")
    sh.gives(f": {'k' * 5000}; set -o vi; echo a; set +o vi; echo b", "a\nb\n")
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


def test_extdebug(sh: Shell) -> None:
    sh.out("shopt -s extdebug; trap 'true' DEBUG")
    sh.gives("echo hi; (exit 3)", "hi\n", 3)
    sh.gives("echo a\necho b", "a\nb\n")
    sh.out("shopt -u extdebug; trap - DEBUG")


def test_extdebug_trap_that_skips_commands(sh: Shell) -> None:
    sh.out("shopt -s extdebug; trap '[[ $BASH_COMMAND != *skipme* ]]' DEBUG")
    sh.gives("echo one; echo skipme; echo two", "one\ntwo\n")
    sh.gives("trap - DEBUG; shopt -u extdebug", "")
    sh.out("shopt -s extdebug; trap '[[ $BASH_COMMAND == echo* || $BASH_COMMAND == trap* ]]' DEBUG")
    sh.gives("echo hi", "hi\n")
    sh.gives("true; echo hi", "hi\n")
    sh.gives("trap - DEBUG; shopt -u extdebug", "")
    sh.out("shopt -u extdebug")


@wrong("the exit code is asked for with echo")
def test_shadowed_builtins(sh: Shell) -> None:
    """Functions and aliases may take any name, `builtin` and `printf` too."""
    for name in (
        "echo",
        "printf",
        "eval",
        "source",
        "builtin",
        "command",
        "export",
        "set",
        "trap",
        "stty",
        ":",
        "true",
    ):
        sh.run(f"{name}() {{ return 9; }}")
    sh.run("alias cd=false test=false")
    for i in range(3):
        seen = sh.run(f"(exit {i})")
        assert (seen.output, seen.exit_code) == ("", i)
    assert sh.run(f"x={'l' * 100}\n[[ -n $x ]]").exit_code == 0
    sh.run("unset -f builtin command unset unalias")
    sh.run("unset -f echo printf eval source export set trap stty : true")
    sh.run("unalias -a")


def test_disabled_builtins(sh: Shell) -> None:
    sh.run("enable -n echo printf eval source . builtin command export trap test [ true :")
    for i in range(3):
        assert sh.run(f"(exit {i})").exit_code == i
    sh.run("enable echo printf eval source . builtin command export trap test [ true :")


def test_restricted_mode(sh: Shell) -> None:
    sh.run("set -r")
    sh.gives("echo hi", "hi\n")
    sh.gives("echo a\n(exit 3)", "a\n", 3)
    assert sh.run("cd /").exit_code == 1


def test_ifs_and_locale(sh: Shell) -> None:
    sh.out("IFS=; LC_ALL=C; LANG=C; export LC_ALL LANG")
    sh.gives("echo a b 'ä'; (exit 2)", "a b ä\n", 2)
    sh.out("IFS=0123456789abcdef")
    sh.gives("echo hi; (exit 21)", "hi\n", 21)
    sh.gives("echo a\n(exit 1)", "a\n", 1)
    sh.out("IFS=$' \\t\\n'")


def test_glob_options(sh: Shell) -> None:
    sh.out(
        "set -f; shopt -s nullglob failglob dotglob nocaseglob; set -o noglob; set -C; set -k; set -a; set -b; set -h"
    )
    sh.gives("echo hi; (exit 2)", "hi\n", 2)
    sh.gives("echo a\n(exit 1)", "a\n", 1)
    sh.out("set +f +C +k +a +b")


def test_positional_parameters(sh: Shell) -> None:
    sh.out("set -- a 'b c'")
    sh.gives('echo $# "$2"; shift; echo $1', "2 b c\nb c\n")
    sh.gives("printf '%s.' \"$@\"\necho", "b c.\n")
    sh.gives('echo "$0 $BASH_SUBSHELL $- " | grep -c i', "1\n")


def test_shell_is_interactive_and_the_users_own(sh: Shell) -> None:
    sh.gives("[[ $- == *i* ]] && echo interactive", "interactive\n")
    sh.gives("echo $0", "bash\n")
    sh.gives("echo $BASH_SUBSHELL $SHLVL | cut -d' ' -f1", "0\n")
    sh.gives("jobs; alias; declare -F", "")


@wrong("PS1 is exported")
def test_children_do_not_inherit_our_prompt(sh: Shell) -> None:
    assert "PS1=" not in sh.out("env")
    assert "PS0=" not in sh.out("env")
    assert "PROMPT_COMMAND=" not in sh.out("env")


def test_children_inherit_three_fds(sh: Shell) -> None:
    sh.gives("python3 -c 'import os; print(sorted(map(int, os.listdir(\"/proc/self/fd\")))[:-1])'", "[0, 1, 2]\n")
    sh.gives("for i in 0 1 2; do [ -t $i ] && echo tty; done", "tty\ntty\ntty\n")


@wrong("commands run with SIGPIPE and SIGXFSZ ignored")
def test_signals_are_default(sh: Shell) -> None:
    sh.gives("yes | head -1; echo ${PIPESTATUS[@]}", "y\n141 0\n")
    assert no_signals(sh.out("grep -E 'Sig(Ign|Blk)' /proc/self/status"))


@wrong("an ignore that Python inherited is passed on for good")
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


@wrong("job notices pollute later answers")
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


def test_jobs(sh: Shell) -> None:
    sh.run("sleep 50 &")
    assert re.search(r"\[1\]\+\s+Running\s+sleep 50", sh.out("jobs"))
    sh.run("kill %1; wait %1")
    sh.run("true")
    assert "Running" not in sh.out("jobs")


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


def test_random_and_seconds_are_the_shells(sh: Shell) -> None:
    sh.out("RANDOM=42; a=$RANDOM")
    sh.out("RANDOM=42")
    sh.gives("b=$RANDOM; [[ $a == $b ]] && echo same", "same\n")


def test_startup_files(shells: type[Shell], tmp_path: Path) -> None:
    """~/.bashrc first, then `startup_source` in order; what they print is the output of the creation."""
    Path(os.environ["HOME"], ".bashrc").write_text("echo from bashrc\nFIRST=1\nPS1='rc> '\nalias ll='echo alias-ll'\n")
    one, two = tmp_path / "one with space.sh", tmp_path / "two.sh"
    one.write_text("echo one; A=$FIRST$FIRST\nPS1='one> '\n")
    two.write_text("echo two; B=$A$A\nset +o emacs\nfalse\n")
    sh = shells(startup_source=[shlex.quote(str(one)) if ON_ORIGINAL else str(one), str(two)])
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


@wrong("job notices are in the output")
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


@wrong("every command is followed by one of its own")
@pytest.mark.parametrize("size", [1025, 5000, 14_000])
@pytest.mark.parametrize("piece", ["x", "\\'", "\u00e4"])
def test_long_last_argument_outlives_a_question(sh: Shell, size: int, piece: str) -> None:
    """The prompts are put back, and `$_` is what it was."""
    sh.run(f'PS1=x; true "{piece * size}"')
    sh.gives("printf %s \"$_\"", piece * size)


@wrong("every command is followed by one of its own")
def test_long_pipeline_outlives_a_question(sh: Shell) -> None:
    sh.run("PS1=x; " + "true | " * 62 + "(exit 7) | false")
    sh.gives('echo "${PIPESTATUS[@]}"', "0 " * 62 + "7 1\n")
