"""Markers and shared fixtures of the tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import Family, adopt_orphans, reap_orphans
from tests.support.server_process import Server, serving
from tests.support.session import Gate, Shell


def pytest_configure(config: pytest.Config) -> None:
    adopt_orphans()


_ended: set[int] = set()


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Iterator[None]:
    global _ended
    yield
    _ended = reap_orphans(_ended)


@pytest.fixture(scope="session")
def swerex_remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server as users start it, which speaks frames too."""
    with serving(tmp_path_factory.mktemp("remote") / "log") as server:
        yield server


@pytest.fixture
def family(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Family]:
    """The processes of this test, in a quiet environment: a home of its own, a plain TERM."""
    home = tmp_path / "home"
    home.mkdir()
    (home / ".bashrc").write_text("")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("PATH", "/usr/local/bin:/usr/bin:/bin:" + os.environ["PATH"])
    for name in ("PS1", "PS2", "PROMPT_COMMAND", "BASH_ENV", "ENV", "PAGER", "GIT_PAGER", "LESS", "VIRTUAL_ENV"):
        monkeypatch.delenv(name, raising=False)
    family = Family()
    yield family
    family.kill()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new directory, in which the test runs."""
    directory = tmp_path / "here"
    directory.mkdir()
    monkeypatch.chdir(directory)
    return directory


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[Gate]:
    """Where a command of the test waits until the test lets it go on."""
    gate = Gate(tmp_path)
    yield gate
    gate.close()


@pytest.fixture
def shells(family: Family) -> Iterator[Any]:
    """A maker of sessions. After the test they are closed, and nothing that they started may be left."""
    made: list[Shell] = []

    def make(session: str = "default", **request: Any) -> Shell:
        shell = Shell(session, **request)
        made.append(shell)
        return shell

    yield make
    for shell in reversed(made):
        shell.close()
    if made:
        left = family.left()
        assert not left, f"left behind: {left}"


@pytest.fixture
def sh(shells: type[Shell]) -> Iterator[Shell]:
    """A fresh session, proved usable after the test unless the test said that it ended (`sh.ended = True`)."""
    shell = shells()
    yield shell
    if not shell.ended:
        shell.synced()
