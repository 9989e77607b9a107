"""A session leaves the history of the user alone: it is not read, not cut and not written, unless somebody asks."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from swerex_c.interfaces import AbstractRuntime
from swerex_c.runtime.abstract import BashAction, CreateBashSessionRequest
from swerex_c.runtime.local import LocalRuntime
from swerex_c.runtime.sandbox import SandboxRuntime
from tests.support.local_backend import Here
from tests.support.runtimes import remote
from tests.support.server_process import serving
from tests.support.wait import DEADLINE

HISTORY = "".join(f"{number}\n" for number in range(1900))
FILES = (".bash_history", ".history")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory with a history that is longer than bash's own limit, and startup files that allow it."""
    home = tmp_path / "home"
    home.mkdir()
    (home / ".bashrc").write_text("HISTSIZE=1000\nHISTFILESIZE=2000\n")
    for name in FILES:
        (home / name).write_text(HISTORY)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("HISTFILE", raising=False)
    return home


@contextlib.asynccontextmanager
async def served(log: Path) -> AsyncIterator[AbstractRuntime]:
    with serving(log) as server:
        runtime = remote(server, "auto")
        yield runtime
        await runtime.close()


@contextlib.asynccontextmanager
async def closing(runtime: AbstractRuntime) -> AsyncIterator[AbstractRuntime]:
    if isinstance(runtime, LocalRuntime):
        await runtime.wait_until_warm()
    yield runtime
    await runtime.close()


RUNTIMES: dict[str, Callable[[Path], Any]] = {
    "local": lambda place: closing(LocalRuntime()),
    "prestarted": lambda place: closing(LocalRuntime(warm_sessions=1)),
    "a program in the place": lambda place: closing(SandboxRuntime(Here())),
    "server": lambda place: served(place / "log"),
}


async def spend(runtime: AbstractRuntime, *commands: str, **fields: Any) -> list[str]:
    """Return the output of each command of a session, which is closed afterwards."""
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=DEADLINE, **fields))
    answers = []
    for command in commands:
        answer = await runtime.run_in_session(BashAction(command=command, timeout=DEADLINE, check="silent"))
        answers.append(answer.output)
    return answers


@pytest.mark.parametrize("kind", RUNTIMES)
@pytest.mark.parametrize("startup_source", [[], ["~/.bashrc"]], ids=["", "startup_source"])
async def test_it_is_not_touched(kind: str, startup_source: list[str], home: Path, tmp_path: Path) -> None:
    async with RUNTIMES[kind](tmp_path) as runtime:
        answers = await spend(
            runtime, "echo one", "history | grep -c ' 189[0-9]$'", "printenv HISTFILE", startup_source=startup_source
        )
    assert answers == ["one\n", "0\n", ""]
    assert [(home / name).read_text() for name in FILES] == [HISTORY] * 2


@pytest.mark.parametrize("kind", RUNTIMES)
async def test_a_program_that_exports_it(
    kind: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HISTFILE", str(home / ".bash_history"))
    async with RUNTIMES[kind](tmp_path) as runtime:
        assert await spend(runtime, "echo one") == ["one\n"]
    assert (home / ".bash_history").read_text() == HISTORY


@pytest.mark.parametrize("kind", RUNTIMES)
async def test_a_prompt_that_saves_it(kind: str, home: Path, tmp_path: Path) -> None:
    """What many have in their startup files prints nothing and writes nothing."""
    with (home / ".bashrc").open("a") as file:
        file.write("shopt -s histappend; PROMPT_COMMAND='history -a; history -n'\n")
    async with RUNTIMES[kind](tmp_path) as runtime:
        assert await spend(runtime, "echo one", "echo two") == ["one\n", "two\n"]
    assert [(home / name).read_text() for name in FILES] == [HISTORY] * 2


@pytest.mark.parametrize("kind", RUNTIMES)
async def test_a_request_that_asks_for_it(kind: str, home: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text(HISTORY)
    async with RUNTIMES[kind](tmp_path) as runtime:
        answers = await spend(runtime, "echo remembered", "printenv HISTFILE", env={"HISTFILE": str(mine)})
    assert answers[1] == f"{mine}\n"
    lines = mine.read_text().splitlines()
    assert lines[:1900] == HISTORY.splitlines() and "echo remembered" in lines[1900:]


@pytest.mark.parametrize("kind", RUNTIMES)
async def test_a_startup_file_that_asks_for_it(kind: str, home: Path, tmp_path: Path) -> None:
    with (home / ".bashrc").open("a") as file:
        file.write("HISTFILE=~/mine\n")
    async with RUNTIMES[kind](tmp_path) as runtime:
        await spend(runtime, "echo remembered")
    assert "echo remembered" in (home / "mine").read_text().splitlines()
    assert (home / ".bash_history").read_text() == HISTORY
