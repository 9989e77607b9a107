"""Programs and places that do what nobody should, by accident or not: answers are right, or an error says why not."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from swerex_c.exceptions import CommandTimeoutError, ResourceError
from swerex_c.runtime.abstract import (
    ReadFileRequest,
    WriteFileRequest,
)
from swerex_c.runtime.sandbox import SandboxRuntime
from tests.support.docker_engine import Engine
from tests.support.sandboxes import DockerPlace
from tests.support.targets import Session, Target
from tests.support.wait import DEADLINE, until_async

Open = Callable[..., Awaitable[Target]]


async def says(target: Target, command: str, **fields: Any) -> tuple[int | None, str, str]:
    answer = await target.execute(command, **fields)
    return answer.exit_code, answer.stdout, answer.stderr


async def many(target: Target, count: int) -> None:
    """So many at once, each of which has to have its own answer."""
    answers = await asyncio.gather(*(says(target, f"echo {n}; echo e{n} >&2; exit {n}") for n in range(count)))
    assert answers == [(n, f"{n}\n", f"e{n}\n") for n in range(count)]


@pytest.fixture
async def attacked(docker_place: DockerPlace) -> AsyncIterator[Open]:
    """`await attacked(image, *arguments of docker run)` gives a target in a container of its own, by its id."""
    opened: list[Target] = []

    async def start(image: str, *arguments: str) -> Target:
        backend = await asyncio.to_thread(docker_place, image, *arguments)
        opened.append(Target(backend.container, SandboxRuntime(backend), "/tmp"))
        return opened[-1]

    yield start
    for target in opened:
        await target.runtime.close()


ODD = {
    "POSIXLY_CORRECT": "1",
    "LC_ALL": "xx_YY.UTF-8",
    "SHELLOPTS": "errexit:noexec:noglob:nounset:posix:xtrace",
    "BASHOPTS": "extdebug:failglob",
    "BASH_ENV": "/etc/passwd",
    "ENV": "/etc/passwd",
    "PS4": "$(echo swx-ps4)",
    "IFS": "swx_0123456789",
    "BASH_FUNC_printf%%": "() { echo fake; }",
    "BASH_FUNC_kill%%": "() { echo fake; }",
    "BASH_COMPAT": "4.2",
    "BASH_XTRACEFD": "1",
    "SECONDS": "5000",
    "FUNCNEST": "1",
    "TMOUT": "1",
    "CDPATH": "/",
    "GLOBIGNORE": "*",
    "EXECIGNORE": "*",
    "swx_out": "1",
}


@pytest.mark.parametrize("user", ["root", "4242:4242"])
async def test_an_odd_environment_changes_no_answer(attacked: Open, debian_py: str, user: str) -> None:
    variables = [word for name, value in ODD.items() for word in ("-e", f"{name}={value}")]
    talk = await attacked(debian_py, "-u", user, *variables)
    for code in (0, 3, 137, 145, 255):
        assert await says(talk, f"echo out; echo err >&2; exit {code}") == (code, "out\n", "err\n")
    for number in (2, 9, 15, 17, 34):
        assert (await says(talk, f"kill -{number} $$; exit 5"))[0] == (5 if number == 17 else -number)
    seen = (await talk.execute(["env"])).stdout.splitlines()
    for name in ("POSIXLY_CORRECT", "LC_ALL", "BASH_ENV", "ENV", "FUNCNEST", "TMOUT"):
        assert f"{name}={ODD[name]}" in seen
    with pytest.raises(FileNotFoundError):
        await talk.execute(["no-such-program"])
    await says(talk, r"printf '#!/no/such/thing\n' >/tmp/odd; chmod +x /tmp/odd")
    with pytest.raises(FileNotFoundError):
        await talk.execute(["/tmp/odd"])
    with pytest.raises(CommandTimeoutError):
        await says(talk, "setsid sleep 8100042 & exec sleep 8100041", timeout=0.5)
    await talk.runtime.write_file(WriteFileRequest(path="/tmp/swx/a/b", content="text\n"))
    assert (await talk.runtime.read_file(ReadFileRequest(path="/tmp/swx/a/b"))).content == "text\n"
    session = Session(talk.runtime)
    await session.create()
    await session.gives("echo in; (exit 4)", "in\n", 4)
    await talk.execute(["sleep", "1.5"])  # a shell with that TMOUT ends itself when nobody says anything for a second
    await session.gives("echo $?", "4\n")
    assert "81000" not in (await says(talk, "ps -eo args | grep '[s]leep 81000'"))[1], "what was overdue has ended"


async def test_a_cat_that_does_not_copy(attacked: Open, docker: Engine, debian_py: str) -> None:
    fake = await attacked(debian_py)
    script = r"mv /bin/cat /bin/dog; printf '#!/bin/sh\nexec tr a-z A-Z\n' >/bin/cat; chmod +x /bin/cat"
    await asyncio.to_thread(docker.docker, "exec", fake.name, "sh", "-c", script)
    await many(fake, 3)
    await many(fake, 3)


async def test_what_stops_its_shell_leaves_nothing(attacked: Open, debian_py: str) -> None:
    talk = await attacked(debian_py)
    for _ in range(2):
        with pytest.raises(CommandTimeoutError):
            await says(talk, "kill -STOP $PPID; exec sleep 8200041", timeout=0.3)

    async def nothing_is_left() -> bool:
        return (await says(talk, "ps -eo stat,args | grep '^[Tt]\\|[s]leep 82000'"))[1] == ""

    await until_async(nothing_is_left)
    killed = [says(talk, f"kill -{signal} $PPID; sleep 0.1") for signal in ("TERM", "KILL")]
    for error in await asyncio.gather(*killed, return_exceptions=True):
        assert isinstance(error, ResourceError), error
        assert "has ended while the command ran" in str(error)
    assert await says(talk, "kill -CHLD $PPID; kill -CONT $PPID; kill -TSTP $PPID; echo on; exit 3") == (3, "on\n", "")


async def test_few_descriptors(attacked: Open, debian_py: str) -> None:
    talk = await attacked(debian_py, "--ulimit", "nofile=20:20")
    await says(talk, "(while :; do echo late; echo late >&2; done) & echo mine")
    for number in range(4):
        assert await says(talk, f"echo {number}; echo e >&2; exit {number}") == (number, f"{number}\n", "e\n")
    with pytest.raises(CommandTimeoutError):
        await says(talk, "exec sleep 8300041", timeout=0.3)
    await many(talk, 4)


async def test_calls_that_are_cancelled_at_any_moment(attacked: Open, debian_py: str) -> None:
    """The next ones have their own answers, and neither files nor threads nor processes are left of them."""
    talk = await attacked(debian_py)
    runtime, session = talk.runtime, Session(talk.runtime)
    await session.create()

    async def one(number: int) -> None:
        if number % 3 == 0:
            said = await says(talk, f"echo {number}; exit {number}")
            assert said == (number, f"{number}\n", "")
        elif number % 3 == 1:
            await session.gives(f"echo {number}; (exit {number})", f"{number}\n", number)
        else:
            path, text = f"/tmp/swx{number}", f"{number}\n" * 1000
            await runtime.write_file(WriteFileRequest(path=path, content=text))
            assert (await runtime.read_file(ReadFileRequest(path=path))).content == text

    await asyncio.gather(*map(one, range(20)))
    before = len(os.listdir("/proc/self/fd"))
    for number in range(24):
        task = asyncio.create_task(one(number))
        await asyncio.sleep(number * 0.001)  # any moment of a call
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await one(24 + number)
    await asyncio.gather(*map(one, range(20)))
    await until_async(lambda: len(os.listdir("/proc/self/fd")) <= before + 9)  # three shells more may be kept


async def test_two_runtimes_in_one_container(attacked: Open, debian_py: str) -> None:
    """Neither ends what is the other's, nor what is nobody's."""
    talk = await attacked(debian_py)
    other = Target(talk.name, SandboxRuntime(talk.runtime.sandbox.backend), talk.root)  # type: ignore[attr-defined]
    for one in (talk, other):
        session = Session(one.runtime, "default")
        await session.create()
        await session.run("sleep 8400041 & sleep 8400042 & :")
        await says(one, "setsid sleep 8400043 >/dev/null 2>&1 & env -i sleep 8400044 >/dev/null 2>&1 & :")
    busy = asyncio.create_task(says(talk, "sleep 1; echo still; exit 6"))
    limit = asyncio.get_running_loop().time() + DEADLINE
    while (count := (await says(talk, "pgrep -fc '^sleep 84000'"))[1]) != "8\n":
        assert asyncio.get_running_loop().time() < limit, count
    with pytest.raises(CommandTimeoutError):
        await says(other, "sleep 8400045", timeout=0.2)
    await other.runtime.close()
    assert await busy == (6, "still\n", "")
    assert (await says(talk, "pgrep -fc '^sleep 84000'"))[1] == "4\n"
    assert "killed" in (await Session(talk.runtime, "default").run("kill %1 && echo killed")).output
