"""Attacks on the session by what runs in it: on the terminal it reads from, on its prompts, on its end."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import sys
import time
import uuid
from pathlib import Path

import pytest

from swerex_c.exceptions import SwerexException
from swerex_c.runtime.abstract import CloseBashSessionRequest, Command
from tests.support.harness import few_descriptors, in_forked_child
from tests.support.processes import running
from tests.support.session import Shell
from tests.support.wait import until

OPEN = "import fcntl, os, sys, termios, time; fd = os.open(sys.argv[1], os.O_RDWR | os.O_NOCTTY); print(flush=True); "


def outsider(code: str, begin: Path) -> str:
    """Return a command that starts a program on the shell's terminal: it waits for `begin`, removes it, runs `code`."""
    waits = f"\nwhile not os.path.exists({str(begin)!r}): time.sleep(0.001)\nos.unlink({str(begin)!r})\n"
    program = f"{shlex.quote(sys.executable)} -c {shlex.quote(OPEN + waits + code)}"
    wait = "while [[ -z $READY ]]; do sleep 0.01; done"
    return f'trap READY=1 USR1; setsid {program} "$(tty)" > >(head -n 1 >/dev/null; kill -USR1 $$) & {wait}'


def own_or_none(sh: Shell, code: int) -> None:
    """Assert that a command has its own output and exit code, or is refused with an error."""
    try:
        seen = sh.run(f"echo token{code}; (exit {code})", timeout=3)
    except SwerexException:
        return
    assert f"token{code}\n" in seen.output
    assert seen.exit_code == code


@pytest.mark.idle
def test_a_dead_session_costs_nothing(sh: Shell) -> None:
    """Nobody has to close a session whose shell has ended for its process to be idle."""
    sh.ended = True
    sh.run("exit 3")
    start = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - start < 0.1


THROWN_AWAY = "end = time.time() + 2\nwhile time.time() < end: termios.tcflush(fd, termios.TCIFLUSH)"


@pytest.mark.parametrize(
    ("before", "code", "commands"),
    [
        *((":", f"[os.read(fd, 4096) for i in range({lines})]", 3) for lines in (1, 100)),
        (":", THROWN_AWAY, 93),
        ("readonly PS0= PS1=", f"{THROWN_AWAY}; time.sleep(0.002)", 93),
    ],
    ids=["one read", "many reads", "thrown away", "thrown away, readonly prompts"],
)
def test_what_is_typed_is_taken_by_somebody_else(
    sh: Shell, tmp_path: Path, before: str, code: str, commands: int
) -> None:
    sh.ended = True
    sh.run(before)
    begin = tmp_path / "begin"
    sh.run(outsider(code, begin))
    begin.touch()
    until(lambda: not begin.exists())
    for number in range(7, 7 + commands):
        own_or_none(sh, number)


def test_somebody_else_types(sh: Shell) -> None:
    """Commands that were typed by a program must not lend their exit codes to ours."""
    sh.ended = True
    switch = Path("/proc/sys/dev/tty/legacy_tiocsti")
    if switch.exists() and switch.read_text().strip() != "1":
        pytest.skip("this kernel allows no TIOCSTI")
    stuff = (
        "import fcntl, termios, time\nend = time.time() + 1\nwhile time.time() < end:\n"
        " for c in b'(exit 5)\\n': fcntl.ioctl(0, termios.TIOCSTI, bytes([c]))\n time.sleep(0.001)"
    )
    try:
        sh.run(f"{shlex.quote(sys.executable)} -c {shlex.quote(stuff)} & sleep 0.2")
    except SwerexException:
        return
    for code in range(7, 60):
        own_or_none(sh, code)


def test_a_quote_is_left_open_before_our_command(sh: Shell) -> None:
    """What became the rest of another text was not run, and says so; the session goes on."""
    sh.run('alias open="echo \'"')
    with pytest.raises(SwerexException):
        sh.run("open a")
    sh.gives("echo b; (exit 3)", "b\n", 3)


def test_every_call_in_a_forked_child_fails_with_an_error_of_ours(sh: Shell) -> None:
    def fail() -> None:
        for call in (
            lambda: sh.run("echo a"),
            sh.interrupt,
            lambda: sh.talk("echo a", "a"),
            lambda: sh.wait(sh.aio.close_session(CloseBashSessionRequest())),
        ):
            with pytest.raises(SwerexException) as caught:
                call()
            assert not isinstance(caught.value, TimeoutError)

    sh.runner.close()
    sh.runner = asyncio.Runner()
    in_forked_child(fail)


def test_a_new_loop_without_descriptors(sh: Shell) -> None:
    """The loop is there; what it needs to hear of an answer is not."""

    async def starved() -> None:
        with few_descriptors():
            with pytest.raises(SwerexException):
                await sh.go("echo a")
            with pytest.raises(SwerexException):
                await sh.aio.execute(Command(command=["true"]))

    asyncio.run(starved())


@pytest.mark.parametrize(
    "command",
    [
        "ulimit -R 1000000; (setsid sleep {0} &)",
        "(setsid bash -c 'ulimit -R 1000000; sleep {0} & sleep {0}; true' &)",
        "(ulimit -R 1000000; ulimit -x 1000; sleep {0} & sleep {0}; true) & sleep 0.1",
        "ulimit -R 1000000; ulimit -x 1000; (exec sh -c 'sleep {0} & sleep {0}; true') & sleep 0.1",
        "bash -c '(ulimit -R 1000000; ulimit -x 1000; exec setsid sleep {0}) & wait' & sleep 0.1",
    ],
)
def test_what_has_shed_its_limits_ends_with_the_session(sh: Shell, command: str) -> None:
    seconds = f"88{uuid.uuid4().int % 10**6:06d}"
    sh.run(command.format(seconds))
    until(lambda: running(f"sleep {seconds}"))
    sh.ended = True
    sh.wait(sh.aio.close())
    until(lambda: not running(f"sleep {seconds}"))


def test_an_interrupt_does_not_wait_for_a_shell_that_never_answers(sh: Shell) -> None:
    """A prompt that reads swallows whatever is typed, the session's own question too."""
    sh.ended = True
    with contextlib.suppress(SwerexException):
        sh.run("PS0='$(read x)'", timeout=0.5)
    with contextlib.suppress(SwerexException):
        sh.run("echo a", timeout=0.5)
    with contextlib.suppress(SwerexException):
        sh.interrupt(timeout=0.2, n_retry=2)
