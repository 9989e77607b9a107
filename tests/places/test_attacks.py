"""Programs and places that do what nobody should, by accident or not: answers are right, or an error says why not."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from swerex_c.exceptions import CommandTimeoutError, ResourceError
from swerex_c.exec.backend import Backend
from swerex_c.runtime.abstract import (
    BashAction,
    Command,
    CommandResponse,
    CreateBashSessionRequest,
    ReadFileRequest,
    WriteFileRequest,
)
from swerex_c.runtime.exec import ExecRuntime

from .engine import Engine

PATIENCE = 30.0 * float(os.environ.get("SWX_PACE", "1"))

Open = Callable[..., Awaitable["Talk"]]


class Talk:
    """A runtime in a container, in few words."""

    def __init__(self, backend: Backend) -> None:
        self.runtime = ExecRuntime(backend)
        self.container: str = getattr(backend, "container", "")

    async def run(self, command: str | list[str], **fields: Any) -> CommandResponse:
        fields.setdefault("timeout", PATIENCE)
        return await self.runtime.execute(Command(command=command, shell=isinstance(command, str), **fields))

    async def sh(self, command: str, **fields: Any) -> tuple[int | None, str, str]:
        answer = await self.run(command, **fields)
        return answer.exit_code, answer.stdout, answer.stderr

    async def many(self, count: int) -> None:
        """So many at once, each of which has to have its own answer."""
        answers = await asyncio.gather(*(self.sh(f"echo {n}; echo e{n} >&2; exit {n}") for n in range(count)))
        assert answers == [(n, f"{n}\n", f"e{n}\n") for n in range(count)]


@pytest.fixture
async def attacked(docker_place: Callable[..., Backend]) -> AsyncIterator[Open]:
    """`await attacked(image, *arguments of docker run)` is a runtime in a container of its own."""
    opened: list[Talk] = []

    async def start(image: str, *arguments: str) -> Talk:
        opened.append(Talk(await asyncio.to_thread(docker_place, image, *arguments)))
        return opened[-1]

    yield start
    for talk in opened:
        await talk.runtime.close()


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
        assert await talk.sh(f"echo out; echo err >&2; exit {code}") == (code, "out\n", "err\n")
    for number in (2, 9, 15, 17, 34):
        assert (await talk.sh(f"kill -{number} $$; exit 5"))[0] == (5 if number == 17 else -number)
    seen = (await talk.run(["env"])).stdout.splitlines()
    for name in ("POSIXLY_CORRECT", "LC_ALL", "BASH_ENV", "ENV"):
        assert f"{name}={ODD[name]}" in seen
    with pytest.raises(FileNotFoundError):
        await talk.run(["no-such-program"])
    await talk.sh(r"printf '#!/no/such/thing\n' >/tmp/odd; chmod +x /tmp/odd")
    with pytest.raises(FileNotFoundError):
        await talk.run(["/tmp/odd"])
    with pytest.raises(CommandTimeoutError):
        await talk.sh("setsid sleep 8100042 & exec sleep 8100041", timeout=0.5)
    await talk.runtime.write_file(WriteFileRequest(path="/tmp/swx/a/b", content="text\n"))
    assert (await talk.runtime.read_file(ReadFileRequest(path="/tmp/swx/a/b"))).content == "text\n"
    await talk.runtime.create_session(CreateBashSessionRequest(startup_timeout=PATIENCE))
    said = await talk.runtime.run_in_session(BashAction(command="echo in; (exit 4)", timeout=PATIENCE, check="silent"))
    assert (said.output, said.exit_code) == ("in\n", 4)
    assert "81000" not in (await talk.sh("ps -eo args | grep '[s]leep 81000'"))[1], "what was overdue has ended"


async def test_each_cat_is_ended(attacked: Open, docker: Engine, debian_py: str) -> None:
    """The shells need theirs, and cannot say what became of the command that ended its own."""
    talk = await attacked(debian_py)
    await talk.many(6)
    with pytest.raises(ResourceError, match="has ended while the command ran"):
        await talk.sh("pkill -9 -x cat; echo lost")
    await talk.many(6)
    assert await talk.sh("mv /bin/cat /bin/dog; echo moved") == (0, "moved\n", "")
    await talk.many(6)

    fake = await attacked(debian_py)
    script = r"mv /bin/cat /bin/dog; printf '#!/bin/sh\nexec tr a-z A-Z\n' >/bin/cat; chmod +x /bin/cat"
    await asyncio.to_thread(docker.docker, "exec", fake.container, "sh", "-c", script)
    await fake.many(3)
    await fake.many(3)
