"""Interrupts of what SIGINT does not end, where the shell itself holds the terminal."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from swerex_c.exceptions import BashIncorrectSyntaxError, CommandTimeoutError, SessionLostSyncError
from swerex_c.runtime.local import LocalRuntime
from tests.support.harness import busy_machine, needs
from tests.support.session import Session, Shell
from tests.support.wait import DEADLINE, settle

TRAPS = ["trap : INT", "trap '' INT"]
_EXTENDED = "case ab in +(a|b)) while :; do :; done ;; esac"


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("holds", [
    "read x", "while read x; do :; done", "printf half; read -p more x", "read -n 1 x", "read -t 900 x",
    "TMOUT=900; read x", "sleep 1000 & wait",
    "x=$(sleep 1000)", "x=$(sleep 1000; sleep 1000)", "x=$( (sleep 1000; sleep 1000) | cat)",
    "(sleep 1000; sleep 1000) & wait $!", "sleep 1000", "sleep 1000 | cat",
])  # fmt: skip
def test_what_the_shell_waits_for(sh: Shell, trap: str, holds: str) -> None:
    sh.gives(trap, "")
    sh.interrupted(holds, timeout=0.1, n_retry=2)
    sh.gives("echo ok", "ok\n")


def test_prompts_that_change_by_themselves(sh: Shell) -> None:
    """Where the kernel does not tell, the end of a command waits for a prompt like the last one."""
    for command in ("PROMPT_COMMAND=PS1=x", "PROMPT_COMMAND+=(PS1=y)", "unset PS1", "PROMPT_COMMAND=(PS1=a PS1=b)"):
        sh.gives(command, "")
    sh.interrupted("trap '' INT; echo begun; sleep 1000", "begun", timeout=1, n_retry=1)


@pytest.mark.idle
def test_an_interrupt_is_not_for_the_prompts_own_programs(sh: Shell, tmp_path: Path) -> None:
    """Its PROMPT_COMMAND would be interrupted too, which leaves bash confused about the terminal, and be run again."""
    sh.run(f"h() {{ (true &) >/dev/null; echo x >>{tmp_path}/runs; }}; PROMPT_COMMAND=h")
    for _ in range(10):
        sh.run(f": >{tmp_path}/runs")
        sh.interrupted("sleep 1000")
        assert (tmp_path / "runs").read_text() == "x\n" * 2


@pytest.mark.parametrize(("ignored", "code"), [("INT", 129), ("INT HUP", 137)])
def test_a_program_is_hung_up_before_it_is_killed(sh: Shell, ignored: str, code: int) -> None:
    """So that `screen -r` can let go of its server, and an editor save what it has."""
    sh.interrupted(f"sh -c \"trap '' {ignored}; echo up; exec sleep 1000\"", "up", timeout=0.1, n_retry=1)
    sh.gives("echo $?", f"{code}\n")


async def test_attempts_without_a_pause_hold_up_no_other_session() -> None:
    runtime = LocalRuntime()
    held, other = Session(runtime, "held"), Session(runtime, "other")
    await asyncio.gather(held.create(), other.create())
    await held.begin("sh -c \"trap '' INT; echo up; sleep 1000\"", "up\n")
    interrupt = asyncio.ensure_future(held.interrupt(timeout=0, n_retry=1_000_000))
    await other.gives("sleep 0.1; echo hi", "hi\n")
    assert not interrupt.done()
    interrupt.cancel()
    await runtime.close()


def test_a_line_that_nobody_has_read_yet(sh: Shell) -> None:
    """It is no reason to leave alone what the shell waits for."""
    sh.run("trap '' INT")
    sh.begin("sleep 1000 & echo begun; wait", "begun")
    with pytest.raises(CommandTimeoutError):
        sh.run("echo ahead", 0.3, is_interactive_command=True, expect=["nowhere"])
    sh.interrupt(timeout=0.1, n_retry=2)
    sh.gives("echo ok", "ok\n")


def test_jobs_of_before_live_on(sh: Shell) -> None:
    """What an interrupt kills to free the shell began with the command that it interrupts."""
    sh.run("trap '' INT; sleep 1000 & old=$!")
    sh.interrupted("sleep 1001 & new=$!; echo begun; wait $new", "begun", timeout=0.1, n_retry=2)
    sh.gives("kill -0 $old && echo lives", "lives\n")
    sh.gives("kill -0 $new 2>&-", "", 1)
    sh.run("kill -9 $old")


def test_a_stopped_shell_goes_on(sh: Shell) -> None:
    looks = "(until grep -q '^State:.T' /proc/$$/status; do sleep 0.01; done; echo stopped)"
    sh.begin(f"{looks} & kill -STOP $$", "stopped")
    sh.interrupt()
    sh.gives("echo ok", "ok\n")


def test_stopped_output_goes_on(sh: Shell) -> None:
    """^S was typed, and the terminal keeps what the program and the shell print."""
    sh.begin("stty ixon; echo begun; cat", "begun")
    with pytest.raises(CommandTimeoutError):
        sh.run("\x13a", 0.3, is_interactive_command=True, expect=["a"])
    sh.interrupt()
    sh.gives("echo ok", "ok\n")


@pytest.mark.parametrize(("before", "after", "expected"), [
    ("while sleep 0.05; do :; done &", "sleep 0.1; jobs | grep -c Running", "1\n"),
    ("exec > >(exec tee ~/log)", "echo ok; until grep -q ok ~/log; do sleep 0.01; done", "ok\n"),
])  # fmt: skip
def test_what_ran_before_the_command_lives_on(sh: Shell, before: str, after: str, expected: str) -> None:
    """A loop in the background with what it has started since, and the reader of the shell's own output."""
    sh.run(f"trap '' INT; {before}")
    sh.interrupted("sleep 0.1; echo begun; x=$(sleep 1000)", "begun", timeout=0.2, n_retry=1)
    sh.gives(after, expected, 0)


