"""Commands outside of sessions, in each kind of place: what they print, how they end, and what becomes of the rest."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from swerex_c.exceptions import (
    CommandTimeoutError,
    InvalidInputError,
    NotSupportedError,
    ResourceError,
    SandboxLostError,
)
from swerex_c.runtime.abstract import Command, CommandResponse
from swerex_c.sandbox.backend import Backend
from swerex_c.sandbox.commands import execute
from swerex_c.sandbox.sandbox import Sandbox
from tests.support.docker_engine import Engine
from tests.support.sandboxes import docker_place, place  # noqa: F401 - fixtures
from tests.support.wait import DEADLINE, until

LIMIT = 1 << 28


class Box:
    """A place in use."""

    def __init__(self, backend: Backend) -> None:
        self.place = Sandbox(backend)
        self.place.open(DEADLINE)

    def run(self, command: str | list[str], **fields: Any) -> CommandResponse:
        return asyncio.run(execute(self.place, Command(command=command, **fields), LIMIT))

    def sh(self, command: str, **fields: Any) -> CommandResponse:
        return self.run(command, shell=True, **fields)


@pytest.fixture
def box(place: Backend) -> Iterator[Box]:  # noqa: F811
    box = Box(place)
    yield box
    box.place.close()
    place.close()


def test_a_day_of_commands(box: Box) -> None:
    """Everything that callers do, one after the other, so that each place is started once."""
    for count in range(3):
        answer = box.sh(f"echo {count}; echo err >&2; exit {count}")
        assert (answer.stdout, answer.stderr, answer.exit_code) == (f"{count}\n", "err\n", count)
    assert box.run(["printf", "%s|", "a b", "é\t'\"$x", ""]).stdout == "a b|é\t'\"$x||"
    assert box.run(["cat"], timeout=DEADLINE).stdout == ""
    merged = box.sh("for i in 1 2 3; do echo o$i; echo e$i >&2; done", merge_output_streams=True)
    assert (merged.stdout, merged.stderr) == ("o1\ne1\no2\ne2\no3\ne3\n", "")
    assert sorted(box.run(["env"], env={"A": "x y", "PATH": "/bin:/usr/bin"}).stdout.split("\n")) == [
        "",
        "A=x y",
        "PATH=/bin:/usr/bin",
    ]
    assert box.run(["pwd"], cwd="/tmp").stdout == "/tmp\n"
    for code in (126, 127, 125, 255, 137):
        assert box.sh(f"exit {code}").exit_code == code
    assert box.sh("kill -9 $$").exit_code == -9
    assert box.sh("kill -9 0", timeout=DEADLINE).exit_code == -9
    for command, cwd, kind in (
        ("no-such-program", None, FileNotFoundError),
        ("/etc", None, PermissionError),
        ("true", "/no/such/directory", FileNotFoundError),
    ):
        with pytest.raises(kind):
            box.run([command], cwd=cwd)
    assert box.sh(f": {'y' * 200_000}; echo long").stdout == "long\n"
    with pytest.raises(InvalidInputError, match="E2BIG"):
        box.run(["true", "x" * 200_000])
    answer = box.sh("head -c 3000000 /dev/zero; head -c 2000000 /dev/zero >&2")
    assert (len(answer.stdout), len(answer.stderr)) == (3_000_000, 2_000_000)
    with pytest.raises(ResourceError, match="has ended while the command ran"):
        box.sh("kill -9 $PPID; echo on; read x", timeout=DEADLINE)
    assert box.sh("echo next").stdout == "next\n"


def test_trees(box: Box) -> None:
    number = f"83{uuid.uuid4().int % 10**7:07d}"

    other = Sandbox(box.place.backend)  # which the end of all that is `box`'s does not reach

    def sleeping() -> int:
        count = "n=0; for p in /proc/[0-9]*/cmdline; do { IFS= read -r -d '' a && IFS= read -r -d '' b; } <$p || "
        count += "continue; [[ $a == sleep && $b == $1 ]] && ((n += 1)); done 2>/dev/null; echo $n"
        return int(other.run(count, number, timeout=DEADLINE).stdout)

    left = f"(setsid sleep {number} >/dev/null 2>&1 &); (sleep {number}; echo late) & echo mine"
    assert box.sh(left, timeout=DEADLINE).stdout == "mine\n"
    assert [box.sh(f"echo {n}").stdout for n in range(5)] == [f"{n}\n" for n in range(5)]
    until(lambda: sleeping() == 2)
    with pytest.raises(CommandTimeoutError) as caught:
        box.sh(f"echo so far; setsid sleep {number} & sleep {number}", timeout=1)
    assert caught.value.output == "so far\n"
    until(lambda: sleeping() == 2, "what an earlier command left goes on")

    async def cancel() -> None:
        task = asyncio.create_task(
            execute(box.place, Command(command=["sh", "-c", f"sleep {number} & sleep {number}"]), LIMIT)
        )
        while await asyncio.to_thread(sleeping) < 4:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    until(lambda: sleeping() == 2)
    box.place._end_marked(box.place.mark)
    until(lambda: sleeping() == 0)
    other._shells.close()


async def test_many_at_once(box: Box) -> None:
    commands = [execute(box.place, Command(command=f"echo {n}; exit {n}", shell=True), LIMIT) for n in range(20)]
    for number, answer in enumerate(await asyncio.wait_for(asyncio.gather(*commands), DEADLINE)):
        assert (answer.stdout, answer.exit_code) == (f"{number}\n", number)


def test_a_place_with_bash_alone(docker_place: Callable[..., Backend], bash_only: str) -> None:  # noqa: F811
    box = Box(docker_place(bash_only))
    for count in range(3):
        answer = box.sh(f"echo {count} $0; echo err >&2; exit {count}")
        assert (answer.stdout, answer.stderr, answer.exit_code) == (f"{count} /bin/sh\n", "err\n", count)
    assert box.run(["bash", "-c", 'printf %s "$A"'], env={"A": "x y", "PATH": "/bin"}).stdout == "x y"
    with pytest.raises(InvalidInputError, match="'a.b' cannot be set in container .*, which has no program env"):
        box.run(["bash", "-c", ":"], env={"a.b": "", "PATH": "/bin"})
    with pytest.raises(CommandTimeoutError):
        box.sh("while :; do :; done", timeout=0.3)
    assert box.sh("(while :; do echo noise; done) & echo mine").stdout.startswith(("mine\n", "noise\n"))
    assert box.sh("echo next").stdout == "next\n"
    box.place.close()


def test_a_place_without_bash(docker_place: Callable[..., Backend], ash_min: str) -> None:  # noqa: F811
    with pytest.raises(NotSupportedError, match="(?s)no bash in container.*executable file not found"):
        Box(docker_place(ash_min))


def test_a_place_that_ends(docker: Engine, docker_place: Callable[..., Any], bash_min: str) -> None:  # noqa: F811
    backend = docker_place(bash_min)
    box = Box(backend)
    threading.Timer(0.3, lambda: docker.docker("kill", backend.container)).start()
    with pytest.raises(SandboxLostError):
        box.sh("sleep 600", timeout=DEADLINE)
    with pytest.raises(SandboxLostError):
        box.sh("echo")
    begin = time.monotonic()
    box.place.close()
    assert time.monotonic() - begin < DEADLINE


def test_a_frozen_place(docker: Engine, docker_place: Callable[..., Any], bash_min: str) -> None:  # noqa: F811
    backend = docker_place(bash_min)
    box = Box(backend)
    shells = box.place._shells
    # An engine that pauses a container in which it is starting something may hang.
    until(lambda: bool(shells._ready) and not shells._starting)
    docker.docker("pause", backend.container)
    try:
        begin = time.monotonic()
        with pytest.raises((CommandTimeoutError, SandboxLostError)):
            box.sh("echo thawed", timeout=0.3)
        assert time.monotonic() - begin < DEADLINE
    finally:
        docker.docker("unpause", backend.container)
    assert box.sh("echo next", timeout=DEADLINE).stdout == "next\n"
    box.place.close()
