"""`swerex-c shell` on this machine. Elsewhere: test_targets.py and tests/providers."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import struct
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.person import PROMPT, Person, readable_modes
from tests.support.processes import Family


@pytest.fixture
def person(family: Family) -> Iterator[Person]:
    with Person() as someone:
        someone.until(PROMPT)
        yield someone
    assert not family.left()


def test_it_is_the_bash_of_a_session(family: Family, tmp_path: Path) -> None:
    source = tmp_path / "a file"
    source.write_text("greet() { echo \"hello $1\"; }\nTMOUT=100 PS1='me@here:\\w\\$ '\n")
    with Person("-C", str(tmp_path), "-e", "A=b  c", "--startup-source", str(source)) as someone:
        someone.until(rb"me@here:[^\r\n]*[#$] ")
        someone.keys(b'greet "$A" ; echo "$PWD ${TMOUT-none}"\r')
        someone.until(b"hello b  c\r\n" + re.escape(os.fsencode(tmp_path)) + b" none\r\n")
        someone.until(PROMPT)
        fcntl.ioctl(someone.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 99, 0, 0))
        someone.keys(b"stty size\r")
        someone.until(rb"33 99\r\n")
        someone.until(PROMPT)
        someone.keys(b"\x04")
        assert someone.exit_code() == 0
    assert not family.left()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["-C", "/no/such"], rb"'/no/such'"), (["--startup-source", "/no/file"], rb"'/no/file' does not exist")],
)
def test_what_is_missing_is_named(arguments: list[str], says: bytes) -> None:
    with Person(*arguments) as someone:
        someone.until(says)
        assert someone.exit_code() == 1


@pytest.mark.parametrize(
    ("last", "code"),
    [(b"exit 5\r", 5), (b"kill -9 $$\r", 137), (b"stty raw -echo; kill -9 $$\r", 137), (b"(exit 3)\r\x04", 3)],
)
def test_it_ends_with_the_last_exit_code(person: Person, last: bytes, code: int) -> None:
    person.keys(last)
    assert person.exit_code() == code
    assert readable_modes(person.slave) == person.modes


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("running", [False, True])
def test_a_signal_ends_it_with_what_it_runs(person: Person, number: signal.Signals, running: bool) -> None:
    if running:
        person.begin("sleep 1000")
    person.process.send_signal(number)
    assert person.exit_code() == 128 + number
    assert readable_modes(person.slave) == person.modes


@pytest.mark.parametrize("running", [False, True])
def test_it_ends_when_the_terminal_goes_away(person: Person, running: bool) -> None:
    if running:
        person.begin("sleep 1000")
    person.hang_up()