def test_an_end_of_input_is_for_who_reads_the_terminal(sh: Shell, tmp_path: Path) -> None:
    """Behind a read of something else it would wait for the shell, and end it."""
    sh.ended = True
    sh.gives(f"mkfifo {tmp_path}/fifo; trap '' INT; exec 3<>{tmp_path}/fifo", "")
    sh.begin("echo begun; read x <&3", "begun")
    with pytest.raises(CommandTimeoutError, match="shell itself"):
        sh.interrupt(timeout=0.1, n_retry=1)
    (tmp_path / "fifo").write_text("free\n")
    sh.gives("echo $x", "free\n")


@pytest.mark.parametrize("trap", TRAPS)
@pytest.mark.parametrize("loop", ["while :; do :; done", "while :; do read x; done"])
def test_the_error_says_that_the_shell_holds_it(sh: Shell, trap: str, loop: str) -> None:
    sh.ended = True
    sh.gives(trap, "")
    sh.begin(f"echo begun; {loop}", "begun")
    with pytest.raises(CommandTimeoutError, match="the shell itself .*Close the session"):
        sh.interrupt(timeout=0.1, n_retry=1)


@pytest.mark.parametrize("before", ["exec 255>&-", "set +m", "set -m"])
def test_the_shell_in_front_of_what_it_waits_for(sh: Shell, before: str) -> None:
    """Bash gives the terminal to no program without its descriptor 255, nor without job control."""
    sh.gives(before, "")
    sh.gives("/bin/echo hi | cat; (exit 6)", "hi\n", 6)
    sh.interrupted("sleep 1000", timeout=0.1, n_retry=2)
    sh.gives("echo ok", "ok\n")


@pytest.mark.parametrize("program", [
    "bash", "bash --norc", "bash -l", "bash --norc --noediting", "bash --noediting --rcfile /dev/null -i", "./bash-5.9",
])  # fmt: skip
def test_another_bash_in_its_place(sh: Shell, tmp_path: Path, program: str) -> None:
    sh.gives(f'export kept=1; cd {tmp_path}; cp "$BASH" bash-5.9', "")
    sh.gives(f"exec {program}", "")
    sh.gives("echo $kept; (exit 3)", "1\n", 3)


