"""A session waits for a short command by itself only while its server carries out nothing else."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from swerex_c.engine.completions import current_completions
from swerex_c.remote.server.app import create_app
from swerex_c.remote.server.service import Service
from swerex_c.runtime.abstract import AbstractRuntime, BashAction, BashObservation
from swerex_c.runtime.local import LocalRuntime


class Place:
    def __init__(self) -> None:
        self.runtime: AbstractRuntime = LocalRuntime()
        self.AUTH_TOKEN = "key"


async def post(app: Any, path: str, **body: Any) -> Any:
    """Send a request to the application without a server; return its answer."""
    headers = [(b"content-type", b"application/json"), (b"x-api-key", b"key")]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
    request = {"type": "http.request", "body": json.dumps(body).encode()}
    parts: list[bytes] = []

    async def receive() -> Any:
        return request

    async def send(message: Any) -> None:
        parts.append(message.get("body", b""))

    await app({**scope, "raw_path": path.encode(), "query_string": b"", "client": None}, receive, send)
    return json.loads(b"".join(parts))


async def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return whether the loop passed for free: before a session, alone in a long command, beside it, at its end."""
    app = create_app(Service(Place()))
    free = [current_completions().has_time(0.01)]
    assert (await post(app, "/create_session", session_type="bash"))["output"] == ""
    went_on = asyncio.Event()

    async def run_in_session(self: LocalRuntime, action: BashAction) -> BashObservation:
        free.append(not current_completions().ready and current_completions().has_time(0.01))
        if action.command == "long":
            await went_on.wait()
        return BashObservation(output=action.command, exit_code=0)

    with monkeypatch.context() as patch:
        patch.setattr(LocalRuntime, "run_in_session", run_in_session)
        first = asyncio.ensure_future(post(app, "/run_in_session", action_type="bash", command="long"))
        while len(free) < 2:
            await asyncio.sleep(0)
        assert (await post(app, "/run_in_session", action_type="bash", command="two"))["output"] == "two"
        went_on.set()
        assert (await first)["output"] == "long"
    await post(app, "/close")
    return free


def test_a_loop_that_does_not_show_its_work(monkeypatch: pytest.MonkeyPatch) -> None:
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(asked(monkeypatch)) == [False, True, False]


def test_a_loop_that_shows_its_work() -> None:
    """Its own queue and timers are believed, whatever a server says of itself."""

    async def has_time(timer: float) -> bool:
        asyncio.get_running_loop().call_later(timer, int)
        current_completions().set_busy(True)
        return not current_completions().ready and current_completions().has_time(0.01)

    assert asyncio.run(has_time(60))
    assert not asyncio.run(has_time(0.005))
