"""The usual mistakes of a first hour get a message that says what, why, and what to do."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from swerex_c import (
    BashAction,
    Command,
    CreateBashSessionRequest,
    DockerDeployment,
    LocalDeployment,
    LocalRuntime,
    Pool,
    SwerexException,
)
from swerex_c.deployment.config import get_deployment
from swerex_c.runtime.sandbox import SandboxRuntime
from tests.support.local_backend import Here
from tests.support.runtimes import remote
from tests.support.server_process import serving

pytestmark = pytest.mark.usefixtures("mark")

TEXT: Any = "ls -la"  # where a request belongs
STRINGS: dict[str, tuple[Callable[[Any], Awaitable[object]], str]] = {
    "run_in_session": (lambda it: it.run_in_session(TEXT), "run_in_session(BashAction(command='ls -la'))"),
    "create_session": (lambda it: it.create_session(TEXT), "CreateBashSessionRequest(session='ls -la'))"),
    "execute": (lambda it: it.execute(TEXT), "execute(Command(command='ls -la', shell=True))"),
    "read_file": (lambda it: it.read_file(TEXT), "read_file(ReadFileRequest(path='ls -la'))"),
}


@pytest.mark.parametrize("kind", ["local", "a program in the place", "server"])
async def test_a_string_instead_of_a_request(kind: str, tmp_path: Any) -> None:
    with serving(tmp_path / "log") as server:
        runtimes = {"local": LocalRuntime, "a program in the place": lambda: SandboxRuntime(Here())}
        async with runtimes.get(kind, lambda: remote(server, "auto"))() as runtime:
            for call, advice in STRINGS.values():
                with pytest.raises(SwerexException) as caught:
                    await call(runtime)
                assert "takes a request, not a string" in str(caught.value) and advice in str(caught.value)


async def test_another_session() -> None:
    async with LocalRuntime() as runtime:
        for name in ("default", "two"):
            await runtime.create_session(CreateBashSessionRequest(session=name))
        with pytest.raises(SwerexException) as caught:
            await runtime.run("ls", session="tow")
        assert str(caught.value) == "session 'tow' does not exist"
        assert caught.value.__notes__ == ["Open sessions: 'default', 'two'"]


async def test_a_command_line_without_a_shell() -> None:
    async with LocalRuntime() as runtime:
        with pytest.raises(FileNotFoundError, match="use shell=True or a list of words.*'ls -la'") as caught:
            await runtime.execute(Command(command="ls -la"))
        assert caught.value.filename == "ls -la"
        with pytest.raises(FileNotFoundError, match="^.Errno 2. No such file or directory: 'no-such-program'$"):
            await runtime.execute(Command(command="no-such-program"))


@pytest.mark.parametrize("deployment", [LocalDeployment(), DockerDeployment(image="x")])
def test_a_deployment_that_is_not_started(deployment: Any) -> None:
    with pytest.raises(SwerexException, match=r"call `await deployment.start\(\)` first"):
        _ = deployment.runtime


def test_the_wrong_kind_of_configuration() -> None:
    wrong: Any = "docker"
    with pytest.raises(SwerexException, match="a configuration such as LocalDeploymentConfig"):
        get_deployment(wrong)
    with pytest.raises(SwerexException, match="a configuration such as LocalDeploymentConfig"):
        Pool(wrong, 3)


def test_a_misspelt_field() -> None:
    with pytest.warns(UserWarning, match="BashAction has no field 'timout', which is ignored: use 'timeout'") as caught:
        assert BashAction(command="true", timout=3).timeout is None  # type: ignore[call-arg]
    assert [warning.filename for warning in caught] == [__file__]


@pytest.mark.filterwarnings("error")
def test_fields_that_are_nobodys() -> None:
    """SWE-agent sends one; and data of others is not the caller's spelling."""
    action = BashAction(command="true", set_last_action=True)  # type: ignore[call-arg]
    assert action == BashAction.model_validate({"command": "true", "timout": 3})
    assert action == copy.deepcopy(action) == pickle.loads(pickle.dumps(action)) == action.model_copy(deep=True)
