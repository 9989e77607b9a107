"""Lifecycle: how a shell ends, what is told about it, and what is left when it has ended."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from swerex_c.exceptions import SessionDiedError, SwerexException
from tests.support.session import Gate, Shell
from tests.support.wait import until

ENDS = [
    ("exit 256", "echo out; exit 257", 1),
    ("exit keeps the status", "echo out; false; exit", 1),
    ("exit in several lines", "echo out\nexit 4\necho not reached", 4),
    ("exit in a function", "f() { echo out; exit 5; }; f", 5),
    ("kill -HUP", "echo out; kill -HUP $$", 129),
    ("kill -SEGV", "echo out; kill -SEGV $$", 139),
    ("from a child", "echo out; sh -c 'kill -9 $PPID'; sleep 1000", 137),
    ("set -e in a pipeline", "set -eo pipefail; echo out; (exit 7) | cat", 7),
    ("set -u with -e", "set -eu; echo out; (exit 8)", 8),
    ("exit trap", "trap 'echo bye' EXIT; (exit 1); echo out; exit 5", 5),
]


@pytest.mark.parametrize(("command", "code"), [pytest.param(c, n, id=name) for name, c, n in ENDS])
def test_the_command_that_ends_the_shell(sh: Shell, command: str, code: int) -> None:
    """It has its output, its exit code and a reason; every later one a typed error."""
    sh.ended = True
    seen = sh.run(command)
    assert seen.output.replace("exit\n", "") == ("out\nbye\n" if "bye" in command else "out\n")  # it says "exit"
    assert seen.exit_code == code
    assert seen.failure_reason
    for _ in range(2):
        with pytest.raises(SwerexException) as caught:
            sh.run("echo next")
        assert not isinstance(caught.value, TimeoutError)
        assert str(caught.value)


@pytest.mark.parametrize("limit", ["TMOUT=1", "readonly TMOUT=1"])
def test_a_shell_that_waits_no_longer(sh: Shell, limit: str) -> None:
    sh.ended = True
    pid = int(sh.out("echo $$"))
    sh.out(limit)
    until(lambda: not Path(f"/proc/{pid}").exists())  # it is collected when its end was noticed
    with pytest.raises(SessionDiedError, match="while no command ran, as TMOUT makes"):
        sh.run("echo next")


def test_death_while_others_wait(sh: Shell, gate: Gate) -> None:
    sh.ended = True

    async def all_at_once() -> list[Any]:
        commands = [f"echo first; {gate.pass_}; kill -9 $$", *(f"echo {i}" for i in range(3))]
        calls = [asyncio.ensure_future(sh.go(command)) for command in commands]
        await gate.is_reached()
        gate.open()
        return await asyncio.gather(*calls, return_exceptions=True)

    first, *rest = sh.wait(all_at_once())
    assert first.output == "first\n"
    assert first.exit_code == 137
    assert first.failure_reason
    assert all(isinstance(error, SwerexException) for error in rest)


def test_check_raise_on_the_last_command(shells: type[Shell]) -> None:
    assert shells("ends-0").run("exit 0", check="raise").exit_code == 0
    with pytest.raises(SwerexException):
        shells("ends-3").run("exit 3", check="raise")


def test_close_in_an_exit_trap_that_hangs(shells: type[Shell]) -> None:
    """Closing asks nobody: a shell that refuses to go is ended."""
    sh = shells()
    sh.out("trap 'sleep 1000' EXIT HUP TERM INT")
    sh.wait(sh.aio.close())


def test_late_output_of_the_background(sh: Shell, gate: Gate, tmp_path: Path) -> None:
    sh.run(f"({gate.pass_}; echo late; touch {tmp_path}/written) &")
    sh.out("echo a")
    gate.open()
    until((tmp_path / "written").exists)
    sh.gives("echo b", "b\n")


def test_background_output_while_a_command_runs(sh: Shell, tmp_path: Path) -> None:
    """What a person would see: both, in the order of their time."""
    go, written = tmp_path / "go", tmp_path / "written"
    sh.run(f"mkfifo {go}; (read _ <{go}; echo from the background; touch {written}) &")
    command = f"echo one; echo >{go}; until [ -e {written} ]; do sleep 0.01; done; echo two"
    sh.gives(command, "one\nfrom the background\ntwo\n")


def test_a_background_job_that_writes_a_lot_is_not_blocked(sh: Shell, tmp_path: Path) -> None:
    """Nobody waits for it, yet its output is read all the time."""
    sh.run(f"(seq 300000; touch {tmp_path}/done) &")
    until(lambda: (tmp_path / "done").exists())
    sh.run("wait")
    sh.out("true")


def test_orphans_on_the_terminal_do_not_hide_a_death(sh: Shell, shells: type[Shell]) -> None:
    """A setsid child keeps the terminal open: the shell's death is seen all the same, and touches no other session."""
    other = shells("other")
    other.run("setsid sleep 1000 & disown")
    assert other.run("kill -9 $$").exit_code == 137
    with pytest.raises(SwerexException):
        other.run("echo x")
    sh.gives("echo fine", "fine\n")


