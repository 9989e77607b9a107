"""The limit on startup files: what a request sets is obeyed, and one that sets none has time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from swerex_c import LocalDeployment, LocalRuntime
from swerex_c.exceptions import CommandTimeoutError
from swerex_c.runtime.abstract import CreateBashSessionRequest
from swerex_c.sync import SyncDeployment, SyncRuntime
from tests.support.cli import cli
from tests.support.processes import Family
from tests.support.runtimes import RUNTIMES
from tests.support.server_process import serving


@pytest.fixture
def slow_home(family: Family) -> None:
    """Startup files that take more than the default that the model shows, and 0.35 seconds."""
    Path(os.environ["HOME"], ".bashrc").write_text("sleep 1.6; echo up\n")


@pytest.mark.slow
@pytest.mark.usefixtures("slow_home")
@pytest.mark.parametrize("kind", RUNTIMES)
async def test_only_a_limit_that_was_set_is_obeyed(kind: str, tmp_path: Path) -> None:
    with serving(tmp_path / "log") as server:
        async with RUNTIMES[kind](server) as runtime:
            assert (await runtime.create_session()).output == "up\n"
            named = CreateBashSessionRequest(session="named")
            assert (await runtime.create_session(named)).output == "up\n"
            with pytest.raises(CommandTimeoutError, match=r"1\.0 seconds while reading the startup files"):
                await runtime.create_session(CreateBashSessionRequest(session="limited", startup_timeout=1.0))


@pytest.mark.slow
@pytest.mark.usefixtures("slow_home")
def test_a_limit_that_was_not_set_is_none_elsewhere() -> None:
    with SyncRuntime(LocalRuntime()) as runtime:
        assert runtime.create_session().output == "up\n"
    with SyncDeployment(LocalDeployment()) as deployment:
        assert deployment.runtime.create_session().output == "up\n"
    done = cli("exec", "echo on")
    assert done.stdout.endswith("on\n") and done.returncode == 0, done.stderr
