"""What hides the shell's prompts, or takes its terminal away: with the kernel's word, and without."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from swerex_c.exceptions import SessionDiedError, SessionLostSyncError
from tests.support.session import Shell
from tests.support.wait import until


@pytest.mark.parametrize("away", ["exec </dev/null", "exec <&-", "exec <EMPTY", "readonly PS0=x; exec </dev/null"])
@pytest.mark.parametrize("check", ["silent", "raise"])
def test_what_never_ran_has_no_answer(sh: Shell, tmp_path: Path, away: str, check: str) -> None:
    """A shell whose input is no terminal any more ends: what is typed from then on has not run, and never succeeded."""
    sh.ended = True
    (tmp_path / "empty").touch()
    seen = sh.run(away.replace("EMPTY", str(tmp_path / "empty")))
    assert seen.exit_code == 0
    with pytest.raises(SessionDiedError):
        sh.run(f"touch {tmp_path}/ran", check=check)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("way", ["exec <FILE", ". OTHER", "echo before; exec 0<FILE"])
def test_commands_of_a_file_answer_for_the_one_that_led_to_them(sh: Shell, tmp_path: Path, way: str) -> None:
    """What the shell reads from a file runs as a part of the command that said so, and of no later one."""
    sh.ended = True
    file, other = tmp_path / "file", tmp_path / "other"
    file.write_text("echo one\nsleep 0.3\necho two\n(exit 4)\n")
    other.write_text(f"exec <{file}\n")
    seen = sh.run(way.replace("FILE", str(file)).replace("OTHER", str(other)))
    assert (seen.output.removeprefix("before\n").removesuffix("exit\n"), seen.exit_code) == ("one\ntwo\n", 4)
    with pytest.raises(SessionDiedError):
        sh.run(f"touch {tmp_path}/ran")
    assert not (tmp_path / "ran").exists()


def test_a_file_that_gives_the_terminal_back(sh: Shell, tmp_path: Path) -> None:
    """The shell has run more than the command, whose own exit code nobody knows."""
    sh.ended = True
    (tmp_path / "file").write_text("echo one\nexec <&1\n")
    with pytest.raises(SessionLostSyncError):
        sh.run(f"exec <{tmp_path}/file")


def test_an_input_that_is_the_terminal_by_another_name(sh: Shell) -> None:
    sh.gives("printf a; true | false; exec </dev/tty", "a")
    sh.gives("true | (exit 3)", "", 3)
    sh.gives('echo "$? ${PIPESTATUS[@]}"', "3 0 3\n")
    sh.gives("PS1='$ '", "")
    sh.gives("echo b", "b\n")
    sh.gives("exec <&1; read -t 0.1 x; echo $?", "142\n")
    sh.gives("echo c", "c\n")


@pytest.mark.parametrize("prompt", ["", "PS1=y; ", r"PS1='y\n\# '; ", "PROMPT_COMMAND='PS1=y'; "])
def test_a_prompt_without_an_answer_is_no_output(sh: Shell, prompt: str) -> None:
    sh.ended = True
    seen = sh.run(f"{prompt}printf a; exec </dev/null")  # the shell says "exit" behind the command, in a sandbox later
    assert (seen.output.removesuffix("exit\n"), seen.exit_code) == ("a", 0)


@pytest.mark.parametrize("before", ["true", "PS0=", "exec 2>&1"])
def test_what_ends_the_shell_has_one(sh: Shell, before: str) -> None:
    sh.ended = True
    sh.gives(before, "")
    seen = sh.run("printf 'a\n'; exec 2>&-; exit 3")
    assert (seen.output, seen.exit_code) == ("a\n", 3)
    assert "status 3" in seen.failure_reason


@pytest.mark.parametrize("hide", [
    "exec 2>/dev/null", "unset PS1 PROMPT_COMMAND", "PROMPT_COMMAND+=('PS1=last')", "readonly PS1='$ '",
    "f() { unset PS1 PROMPT_COMMAND; }; f", "unset PS1 PROMPT_COMMAND; sleep 0.5; printf x",
    "unset PROMPT_COMMAND; readonly PS0=x; exec 3>&-",
])  # fmt: skip
def test_hidden_prompts_strand_nothing(sh: Shell, hide: str) -> None:
    sh.gives(hide, "x" if hide.endswith("x") else "")
    sh.gives("echo a; (exit 3)", "a\n", 3)
    sh.gives("echo $?", "3\n")
    sh.gives("true | false | true", "")
    sh.gives('echo "${PIPESTATUS[@]}"', "0 1 0\n")
    sh.gives("set -o pipefail", "")
    sh.gives("true | false | true", "", 1)
    sh.gives('echo "${PIPESTATUS[@]} $?"', "0 1 0 1\n")


def test_a_readonly_ps2_is_no_output(sh: Shell) -> None:
    """Its text is learned from an answer that the traces of `set -x` stand in."""
    for command in ("declare -r PS2=x", "exec 2>&0", "set -x"):
        sh.gives(command, "")
    sh.gives("exec 3>/dev/null", "+ exec\n")
    sh.gives("echo a\necho b", "+ echo a\na\n+ echo b\nb\n")
    sh.gives("set +x", "+ set +x\n")


@pytest.mark.parametrize("last", ["PS1=y", "PS1='$ '"])
def test_the_prompt_of_an_empty_line_is_no_output(sh: Shell, last: str) -> None:
    """An empty line is typed before a long one, and its prompt shows again what was hidden."""
    for command in (f'PROMPT_COMMAND+=("{last}")', "exec 2>/dev/null", "exec 2>/dev/tty"):
        sh.gives(command, "")
    long = ": " + "x" * 5000
    sh.gives(long, "")
    sh.gives(f"{long}; echo a; (exit 3)", "a\n", 3)
    sh.gives("unset PROMPT_COMMAND; printf b", "b")
    sh.gives(f"{long}; printf b", "b")


@pytest.mark.parametrize("mode", ["emacs", "vi"])
@pytest.mark.parametrize("hide", ["exec 2>/dev/null", "readonly PS1='$ '", "unset PS1 PROMPT_COMMAND"])
@pytest.mark.parametrize("joint", ["\n", "; "])
def test_readline_behind_hidden_prompts(sh: Shell, hide: str, mode: str, joint: str) -> None:
    sh.gives("TERM=xterm", "")  # for which readline writes more than a line's text
    for command in f"{hide}{joint}set -o {mode}".split("\n"):
        sh.gives(command, "")
    sh.gives("echo a; (exit 3)", "a\n", 3)
    sh.gives("echo $?", "3\n")
    sh.gives("printf b", "b")
    sh.times_out("read -e x", 0.5)
    sh.interrupt()


@pytest.mark.parametrize("read", [
    "read x; echo got:$x", "sleep 1 & wait; echo got:", "x=$(head -n1); echo got:$x",
    "function_that_reads; echo got:$x", "alias_that_reads; echo got:$x", '"$word_that_reads" x; echo got:$x',
])  # fmt: skip
def test_no_question_for_who_reads(sh: Shell, read: str) -> None:
    """A shell that reads or waits by itself is asked nothing, also where the same command hides its prompts."""
    sh.run("function_that_reads() { read x; }; alias alias_that_reads='read x'; word_that_reads=read")
    seen = sh.run(f"unset PS1 PROMPT_COMMAND; {read}", expect=["got:"]) if "wait" in read else None
    if seen is None:
        sh.times_out(f"unset PS1 PROMPT_COMMAND; {read}", 1.5)
        sh.talk("word", "got:word")
    else:
        assert seen.expect_string == "got:"
    sh.interrupt()  # without the kernel's word only this makes it certain that the shell reads nothing by itself
    sh.gives("echo hi", "hi\n")


@pytest.mark.parametrize("hide", ["exec 2>/dev/null", "exec 3>&-", "unset PS1 PROMPT_COMMAND", "readonly PS1='$ '"])
def test_a_job_in_the_group_of_the_shell(sh: Shell, hide: str) -> None:
    """Without job control a job is in the shell's own group, which strands nothing that the shell is asked."""
    sh.gives("set +m", "")
    sh.run("sleep 1000 &")
    sh.gives(hide, "")
    sh.gives("echo a; (exit 3)", "a\n", 3)
    sh.times_out("wait", 0.5)
    sh.interrupt()
    sh.gives("echo a; (exit 3)", "a\n", 3)
    sh.run("kill $!")


