"""Options, markers, limits and shared fixtures of the behaviour tests."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import ENGINE, MARK_VARIABLE, ON_ORIGINAL, Engine, Overdue, Shell, end_marked, marked
from tests.support.wait import DEADLINE, at_most, until

DEFAULT_LIMIT = 30.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--expect-wrong",
        action="store_true",
        help="with SWX_ENGINE=swerex: each test marked wrong_in_original must fail; the others only inform",
    )


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "wrong_in_original(reason, but=()): the original fails this test, and why; not with these parameters",
        "only_here(what): the test uses something that the original does not have",
        "limit(seconds): the test may run this long instead of 30 s",
    ):
        config.addinivalue_line("markers", line)
    if config.getoption("--expect-wrong") and not ON_ORIGINAL:
        raise pytest.UsageError("--expect-wrong checks the original: set SWX_ENGINE=swerex")


def pytest_report_header() -> str:
    return f"engine under test: {ENGINE}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not ON_ORIGINAL:
        return
    alien = [item for item in items if item.get_closest_marker("only_here")]
    if alien:
        config.hook.pytest_deselected(items=alien)
        items[:] = [item for item in items if item not in alien]
    if not config.getoption("--expect-wrong"):
        return
    for item in items:
        marker = item.get_closest_marker("wrong_in_original")
        if marker and getattr(item, "callspec", None) and item.callspec.id in marker.kwargs.get("but", ()):
            marker = None
        reason = str(marker.args[0]) if marker else "informational"
        item.add_marker(pytest.mark.xfail(strict=marker is not None, reason=reason))


@contextlib.contextmanager
def _limited(item: pytest.Item) -> Iterator[None]:
    """Raise in a test of sessions when it is overdue; end the run when even that cannot be delivered."""
    if "mark" not in getattr(item, "fixturenames", ()):
        yield
        return
    marker = item.get_closest_marker("limit")
    seconds = max(DEADLINE + 30, at_most(float(marker.args[0]) if marker else DEFAULT_LIMIT))

    def overdue(_signum: int, _frame: Any) -> None:
        raise Overdue(f"longer than {seconds} s")

    before = signal.signal(signal.SIGALRM, overdue)
    faulthandler.dump_traceback_later(seconds + 20, exit=True)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with _limited(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with _limited(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    with _limited(item):
        return (yield)


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The engine that SWX_ENGINE chose."""
    return Engine(ENGINE)


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[str]:
    """A quiet environment (own HOME, plain TERM), and a mark by which every process of this test is found."""
    home = tmp_path / "home"
    home.mkdir()
    (home / ".bashrc").write_text("")
    token = uuid.uuid4().hex
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("PATH", "/usr/local/bin:/usr/bin:/bin:" + os.environ["PATH"])
    monkeypatch.setenv(MARK_VARIABLE, token)
    for name in ("PS1", "PS2", "PROMPT_COMMAND", "BASH_ENV", "ENV", "PAGER", "GIT_PAGER", "LESS", "VIRTUAL_ENV"):
        monkeypatch.delenv(name, raising=False)
    yield token
    end_marked(token)


@pytest.fixture
def shells(engine: Engine, mark: str) -> Iterator[Any]:
    """A maker of sessions. After the test they are closed, and nothing that they started may be left."""
    made: list[Shell] = []

    def make(session: str = "default", **request: Any) -> Shell:
        shell = Shell(engine, session, **request)
        made.append(shell)
        return shell

    yield make
    for shell in reversed(made):
        shell.close()
    if made and not ON_ORIGINAL:
        until(lambda: not marked(mark))


@pytest.fixture
def sh(shells: type[Shell]) -> Iterator[Shell]:
    """A fresh session, proved usable after the test unless the test said that it ended (`sh.ended = True`)."""
    shell = shells()
    yield shell
    if not shell.ended:
        shell.synced()
