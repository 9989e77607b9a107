"""The usual mistakes of a first hour get a message that says what, why, and what to do."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import pickle
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from swerex_c import (
    BashAction,
    Command,
    CreateBashSessionRequest,
    LocalDeployment,
    LocalRuntime,
    Pool,
    RemoteRuntime,
    SwerexException,
)
from swerex_c.deployment.config import LocalDeploymentConfig, get_deployment
from swerex_c.utils.free_port import find_free_port
from tests.support import raw_http
from tests.support.runtimes import RUNTIMES
from tests.support.server_process import Server
from tests.support.wait import DEADLINE

pytestmark = pytest.mark.usefixtures("family")

TEXT: Any = "ls -la"  # where a request belongs
STRINGS: dict[str, tuple[Callable[[Any], Awaitable[object]], str]] = {
    "run_in_session": (lambda it: it.run_in_session(TEXT), "run_in_session(BashAction(command='ls -la'))"),
    "create_session": (lambda it: it.create_session(TEXT), "CreateBashSessionRequest(session='ls -la'))"),
    "execute": (lambda it: it.execute(TEXT), "execute(Command(command='ls -la', shell=True))"),
    "read_file": (lambda it: it.read_file(TEXT), "read_file(ReadFileRequest(path='ls -la'))"),
    "write_file": (lambda it: it.write_file(TEXT), "write_file(WriteFileRequest(path='ls -la', content=...))"),
    "upload": (lambda it: it.upload(TEXT), "UploadRequest(source_path='ls -la', target_path=...))"),
    "close_session": (lambda it: it.close_session(TEXT), "CloseBashSessionRequest(session='ls -la'))"),
}


@pytest.mark.parametrize("kind", RUNTIMES)
async def test_a_string_instead_of_a_request(kind: str, swerex_remote: Server) -> None:
    async with RUNTIMES[kind](swerex_remote) as runtime:
        for call, advice in STRINGS.values():
            with pytest.raises(SwerexException) as caught:
                await call(runtime)
            assert "takes a request, not a string" in str(caught.value) and advice in str(caught.value)


async def test_another_session() -> None:
    async with LocalRuntime() as runtime:
        with pytest.raises(SwerexException) as caught:
            await runtime.run("ls")
        assert str(caught.value) == "session 'default' does not exist"
        assert caught.value.__notes__ == ["No session is open: call `create_session` first"]
        for name in ("default", "two"):
            await runtime.create_session(CreateBashSessionRequest(session=name))
        with pytest.raises(SwerexException) as caught:
            await runtime.run("ls", session="tow")
        assert str(caught.value) == "session 'tow' does not exist"
        assert caught.value.__notes__ == ["Open sessions: 'default', 'two'"]
    assert not await runtime.is_alive()


async def test_a_command_line_without_a_shell() -> None:
    async with LocalRuntime() as runtime:
        with pytest.raises(FileNotFoundError, match="use shell=True or a list of words.*'ls -la'") as caught:
            await runtime.execute(Command(command="ls -la"))
        assert caught.value.filename == "ls -la"
        with pytest.raises(FileNotFoundError, match="^.Errno 2. No such file or directory: 'no-such-program'$"):
            await runtime.execute(Command(command="no-such-program"))


@pytest.mark.parametrize("wrong", ["docker", {"type": "local"}, LocalDeployment(), LocalDeploymentConfig])
def test_the_wrong_kind_of_configuration(wrong: Any) -> None:
    with pytest.raises(SwerexException, match="a configuration such as LocalDeploymentConfig"):
        get_deployment(wrong)
    if not callable(wrong):  # a pool also takes a function that returns a deployment
        with pytest.raises(SwerexException, match="a configuration such as LocalDeploymentConfig"):
            Pool(wrong, 3)


async def stranger(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server of something else."""
    await reader.read(65536)
    writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 18\r\n\r\n<html>nothing here")
    writer.close()


async def said(**fields: Any) -> str:
    runtime = RemoteRuntime(auth_token="x", reconnect_timeout=0.1, timeout=DEADLINE, **fields)
    with pytest.raises(SwerexException) as caught:
        await runtime.create_session()
    with contextlib.suppress(SwerexException):
        await runtime.close()
    return str(caught.value)


@pytest.mark.parametrize("wire", ["auto", "json"])
async def test_a_server_that_is_not_the_right_one(wire: str) -> None:
    """Of something else, without TLS, or not running."""
    async with raw_http.serving(stranger) as url:
        message = await said(host=url, wire=wire)
        assert "status 404 (is it a server of swerex_c or SWE-ReX, and are host and port right?)" in message
        message = await said(host=url.replace("http", "https"), wire=wire)
        assert message.endswith("; a server without TLS needs http://")
    message = await said(host="http://127.0.0.1", port=find_free_port(), wire=wire)
    assert "cannot be reached" in message
    assert message.endswith("; is `swerex-c serve` running there, and are host and port right?")


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
