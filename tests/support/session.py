"""A session of a runtime, and one of the engine under test that is driven from code that is not asynchronous.

`SWX_PLACE=here` runs the tests in a place that is reached by programs and is this machine, `SWX_PLACE=CONTAINER` in a
container: see `tests.support.local_backend`.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pytest

from swerex_c.deployment.abstract import AbstractDeployment
from swerex_c.exceptions import CommandTimeoutError
from swerex_c.models import (
    BashAction,
    BashInterruptAction,
    BashObservation,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
)
from swerex_c.runtime.abstract import AbstractRuntime
from swerex_c.runtime.local import LocalRuntime
from tests.support.results import WrongAnswer
from tests.support.wait import DEADLINE, until, until_async

T = TypeVar("T")

PLACE = os.environ.get("SWX_PLACE", "")


def make_runtime() -> Any:
    """Return the runtime under test: this machine's, or that of a place."""
    if PLACE:
        from tests.support.local_backend import runtime_in

        return runtime_in(PLACE)
    return LocalRuntime()


Steps = Sequence[tuple[str, str | None, int | None]]
"""Commands, each with its output and its exit code (None: any)."""


class Session:
    """A session of a runtime, in few words."""

    def __init__(self, runtime: AbstractRuntime, name: str = "", patience: float = DEADLINE):
        self.runtime = runtime
        self.name = name or f"s-{secrets.token_hex(6)}"
        self.patience = patience
        self.ended = False
        """Set by a case after which the session need not answer any more."""

    async def create(self, **request: Any) -> str:
        """Start the session and return the output of its startup files."""
        request = {"startup_timeout": self.patience, **request}
        return (await self.runtime.create_session(CreateBashSessionRequest(session=self.name, **request))).output

    def action(self, command: str, **action: Any) -> BashAction:
        fields = {"session": self.name, "timeout": self.patience, "check": "silent", **action}
        return BashAction(command=command, **fields)

    async def run(self, command: str, **action: Any) -> BashObservation:
        """Return the observation of a command."""
        return await self.runtime.run_in_session(self.action(command, **action))

    async def gives(self, command: str, output: str | None, code: int | None = 0, **action: Any) -> None:
        """Run a command that must have exactly this output and exit code; None: any."""
        seen = await self.run(command, **action)
        if output not in (None, seen.output) or code not in (None, seen.exit_code):
            gave, wanted = (seen.output[-2000:], seen.exit_code), (output and output[-2000:], code)
            raise WrongAnswer(f"{command[:200]!r} gave {gave!r}, not {wanted!r}")

    async def begin(self, command: str, ready: str = "") -> None:
        """Run a command that does not end, and return when it has begun, or has printed a text."""
        if not ready:
            command, ready = f"echo up; {command}", "up\n"
        seen = await self.run(command, expect=[re.escape(ready)], check="ignore")
        assert seen.expect_string == re.escape(ready), f"{command[:200]!r} gave {seen!r}"

    async def interrupt(self, **action: Any) -> BashObservation:
        # A program whose start swallows a SIGINT gets the next one after a second, not at the end of all patience.
        action = {"timeout": self.patience / 60, "n_retry": 60, **action}
        return await self.runtime.run_in_session(BashInterruptAction(session=self.name, **action))

    async def stream(
        self, command: str, *, hear: Callable[[str], object] | None = None, **action: Any
    ) -> tuple[list[str], BashObservation]:
        """Return the pieces of a command's output, and its observation; `hear` is called with each piece."""
        items: list[Any] = []
        async for item in self.runtime.stream_in_session(self.action(command, **action)):
            assert item and (not items or isinstance(items[-1], str)), "something came after the observation"
            items.append(item)
            if hear and isinstance(item, str):
                hear(item)
        return items[:-1], items[-1]

    async def synced(self) -> None:
        """Assert that each of three different commands has its own output and exit code."""
        for code in (0, 41, 7):
            text = secrets.token_hex(6)
            await self.gives(f"echo {text}; (exit {code})", f"{text}\n", code)

    async def close(self) -> None:
        await self.runtime.close_session(CloseBashSessionRequest(session=self.name))


