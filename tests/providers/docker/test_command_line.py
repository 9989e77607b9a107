"""`swerex-c exec` and `shell` in a container, as a user runs them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from typing import Any

import pytest

from tests.support.cli import COMMAND, start
from tests.support.docker_engine import Engine
from tests.support.original import our_environment
from tests.support.person import Person


def exec_in(docker: Engine, *arguments: str, **more: Any) -> tuple[bytes, bytes, int]:
    environment = {**our_environment(), **docker.environment}
    given: dict[str, Any] = more or {"stdin": subprocess.DEVNULL}
    done = subprocess.run([*COMMAND, "exec", *arguments], capture_output=True, timeout=100, env=environment, **given)
    return done.stdout, done.stderr, done.returncode


@pytest.mark.slice
def test_exec(docker: Engine, bash_only: str) -> None:
    """In an image with nothing but bash; the container is gone afterwards."""
    arguments = ["--image", bash_only, "-e", "A=b c", "-C", "/bin"]
    done = exec_in(docker, *arguments, 'echo "$A $PWD $HOSTNAME"; exit 4')
    assert re.fullmatch(rb"b c /bin [0-9a-f]{12}\n", done[0]) and done[1:] == (b"", 4)
    reading, writing = os.pipe()  # one that never ends
    assert exec_in(docker, *arguments, 'read x; echo "[$x]"', stdin=reading) == (b"[]\n", b"", 0)
    os.close(reading)
    os.close(writing)
    given = exec_in(docker, "--image", bash_only, "--stdin", 'read x; echo "[$x]"', input=b"a b\nc")
    assert given == (b"[a b]\n", b"", 0)
    assert not docker.docker("ps", "-aq")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_exec_removes_its_container_when_it_is_ended(docker: Engine, bash_only: str, number: signal.Signals) -> None:
    """Also if it gets the signal twice."""
    with start("exec", "--image", bash_only, "echo up; while :; do :; done", **docker.environment) as process:
        assert process.stdout.readline() == "up\n"
        process.send_signal(number)
        process.send_signal(number)
        assert (process.wait(60), process.stderr.read()) == (128 + number, "")
    assert not docker.docker("ps", "-aq")


@pytest.mark.slice
def test_shell(docker: Engine, bash_min: str) -> None:
    arguments = ["shell", "--image", bash_min, "-C", "/tmp", "-e", "A=b c"]
    with Person(*arguments, rows=31, columns=91, command=COMMAND, **docker.environment) as person:
        person.until(rb"# ", 60)
        # Docker tells the container the size of the terminal a moment after the start.
        person.keys(b'echo "$A-$((6 * 7)) $PWD"; until [ "$(stty size 2>/dev/null)" ]; do :; done; stty size\r')
        person.until(rb"b c-42 /tmp\r\n31 91\r\n.*# ")
        person.keys(b"sh -c 'echo begun; exec sleep 1000'\r")  # which has the terminal when it says so
        person.until(rb"\nbegun\r\n")
        person.keys(b"\x03")
        person.until(rb"# ")
        person.keys(b"exit 5\r")
        assert person.exit_code() == 5
    assert not docker.docker("ps", "-aq")


def test_shell_removes_its_container_when_it_is_ended(docker: Engine, bash_min: str) -> None:
    with Person("shell", "--image", bash_min, command=COMMAND, **docker.environment) as person:
        person.until(rb"# ", 60)
        person.process.terminate()
        assert person.exit_code() == 128 + signal.SIGTERM
    assert not docker.docker("ps", "-aq")


def test_shell_names_what_is_missing(docker: Engine, bash_min: str) -> None:
    arguments = ["shell", "--image", bash_min, "--startup-source", "/no/such"]
    with Person(*arguments, command=COMMAND, **docker.environment) as person:
        person.until(rb"swerex-c: The startup file '/no/such' does not exist\r\n", 60)
        assert person.exit_code() == 1
