"""A small synchronous driver around the asynchronous API, the same for both engines.

`SWX_ENGINE=swerex` runs the tests on the original, `SWX_ENGINE=swerex_c` (the default) on ours. `SWX_PLACE=here` runs
ours in a place that is reached by programs and is this machine, `SWX_PLACE=CONTAINER` in a container: see
`tests.support.local_backend`.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Awaitable, Coroutine, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import pytest

from tests.support.results import WrongAnswer
from tests.support.wait import DEADLINE

T = TypeVar("T")

ENGINE = os.environ.get("SWX_ENGINE", "swerex_c")
ON_ORIGINAL = ENGINE == "swerex"
PLACE = os.environ.get("SWX_PLACE", "")
MARK_VARIABLE = "SWX_TEST_MARK"
PATIENCE = 2.5 if ON_ORIGINAL else DEADLINE
"""Seconds a command may take when a test names no timeout: the original loses the end of some."""

wrong = pytest.mark.wrong_in_original
"""`@wrong("why")`: the test fails on the original, which `--expect-wrong` verifies."""


class Overdue(BaseException):
    """A test ran longer than its limit. Not an Exception, so that no engine swallows it."""


class Engine:
    """The public modules of one engine."""

    def __init__(self, package: str):
        self.package = package
        self.local: ModuleType = importlib.import_module(f"{package}.runtime.local")
        self.abstract: ModuleType = importlib.import_module(f"{package}.runtime.abstract")
        self.exceptions: ModuleType = importlib.import_module(f"{package}.exceptions")

    def runtime(self) -> Any:
        if PLACE:
            from tests.support.local_backend import runtime_in

            return runtime_in(PLACE)
        return self.local.LocalRuntime()


class Shell:
    """One session and the loop that drives it.

    Each call runs in its own `asyncio.Runner` cycle of the same loop; `aio` is the runtime for tests that write
    their own coroutines.
    """

    def __init__(
        self, engine: Engine, session: str = "default", *, aio: Any = None, create: bool = True, **request: Any
    ):
        self.engine = engine
        self.session = session
        self.aio = engine.runtime() if aio is None else aio
        self.runner = asyncio.Runner()
        self.ended = False
        self.created: Any = None
        if create:
            self.created = self.wait(self.aio.create_session(self.creation(**request)))

    def creation(self, **request: Any) -> Any:
        return self.engine.abstract.CreateBashSessionRequest(session=self.session, **request)

    def action(self, command: str, timeout: float | None = PATIENCE, check: str = "silent", **more: Any) -> Any:
        more.setdefault("session", self.session)
        return self.engine.abstract.BashAction(command=command, timeout=timeout, check=check, **more)

    def interruption(self, **more: Any) -> Any:
        return self.engine.abstract.BashInterruptAction(session=self.session, **more)

    def wait(self, coroutine: Awaitable[T]) -> T:
        async def one() -> T:
            return await coroutine

        return self.runner.run(one())

    def run(self, command: str, timeout: float | None = PATIENCE, check: str = "silent", **more: Any) -> Any:
        """The observation of a command."""
        return self.wait(self.aio.run_in_session(self.action(command, timeout, check, **more)))

    def go(self, command: str, timeout: float | None = PATIENCE, **more: Any) -> Coroutine[Any, Any, Any]:
        """The coroutine of a command, for tests that gather several."""
        return self.aio.run_in_session(self.action(command, timeout, **more))

    def out(self, command: str, timeout: float | None = PATIENCE) -> str:
        """The output of a command that must succeed."""
        seen = self.run(command, timeout)
        assert seen.exit_code == 0, f"{command!r} gave {seen!r}"
        return seen.output

    def gives(self, command: str, output: str, exit_code: int = 0, timeout: float | None = PATIENCE) -> None:
        """Assert exactly this output and exit code."""
        seen = self.run(command, timeout)
        if (seen.output, seen.exit_code) != (output, exit_code):
            gave, wanted = (seen.output[-2000:], seen.exit_code), (output[-2000:], exit_code)
            raise WrongAnswer(f"{command[:200]!r} gave {gave!r}, not {wanted!r}")

    def times_out(self, command: str, timeout: float = 0.3) -> Any:
        """Run a command that must not be reported as finished; the CommandTimeoutError."""
        with pytest.raises(self.engine.exceptions.CommandTimeoutError) as caught:
            seen = self.run(command, timeout)
            pytest.fail(f"{command[:200]!r} was called finished: {seen!r}")
        return caught.value

    def interrupt(self, **more: Any) -> Any:
        return self.wait(self.aio.run_in_session(self.interruption(**more)))

    def talk(self, command: str, *expect: str, timeout: float = PATIENCE) -> Any:
        """One exchange with an interactive program, until one of its prompts."""
        return self.run(command, timeout, is_interactive_command=True, expect=list(expect))

    def leave(self, command: str, timeout: float = PATIENCE) -> Any:
        """Leave an interactive program."""
        return self.run(command, timeout, is_interactive_quit=True)

    def synced(self) -> None:
        """The session answers each of three different commands with its own output and its own exit code."""
        for code in (0, 41, 7):
            token = uuid.uuid4().hex
            self.gives(f"echo {token}; (exit {code})", f"{token}\n", code)

    def close(self) -> None:
        with contextlib.suppress(Exception) if ON_ORIGINAL else contextlib.nullcontext():
            self.wait(self.aio.close())
        self.runner.close()


def marked(mark: str) -> dict[int, str]:
    """Processes whose starting environment carries the mark, this one excepted: id to command line."""
    needle = f"{MARK_VARIABLE}={mark}".encode()
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            if needle in Path("/proc", entry, "environ").read_bytes():
                line = Path("/proc", entry, "cmdline").read_bytes().replace(b"\0", b" ")
                found[int(entry)] = line.decode(errors="replace")
        except OSError:
            continue
    return found


def end_marked(mark: str) -> None:
    """Kill what a test left behind, so that it cannot disturb the next one."""
    for pid in marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def running(needle: str) -> list[int]:
    """Ids of live processes whose command line contains the text (zombies have none)."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            with contextlib.suppress(OSError):
                if needle.encode() in Path("/proc", entry, "cmdline").read_bytes().replace(b"\0", b" "):
                    found.append(int(entry))
    return found


@contextlib.contextmanager
def busy_machine(processes: int = 3) -> Iterator[None]:
    """Others that take the processors meanwhile."""
    busy = [subprocess.Popen([sys.executable, "-c", "while 1: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def python_environment() -> dict[str, str]:
    """For a Python started by a test: it finds the engine where this one does."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


def no_signals(status: str) -> bool:
    """Whether the SigIgn and SigBlk lines of a /proc status are empty but for the C library's own 32 and 33."""
    masks = [int(word, 16) for word in status.split() if not word.endswith(":")]
    return len(masks) == 2 and not any(mask & ~0x1_8000_0000 for mask in masks)


def needs(program: str) -> str:
    """The path of a real program; the test is skipped, by its name, on a machine that lacks it."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"this machine has no {program}")
    return path