async def says(deployment: AbstractDeployment, command: str) -> str:
    """Return the standard output of a command, outside of sessions, that succeeds."""
    done = await deployment.runtime.execute(Command(command=command, shell=True, timeout=DEADLINE))
    assert done.exit_code == 0, done
    return done.stdout


class Shell:
    """A session that is driven from code that is not asynchronous, and the loop that drives it.

    Each call runs in its own `asyncio.Runner` cycle of the same loop; `aio` is the runtime, and `session` the session,
    for tests that write their own coroutines.
    """

    def __init__(self, name: str = "default", *, aio: Any = None, create: bool = True, **request: Any):
        self.aio = make_runtime() if aio is None else aio
        self.session = Session(self.aio, name)
        self.action, self.go = self.session.action, self.session.run
        self.runner = asyncio.Runner()
        self.ended = False
        self.greeting = self.wait(self.session.create(**request)) if create else ""

    def wait(self, coroutine: Awaitable[T]) -> T:
        async def one() -> T:
            return await coroutine

        return self.runner.run(one())

    def run(self, command: str, timeout: float | None = DEADLINE, **more: Any) -> Any:
        """Return the observation of a command."""
        return self.wait(self.go(command, timeout=timeout, **more))

    def out(self, command: str, timeout: float | None = DEADLINE) -> str:
        """Return the output of a command that must succeed."""
        seen = self.run(command, timeout)
        assert seen.exit_code == 0, f"{command!r} gave {seen!r}"
        return seen.output

    def gives(self, command: str, output: str | None, code: int | None = 0, **more: Any) -> None:
        """Assert exactly this output and exit code; None: any."""
        self.wait(self.session.gives(command, output, code, **more))

    def take(self, steps: Steps) -> None:
        """Run commands one after the other, and assert what they give."""
        for step in steps:
            self.gives(*step)

    def stream(self, command: str, timeout: float | None = DEADLINE, **more: Any) -> tuple[str, Any]:
        """Return the joined pieces of a command's output, and the observation."""
        pieces, seen = self.wait(self.session.stream(command, timeout=timeout, **more))
        return "".join(pieces), seen

    def begin(self, command: str, ready: str) -> None:
        """Return when a command has printed a text; it runs on."""
        self.wait(self.session.begin(command, ready))

    def times_out(self, command: str, timeout: float = 0.3) -> Any:
        """Run a command that must not be reported as finished; the CommandTimeoutError."""
        with pytest.raises(CommandTimeoutError) as caught:
            seen = self.run(command, timeout)
            pytest.fail(f"{command[:200]!r} was called finished: {seen!r}")
        return caught.value

    def interrupt(self, **more: Any) -> Any:
        """Interrupt as often and as long as the API does by default."""
        return self.wait(self.aio.run_in_session(BashInterruptAction(session=self.session.name, **more)))

    def interrupted(self, command: str, ready: str = "", **more: Any) -> Any:
        """Interrupt a command that has begun, or has printed a text."""
        self.wait(self.session.begin(command, ready))
        return self.interrupt(**more)

    def talk(self, command: str, *expect: str, timeout: float = DEADLINE) -> Any:
        """Talk to an interactive program until one of its prompts."""
        return self.run(command, timeout, is_interactive_command=True, expect=list(expect))

    def leave(self, command: str) -> Any:
        """Leave an interactive program."""
        return self.run(command, is_interactive_quit=True)

    def synced(self) -> None:
        self.wait(self.session.synced())

    def close(self) -> None:
        self.wait(self.aio.close())
        self.runner.close()


class Gate:
    """Where a command waits until the test lets it go on: `pass_` is the text of a command that does so.

    It orders what a test and a command do, without a look at the clock.
    """

    def __init__(self, directory: Path) -> None:
        token = secrets.token_hex(6)
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