def test_a_long_line_that_reads_has_not_ended(sh: Shell) -> None:
    """The prompt of an empty line that is typed before it says nothing of it."""
    sh.gives("exec 2>&0", "")
    sh.gives("(exit 3)", "", 3)
    sh.times_out(f": {'x' * 5000}; read y; echo got:$y", 1.0)
    sh.talk("word", "got:word")
    sh.gives(f"(exit 4)\n: {'x' * 140_000}", "")


@pytest.mark.parametrize("hide", ["PROMPT_COMMAND+=('PS1=last')", "readonly PS1='$ '"])
def test_an_interrupt_of_what_hid_the_prompts(sh: Shell, hide: str) -> None:
    """The shell has answered: what it takes to make its prompts seen again does not make the interrupt fail."""
    sh.gives("function_that_waits() { echo begun; sleep 1000; }", "")
    sh.interrupted(f"{hide}; function_that_waits", "begun", timeout=0.2, n_retry=1)
    sh.gives("echo a", "a\n")


@pytest.mark.parametrize("command", ["echo a\necho b", ": " + "x" * 9000 + "; echo a; echo b"], ids=["lines", "long"])
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize(("before", "after"), [(":", ":"), ("exec 2>&0", ":"), ("exec 2>&0", "cd /")])
def test_a_job_is_reported_before_a_start_that_cannot_be_hidden(
    sh: Shell, tmp_path: Path, command: str, streams: bool, before: str, after: str
) -> None:
    """The report itself may stay behind a guard, whose mark does not tell how many jobs there are."""
    sh.run(before)
    sh.run("readonly PS0=x PS2=y")
    sh.run(f"sh -c 'until [ -e {tmp_path}/end ]; do sleep 0.01; done' &")
    job = sh.out("echo $!").strip()
    sh.run(after)
    (tmp_path / "end").touch()
    until(lambda: not Path("/proc", job).exists(), "the shell has not collected the job")
    told = sh.aio.sessions["default"].core.facts()["kernel_proof"]
    text, seen = sh.stream(command) if streams else ("", sh.run(command))
    report, told_of, rest = seen.output.partition("a\nb\n")
    assert told_of and not rest and bool(report) == (before != ":" and not told)
    lines = r"\[1\]\+  Done .*( \(wd: .*\)\n\(wd now: /\))?\n"
    assert not report or re.fullmatch(lines, report) and ("wd" in report) == (after != ":")
    assert not streams or text == seen.output


