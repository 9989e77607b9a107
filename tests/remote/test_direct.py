"""A session may wait for a short command without the event loop where the server has nothing else to do."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from swerex_c.remote import direct
from swerex_c.remote.http_app import create_app
from swerex_c.remote.service import Service
from swerex_c.runtime._wakeup import current_waker
from swerex_c.runtime.abstract import AbstractRuntime, BashAction, BashObservation
from swerex_c.runtime.local import LocalRuntime

FREE, BUSY = (), (None,)
"""What the waker says is to be done in an event loop that does not tell."""


class Place:
    def __init__(self) -> None:
        self.runtime: AbstractRuntime = LocalRuntime()
        self.AUTH_TOKEN = ""


async def post(app: Any, path: str, **body: Any) -> Any:
    """What the application answers, without a server."""
    scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"content-type", b"application/json")]}
    request = {"type": "http.request", "body": json.dumps({"action_type": "bash", **body}).encode()}
    parts: list[bytes] = []

    async def receive() -> Any:
        return request

    async def send(message: Any) -> None:
        parts.append(message.get("body", b""))

    await app({**scope, "raw_path": path.encode(), "query_string": b"", "client": None}, receive, send)
    return json.loads(b"".join(parts))


async def test_whether_a_command_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "silent_waker", current_waker)
    waker = current_waker()
    monkeypatch.setattr(waker, "ready", BUSY)
    app = create_app(Service(Place()))
    found: list[Any] = []
    go_on = asyncio.Event()

    async def run_in_session(self: LocalRuntime, action: BashAction) -> BashObservation:
        found.append(current_waker().ready)
        if action.command == "long":
            await go_on.wait()
            found.append(current_waker().ready)
        return BashObservation(output=action.command, exit_code=0)

    monkeypatch.setattr(LocalRuntime, "run_in_session", run_in_session)
    assert (await post(app, "/run_in_session", command="one"))["output"] == "one"
    assert found == [FREE]
    assert waker.ready == BUSY, "that holds for its first step only"
    found.clear()
    first = asyncio.ensure_future(post(app, "/run_in_session", command="long"))
    while not found:
        await asyncio.sleep(0)
    assert (await post(app, "/run_in_session", command="two"))["output"] == "two"
    go_on.set()
    assert (await first)["output"] == "long"
    assert found == [FREE, BUSY, BUSY]


async def test_at_once_is_what_its_work_is() -> None:
    """What it returns, raises and is told."""

    async def work(error: Exception | None = None, wait: bool = False) -> str:
        try:
            if wait:
                await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        if error is not None:
            raise error
        return "done"

    cancelled: list[bool] = []
    assert await direct.at_once(work()) == "done"
    with pytest.raises(KeyError, match="x"):
        await direct.at_once(work(KeyError("x")))
    task = asyncio.ensure_future(direct.at_once(work(wait=True)))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled == [True]


def test_a_server_has_time_in_a_loop_that_does_not_tell() -> None:
    """A wait that may be late by a tick costs less; a loop that tells of a timer is believed."""

    async def has_time() -> bool:
        return current_waker().has_time(0.01)

    async def ask() -> tuple[bool, bool]:
        return await has_time(), await direct.at_once(has_time())

    async def ask_beside_a_timer() -> tuple[bool, bool]:
        asyncio.get_running_loop().call_later(0.005, int)
        return await ask()

    assert asyncio.run(ask()) == (True, True)
    assert asyncio.run(ask_beside_a_timer()) == (False, False)
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(ask()) == (False, True)