@pytest.mark.parametrize("options", ["", " -i"])
@pytest.mark.parametrize("shell", ["sh", "dash", "zsh"])
def test_another_shell_in_its_place(sh: Shell, tmp_path: Path, shell: str, options: str) -> None:
    """Nothing can be asked of it, nor typed to it as a command: whoever called it is told at once."""
    needs(shell)
    sh.ended = True
    (tmp_path / ".zshrc").touch()  # else it has questions
    sh.gives(f"export ZDOTDIR={tmp_path}", "")
    for command in (f"exec {shell}{options}", "echo next"):
        with pytest.raises(SessionLostSyncError, match=r"no bash.*exec.* Close the session"):
            sh.run(command)


@pytest.mark.parametrize("program", ["sh -c 'read x; {}'", "sh SCRIPT", "bash -c 'read -e x; {}'", "bash SCRIPT"])
def test_another_program_in_its_place(sh: Shell, tmp_path: Path, program: str) -> None:
    """Another shell's script is a program as any other, and one of bash's may wait as a bash does at its prompt."""
    sh.ended = True
    answer = "echo got $x"
    script = tmp_path / "script"
    script.write_text(f"read {'-e' * program.startswith('bash')} x; {answer}")
    sh.times_out(f"exec {program.format(answer).replace('SCRIPT', str(script))}", 1.5)
    assert sh.leave("answer").output.endswith("got answer\n")


def test_an_error_in_every_prompt_has_no_end(sh: Shell) -> None:
    """Bash goes back to its prompt at an arithmetic error, which is where this one comes from: it does so for ever."""
    sh.ended = True
    sh.gives("declare -i PS1", "")
    sh.begin("PROMPT_COMMAND='PS1=\"\\u@\\h \"'", "syntax error")
    with pytest.raises(CommandTimeoutError, match="the shell itself .*Close the session"):
        sh.interrupt(timeout=0.1, n_retry=1)


def test_a_program_that_is_just_starting(sh: Shell, tmp_path: Path) -> None:
    """A child of bash's that gets the signal before it is a program forgets it: the program gets one of its own."""

    async def rounds() -> list[int]:
        codes = []
        for number in range(60):
            path = tmp_path / str(number)
            running = asyncio.ensure_future(sh.go(f"> {path}; sleep 1000"))
            while not path.exists():
                await settle(1)
            await sh.session.interrupt(timeout=DEADLINE, n_retry=1)
            codes.append((await running).exit_code)
        return codes

    with busy_machine():
        assert set(sh.wait(rounds())) == {130}  # of SIGINT, not of SIGKILL


@pytest.mark.parametrize(
    ("accepted", "refused"),
    [
        (("", "select x in a b; do :; done"), ("", "select x in a b; do :;")),
        # Only the shell knows whether `extglob` is on, without which bash refuses it: that question is not interrupted.
        (("shopt -s extglob", _EXTENDED), ("shopt -u extglob", _EXTENDED)),
    ],
    ids=["", "extended pattern"],
)
def test_a_command_whose_syntax_is_still_being_checked(
    sh: Shell, accepted: tuple[str, str], refused: tuple[str, str]
) -> None:
    """It was given before the interrupt, so it is what the interrupt ends; one that bash refuses needs no end."""

    async def interrupted(command: str) -> Any:
        running = asyncio.ensure_future(sh.go(command))
        await asyncio.sleep(0)
        await sh.session.interrupt(timeout=DEADLINE, n_retry=1)
        return await running

    for _ in range(10):
        sh.gives(accepted[0], "")
        assert sh.wait(interrupted(accepted[1])).exit_code == 130
        sh.gives(refused[0], "")
        with pytest.raises(BashIncorrectSyntaxError):
            sh.wait(interrupted(refused[1]))
        sh.gives("echo ok", "ok\n")
