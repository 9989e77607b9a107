"""A person in a session: `BashSession.interact()`."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from swerex_c.exceptions import InvalidInputError, SessionBusyError, SessionDiedError
from tests.support.person import PROMPT, Person, readable_modes
from tests.support.processes import Family
from tests.support.session import Shell

PROGRAM = """\
import asyncio, signal, sys
from swerex_c.runtime.abstract import BashAction, CreateBashSessionRequest
from swerex_c.runtime.local import LocalRuntime

def run(command):
    action = BashAction(command=command, check="silent", timeout=60)
    return asyncio.run(runtime.run_in_session(action)).output

signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))
runtime = LocalRuntime()
asyncio.run(runtime.create_session(CreateBashSessionRequest(startup_timeout=60)))
try:
    run(f"cd {sys.argv[1]}; export x='a  b'; echo here >&2; (exit 3)")
    before = run("echo $?; pwd; stty -a; stty size; echo $x")
    code = runtime.sessions["default"].interact(0, 1)
    run("(exit 3)")
    print("the same", run("echo $?; pwd; stty -a; stty size; echo $x") == before, "code", code, flush=True)
finally:
    asyncio.run(runtime.close())
"""


@pytest.fixture
def person(family: Family, tmp_path: Path) -> Iterator[Person]:
    with Person(str(tmp_path), rows=50, columns=150, command=[sys.executable, "-c", PROGRAM]) as someone:
        someone.until(PROMPT)
        yield someone
    assert not family.left()


def leave(person: Person) -> None:
    person.keys(b"exit 6\r")
    person.until(rb"the same True code 6\r\n")
    assert person.exit_code() == 0
    assert readable_modes(person.slave) == person.modes


def test_the_session_lends_its_state_and_is_as_it_was_afterwards(person: Person, tmp_path: Path) -> None:
    person.keys(b'echo "$x" $PWD\r')
    person.until(b"a  b " + os.fsencode(tmp_path) + b"\r\n")
    person.run(b"cd /; export x=other; stty -echo raw")
    leave(person)


def test_interrupts_and_jobs(person: Person) -> None:
    person.keys(b"yes\r")
    person.until(rb"y\r\ny\r\n")
    person.keys(b"\x03")
    person.until(PROMPT)
    person.begin("sleep 1000")
    person.keys(b"\x03")
    person.until(PROMPT)
    person.begin("cat")
    person.keys(b"\x1a")
    person.until(rb"Stopped")
    person.until(PROMPT)
    person.keys(b"fg\r")
    person.until(rb"cat")
    person.keys(b"heard\r")
    person.until(rb"heard\r\nheard\r\n")  # the second time by cat: it has the terminal
    person.keys(b"\x03")
    person.until(PROMPT)
    leave(person)


def test_a_program_gets_what_is_typed(person: Person) -> None:
    person.begin("cat")
    person.keys(b"hello\r")
    assert person.until(rb"hello\r\nhello\r\n")  # the terminal's echo, then cat's own
    person.keys(b"wrong\x15right\r")
    person.until(rb"\nright\r\n")
    person.keys(b"\x04")
    person.until(PROMPT)
    person.keys(b"read -rsp 'speak''-now' secret; echo; echo ${#secret}\r")
    person.until(rb"speak-now")
    person.keys(b"hidden\r")
    assert b"hidden" not in person.until(rb"6\r\n" + b".*" + PROMPT)


def test_bytes_pass_unchanged(person: Person, tmp_path: Path) -> None:
    data = bytes(range(1, 256)) * 4000
    (tmp_path / "bytes").write_bytes(data)
    person.keys(b"stty raw; cat bytes; stty sane\r")
    person.until(rb"stty sane\r?\n")
    shown = person.until(PROMPT)
    assert data in shown


def test_the_size_is_the_persons(person: Person) -> None:
    person.keys(b"stty size\r")
    person.until(rb"50 150\r\n")
    person.until(PROMPT)
    # Within a command it is passed on when it happens.
    person.keys(b"sh -c \"trap 'stty size; exit' WINCH; echo on; while :; do sleep 0.1; done\"\r")
    person.until(rb"\ron\r\n")
    fcntl.ioctl(person.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 44, 111, 0, 0))
    person.until(rb"44 111\r\n")
    person.until(PROMPT)
    leave(person)


def test_the_persons_terminal_answers_queries(person: Person) -> None:
    """The engine answers them when nobody is there; here that would be one answer too many."""
    program = "import os,time; os.write(1, b'\\x1b[6n'); time.sleep(0.5); print(ascii(os.read(0, 99)))"
    person.keys(b"stty raw -echo; " + os.fsencode(sys.executable) + b' -c "' + program.encode() + b'"; stty sane\r')
    person.until(rb"\x1b\[6n")
    person.keys(b"\x1b[5;7R")
    assert rb"b'\x1b[5;7R'" in person.until(PROMPT)


def test_the_death_of_the_sessions_shell_is_told(person: Person) -> None:
    person.keys(b"read -r _ _ _ shell _ </proc/$PPID/stat; kill -9 $shell\r")
    person.until(rb"SessionDiedError: The session's shell has ended. It was killed by signal 9.")
    assert person.exit_code() == 1
    assert readable_modes(person.slave) == person.modes


def test_modes_are_restored_when_the_program_ends(person: Person) -> None:
    person.begin("sleep 1000")
    person.process.send_signal(signal.SIGTERM)
    assert person.exit_code() == 9
    assert readable_modes(person.slave) == person.modes


def test_what_cannot_be_attached(shells: type[Shell]) -> None:
    master, slave = os.openpty()
    pipe, other = os.pipe()
    before = termios.tcgetattr(slave)
    sh = shells()
    session = sh.aio.sessions["default"]
    with pytest.raises(InvalidInputError, match="needs a terminal"):
        session.interact(pipe, slave)
    sh.times_out("sleep 1000")
    with pytest.raises(SessionBusyError, match="still runs"):
        session.interact(slave, slave)
    sh.interrupt()
    sh.run("exit 4")
    with pytest.raises(SessionDiedError, match="status 4"):
        session.interact(slave, slave)
    assert termios.tcgetattr(slave) == before
    for fd in (master, slave, pipe, other):
        os.close(fd)
