"""A session of the engine under test, driven from code that is not asynchronous.

`SWX_PLACE=here` runs the tests in a place that is reached by programs and is this machine, `SWX_PLACE=CONTAINER` in a
container: see `tests.support.local_backend`.
"""

from __future__ import annotations

import asyncio
import os
import re
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from swerex_c.exceptions import CommandTimeoutError
from swerex_c.runtime.abstract import BashAction, BashInterruptAction, CreateBashSessionRequest
from swerex_c.runtime.local import LocalRuntime
from tests.support.results import WrongAnswer
from tests.support.wait import DEADLINE, until, until_async

T = TypeVar("T")

PLACE = os.environ.get("SWX_PLACE", "")


def make_runtime() -> Any:
    """The runtime under test: this machine's, or that of a place."""
    if PLACE:
        from tests.support.local_backend import runtime_in

        return runtime_in(PLACE)
    return LocalRuntime()


Steps = Sequence[tuple[str, str | None, int | None]]
"""Commands, each with its output and its exit code (None: any)."""


class Shell:
    """One session and the loop that drives it.

    Each call runs in its own `asyncio.Runner` cycle of the same loop; `aio` is the runtime for tests that write
    their own coroutines.
    """

    def __init__(self, session: str = "default", *, aio: Any = None, create: bool = True, **request: Any):
        self.session = session
        self.aio = make_runtime() if aio is None else aio
        self.runner = asyncio.Runner()
        self.ended = False
        self.created: Any = None
        if create:
            self.created = self.wait(self.aio.create_session(self.creation(**request)))

    def creation(self, **request: Any) -> Any:
        fields = {"session": self.session, "startup_timeout": DEADLINE, **request}
        return CreateBashSessionRequest(**fields)

    def action(self, command: str, timeout: float | None = DEADLINE, check: str = "silent", **more: Any) -> Any:
        more.setdefault("session", self.session)
        return BashAction(command=command, timeout=timeout, check=check, **more)

    def interruption(self, **more: Any) -> Any:
        return BashInterruptAction(session=self.session, **more)

    def wait(self, coroutine: Awaitable[T]) -> T:
        async def one() -> T:
            return await coroutine

        return self.runner.run(one())

    def run(self, command: str, timeout: float | None = DEADLINE, check: str = "silent", **more: Any) -> Any:
        """The observation of a command."""
        return self.wait(self.aio.run_in_session(self.action(command, timeout, check, **more)))

    def go(self, command: str, timeout: float | None = DEADLINE, **more: Any) -> Coroutine[Any, Any, Any]:
        """The coroutine of a command, for tests that gather several."""
        return self.aio.run_in_session(self.action(command, timeout, **more))

    def out(self, command: str, timeout: float | None = DEADLINE) -> str:
        """The output of a command that must succeed."""
        seen = self.run(command, timeout)
        assert seen.exit_code == 0, f"{command!r} gave {seen!r}"
        return seen.output

    def gives(
        self, command: str, output: str | None, exit_code: int | None = 0, timeout: float | None = DEADLINE
    ) -> None:
        """Assert exactly this output and exit code; None: any."""
        seen = self.run(command, timeout)
        if output not in (None, seen.output) or exit_code not in (None, seen.exit_code):
            gave, wanted = (seen.output[-2000:], seen.exit_code), (output and output[-2000:], exit_code)
            raise WrongAnswer(f"{command[:200]!r} gave {gave!r}, not {wanted!r}")

    def take(self, steps: Steps) -> None:
        """Run commands one after the other, and assert what they give."""
        for step in steps:
            self.gives(*step)

    def stream(
        self, command: str, timeout: float | None = DEADLINE, *, hear: Callable[[str], None] | None = None, **more: Any
    ) -> tuple[str, Any]:
        """The pieces of a command's output, joined, and the observation; `hear` is called with each piece."""

        async def read() -> tuple[str, Any]:
            pieces: list[Any] = []
            async for item in self.aio.stream_in_session(self.action(command, timeout, **more)):
                assert item and (not pieces or isinstance(pieces[-1], str)), "something came after the observation"
                pieces.append(item)
                if hear and isinstance(item, str):
                    hear(item)
            return "".join(pieces[:-1]), pieces[-1]

        return self.wait(read())

    def begin(self, command: str, ready: str) -> None:
        """Return when a command has printed a text; it runs on."""
        seen = self.run(command, check="ignore", expect=[re.escape(ready)])
        assert seen.expect_string == re.escape(ready), f"{command[:200]!r} gave {seen!r}"

    def times_out(self, command: str, timeout: float = 0.3) -> Any:
        """Run a command that must not be reported as finished; the CommandTimeoutError."""
        with pytest.raises(CommandTimeoutError) as caught:
            seen = self.run(command, timeout)
            pytest.fail(f"{command[:200]!r} was called finished: {seen!r}")
        return caught.value

    def interrupt(self, **more: Any) -> Any:
        return self.wait(self.aio.run_in_session(self.interruption(**more)))

    def talk(self, command: str, *expect: str, timeout: float = DEADLINE) -> Any:
        """One exchange with an interactive program, until one of its prompts."""
        return self.run(command, timeout, is_interactive_command=True, expect=list(expect))

    def leave(self, command: str, timeout: float = DEADLINE) -> Any:
        """Leave an interactive program."""
        return self.run(command, timeout, is_interactive_quit=True)

    def synced(self) -> None:
        """The session answers each of three different commands with its own output and its own exit code."""
        for code in (0, 41, 7):
            token = uuid.uuid4().hex
            self.gives(f"echo {token}; (exit {code})", f"{token}\n", code)

    def close(self) -> None:
        self.wait(self.aio.close())
        self.runner.close()


class Gate:
    """Where a command waits until the test lets it go on: `pass_` is the text of a command that does so.

    It orders what a test and a command do, without a look at the clock.
    """

    def __init__(self, directory: Path) -> None:
        token = uuid.uuid4().hex
        self.come, fifo = directory / f"come-{token}", directory / f"fifo-{token}"
        os.mkfifo(fifo)
        self.ends = os.open(fifo, os.O_RDWR)
        self.pass_ = f"{{ : >{self.come}; read -r _ <{fifo}; }}"

    def reached(self) -> None:
        """Wait until the command is at the gate."""
        until(self.come.exists, "no command has come to the gate")

    async def is_reached(self) -> None:
        """Wait as `reached` does, while the event loop goes on."""
        await until_async(self.come.exists, "no command has come to the gate")

    def open(self) -> None:
        """Let the command go on, also when it has still to come."""
        os.write(self.ends, b"\n")

    def close(self) -> None:
        os.close(self.ends)
