"""Fixtures: server processes of this package and of SWE-ReX, a certificate, and clients that reconnect at once."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from swerex_c.remote.client import calls
from swerex_c.runtime.remote import RemoteRuntime
from tests.support import frames_tools, harness
from tests.support.frames_tools import Served
from tests.support.processes import Family
from tests.support.server_process import REMOTE, UVICORN, Server, environment, serving, serving_original
from tests.support.wait import DEADLINE


@pytest.fixture(scope="session")
def our_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Our application under uvicorn, which speaks HTTP/JSON only."""
    with serving(tmp_path_factory.mktemp("ours") / "log", command=UVICORN, TERM="dumb") as server:
        yield server


@pytest.fixture(scope="session")
def original_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving_original(tmp_path_factory.mktemp("original") / "log") as server:
        yield server


@pytest.fixture
async def served(family: Family) -> AsyncIterator[Served]:
    """A server in this loop with a session."""
    async with frames_tools.serving(session=True) as server:
        yield server


@pytest.fixture
def over_stdio(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RemoteRuntime:
    """A server on standard streams, whose standard error is the file `log`, and whose exit code comes into `code`."""
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    run = f'"$@" 2> {tmp_path}/log; echo $? > {tmp_path}/code'
    server = [*REMOTE, "--stdio", "--log-level", "debug", "--graceful", str(DEADLINE)]
    return RemoteRuntime(command=["sh", "-c", run, "sh", *server], auth_token="", reconnect_timeout=DEADLINE)


@pytest.fixture
def reconnects_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "_BACKOFF", (0.002, 0.02))


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return harness.certificate(tmp_path_factory.mktemp("tls"))