DEBUG = "trap 'echo \"D:$BASH_COMMAND\"' DEBUG"
AWAY, BACK = "exec 2>/dev/null", "exec 2>/dev/tty"
RANDOM = "PROMPT_COMMAND='PS1=\"$RANDOM \\\\# $ \"'"


@pytest.mark.parametrize("shows", [
    (AWAY, DEBUG), (AWAY, "set -v", BACK), (AWAY, "set -x", BACK), ("PROMPT_COMMAND='PS1=x'", DEBUG),
    ("PROMPT_COMMAND='PS1=x'", AWAY, "set -v", BACK), ("HISTSIZE=0", "PS1='$PS1 $? \\# \\!'"),
    ("PS1='$PS1 $? \\# \\!'", "HISTSIZE=0"), ("PS1=(a b)", "PS0=$'\\e[1mtwo\\nlines\\a'"),
    ("readonly PS1='\\# \\! \\t> '",), ("readonly PS1=x", "set -v"), (RANDOM,), (RANDOM, AWAY, BACK),
    ("declare -i PS1",), ("declare -u PS1 PS0",), ("PS1=5", AWAY),
])  # fmt: skip
def test_nothing_of_ours_is_shown(sh: Shell, shows: tuple[str, ...]) -> None:
    for command in shows:
        assert "7733" not in sh.run(command).output
    for command, output in (("echo x12", "x12\n"), ("printf 12", "12"), ("true", "")):
        seen = sh.run(command).output
        assert "7733" not in seen
        assert output in seen
        if not any(word in " ".join(shows) for word in ("DEBUG", "set -")):
            assert seen == output
    sh.run("trap - DEBUG; set +vx; unset PROMPT_COMMAND PS1")


def test_a_look_at_prompt_command_stays(sh: Shell) -> None:
    sh.gives("PROMPT_COMMAND='PS1=x'", "")
    sh.gives("exec 2>/dev/null", "")
    seen = sh.run("printf '%s' \"${PROMPT_COMMAND[@]}\"; echo after").output
    assert seen.startswith("PS1=x")
    assert seen.endswith("after\n")


@pytest.mark.slow
def test_a_question_that_a_read_took_forgets_no_prompt(sh: Shell) -> None:
    """Without the kernel's word an interrupted shell that traps SIGINT is asked, though it may still read by itself."""
    sh.gives("unset PROMPT_COMMAND; readonly PS0='$ '", "")
    sh.gives("trap : INT", "")
    sh.times_out("read x", timeout=0.3)
    sh.interrupt(timeout=1.0)
    sh.gives("echo a", "a\n")
