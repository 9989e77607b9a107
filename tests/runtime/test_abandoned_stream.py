"""A stream that its reader leaves: what its command comes to is nobody's, and the log has no complaint of it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from typing import Any

import pytest

from swerex_c.exceptions import SwerexException
from swerex_c.runtime.abstract import BashAction, CloseBashSessionRequest, CreateBashSessionRequest
from tests.support.runtimes import RUNTIMES
from tests.support.server_process import Server, serving
from tests.support.wait import DEADLINE, settle

pytestmark = pytest.mark.usefixtures("family")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server") / "log") as running:
        yield running


COMMANDS: dict[str, dict[str, Any]] = {
    "runs on": {"command": "echo one; sleep 0.5"},
    "ended": {"command": "echo one"},
    "failed": {"command": "echo one; false", "check": "raise"},
    "timed out": {"command": "echo one; sleep 0.5", "timeout": 0.2},
    "shell ended": {"command": "echo one; exit 3"},
    "session closed": {"command": "echo one; sleep 100", "timeout": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["aclose", "forget"])
@pytest.mark.parametrize("becomes", COMMANDS)
@pytest.mark.parametrize("kind", RUNTIMES)
async def test_a_stream_is_left(kind: str, becomes: str, how: str, server: Server) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    runtime = RUNTIMES[kind](server)
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=DEADLINE))
    stream = runtime.stream_in_session(BashAction(**{"timeout": DEADLINE, **COMMANDS[becomes]}))
    try:
        async for piece in stream:
            assert piece.startswith("one\n")
            break
    except SwerexException:
        assert kind == "http"  # which has the whole output at once, or the error
    if becomes == "session closed":
        await runtime.close_session(CloseBashSessionRequest())
    else:  # comes behind that command
        try:
            await runtime.run("true", timeout=DEADLINE)
        except SwerexException:
            assert becomes == "shell ended"
    if how == "aclose":
        await stream.aclose()
    del stream
    gc.collect()
    await settle()  # a generator that was collected is closed by a task
    gc.collect()
    await runtime.close()
    gc.collect()
    assert complaints == []
    assert "never retrieved" not in server.said() and "Traceback" not in server.said()