def test_a_stopped_shell_goes_on(sh: Shell) -> None:
    """Like a suspended machine: time passes, nothing is lost."""
    seen = sh.run("{ sleep 0.3; kill -CONT $$; } & kill -STOP $$; echo after; (exit 4)")
    assert "after\n" in seen.output
    assert seen.exit_code == 4
    sh.run("wait")
    sh.run("true")


@pytest.mark.parametrize("options", ["errexit", "nounset", "errexit:nounset"])
def test_a_strict_parent(shells: type[Shell], tmp_path: Path, options: str) -> None:
    """Startup files are not written for its options, with which commands run all the same."""
    (tmp_path / "more.sh").write_text("false; : $unset; MORE=read\n")
    Path(os.environ["HOME"], ".bashrc").write_text("false; : $unset; FROM_STARTUP=read\n")
    sh = shells(startup_source=[str(tmp_path / "more.sh")], env={"SHELLOPTS": options})
    sh.gives("echo $FROM_STARTUP $MORE", "read read\n")
    sh.gives("for name in errexit nounset; do [[ ! -o $name ]] || echo $name; done", options.replace(":", "\n") + "\n")
    sh.ended = "errexit" in options
    assert bool(sh.run("false").failure_reason) == sh.ended


@pytest.mark.idle
def test_a_new_shell_has_time_to_come_up(shells: type[Shell]) -> None:
    """The original sleeps for 0.35 seconds before the time for startup files begins: what fits there fits here."""
    Path(os.environ["HOME"], ".bashrc").write_text("sleep 0.2; FROM_STARTUP=read\n")
    shells(startup_timeout=0.1).gives("echo $FROM_STARTUP", "read\n")


def test_closing_lets_the_shell_save_its_history(shells: Any, tmp_path: Path) -> None:
    """Many at once on a busy machine: no shell is killed in the middle of it, which would leave temporary files."""
    where = tmp_path / "histories"
    where.mkdir()
    many = [shells(f"session{n}", env={"HISTFILE": str(where / "history")}) for n in range(12)]
    for shell in many:
        shell.run("echo remembered")
        shell.ended = True

    async def close_all() -> None:
        await asyncio.gather(*(shell.aio.close() for shell in many))

    asyncio.run(close_all())
    assert [path.name for path in where.iterdir()] == ["history"]
    assert "echo remembered" in (where / "history").read_text()


def test_a_shell_that_is_killed_from_outside(sh: Shell) -> None:
    """The next command is not what ended it, and nothing shows that it ran."""
    sh.ended = True
    os.kill(int(sh.out("echo $$")), signal.SIGKILL)
    with pytest.raises(SessionDiedError, match="signal 9"):
        sh.run("echo hi")
