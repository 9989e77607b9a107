"""A runtime or a session that is closed while sessions start: each create answers truly, and nothing is left."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swerex_c.exceptions import RuntimeClosedError
from swerex_c.providers.local.bubblewrap import BwrapBackend
from swerex_c.runtime.abstract import Command, CreateBashSessionRequest, CreateBashSessionResponse
from swerex_c.runtime.local import LocalRuntime
from swerex_c.runtime.remote import RemoteRuntime
from swerex_c.runtime.sandbox import SandboxRuntime
from tests.support.harness import needs
from tests.support.local_backend import Here
from tests.support.processes import Family
from tests.support.server_process import KEY, open_files, serving
from tests.support.session import Session
from tests.support.wait import DEADLINE, until

pytestmark = [pytest.mark.timeout(140), pytest.mark.slow]

AT_ONCE = 20
ROUNDS = 4

RUNTIMES: dict[str, Callable[[], Any]] = {
    "local": LocalRuntime,
    "warm": lambda: LocalRuntime(warm_sessions=4),
    "exec": lambda: SandboxRuntime(Here()),
    "isolated": lambda: SandboxRuntime(BwrapBackend(command=needs("bwrap"))),
}

kinds = pytest.mark.parametrize("kind", RUNTIMES)


NAMES = [f"s{i}" for i in range(AT_ONCE)]


class Creates:
    """Sessions that are asked for at the same time, and what came of each."""

    def __init__(self, runtime: Any) -> None:
        self.runtime = runtime
        self.closed: list[str] = []
        """Those whose close has begun."""

    async def create(self, name: str) -> None:
        request = CreateBashSessionRequest(session=name, startup_timeout=DEADLINE)
        answer = await self.runtime.create_session(request)
        assert isinstance(answer, CreateBashSessionResponse)
        assert name not in self.closed, "it is said to have started, and it was closed before"

    async def close_sessions(self) -> None:
        self.closed = list(self.runtime.sessions)
        await asyncio.gather(*(Session(self.runtime, name).close() for name in self.closed))

    async def close_runtime(self) -> None:
        self.closed = NAMES
        await self.runtime.close()

    async def failures(self, close: Callable[[], Any], after: float) -> list[str]:
        """The names of the sessions that did not start, because they were closed `after` seconds."""
        tasks = [asyncio.create_task(self.create(name)) for name in NAMES]
        await asyncio.sleep(after)  # any moment of their starts
        await close()
        results = zip(NAMES, await asyncio.gather(*tasks, return_exceptions=True), strict=True)
        failed = {name: result for name, result in results if result is not None}
        assert {type(error) for error in failed.values()} <= {RuntimeClosedError}, failed
        return list(failed)


async def seconds_for(kind: str) -> float:
    """How long that many creates take, without a close."""
    runtime = RUNTIMES[kind]()
    began = time.monotonic()
    creates = Creates(runtime)
    await asyncio.gather(*map(creates.create, NAMES))
    spent = time.monotonic() - began
    await runtime.close()
    return spent


def descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@kinds
async def test_a_runtime_is_closed_while_sessions_start(kind: str, family: Family) -> None:
    longest = await seconds_for(kind)
    assert not family.left()
    before, failed = descriptors(), 0
    for moment in [*random.Random(14).sample(range(100), ROUNDS), 0]:
        runtime = RUNTIMES[kind]()
        creates = Creates(runtime)
        failed += len(await creates.failures(creates.close_runtime, longest * moment / 100))
        assert not family.left()
        with pytest.raises(RuntimeClosedError):
            await runtime.create_session(CreateBashSessionRequest())
        assert runtime.sessions == {}
        del runtime, creates
        until(lambda: descriptors() <= before)
    assert failed, "no close came while a session was starting"


@kinds
async def test_sessions_are_closed_while_they_start(kind: str, family: Family) -> None:
    longest = await seconds_for(kind)
    runtime = RUNTIMES[kind]()
    await runtime.execute(Command(command="true"))
    failed = 0
    for moment in [*random.Random(15).sample(range(100), ROUNDS), 0]:
        creates = Creates(runtime)
        names = await creates.failures(creates.close_sessions, longest * moment / 100)
        failed += len(names)
        assert set(names) <= set(creates.closed) and not set(runtime.sessions) & set(creates.closed)
        if names:  # the name is free again
            again = Session(runtime, names[0])
            await again.create()
            await again.gives("echo $((6 * 7))", "42\n")
        await creates.close_sessions()
        if kind != "warm":
            assert not family.shells(), family.living()
    assert failed, "no close came while a session was starting"
    await runtime.close()
    assert not family.left()


@pytest.mark.parametrize("wire", ["msgpack", "json"])
async def test_a_server_is_told_to_close_while_sessions_start(wire: str, family: Family, tmp_path: Path) -> None:
    """Whoever was answered before the server began to close was answered truly, so any of them may have started."""
    Path(os.environ["HOME"], ".bashrc").write_text("sleep 0.3\n")
    with serving(tmp_path / "log") as server:
        runtime = RemoteRuntime(auth_token=KEY, host="http://127.0.0.1", port=server.port, wire=wire)
        await Creates(runtime).create("first")
        await runtime.close()
        before, failed = open_files(server.process.pid), 0
        for moment in random.Random(16).sample(range(100), ROUNDS):
            creates = Creates(runtime)
            failed += len(await creates.failures(runtime.close, 0.4 * moment / 100))
            # Those that came to the server after the close are of its next runtime.
            await runtime.close()
            assert not family.shells(), family.living()
            until(lambda: open_files(server.process.pid) <= before)
        assert failed, "no close came while a session was starting"
