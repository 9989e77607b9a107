"""An agent that is a program of its own: it writes commands to its standard output and reads what came of them.

Each line is a JSON object. The first line that it reads is the task: {"task": {...}}. For each line that it writes,

    {"command": "ls", "timeout": 10}

with the timeout optional, it reads one:

    {"output": "...", "exit_code": 0}                        the command has ended
    {"output": "...", "exit_code": null, "error": "..."}     it has not, and was interrupted; or it was not run

It ends when it is done. An exit code other than 0 makes the task an error; its standard error is shown.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from typing import Any

from swerex_c.examples._tasks import Step, Task
from swerex_c.exceptions import SwerexException

__all__ = ["AgentFailedError", "converse"]

_LONGEST_LINE = 16 * 2**20
"""Bytes of a line that the agent writes."""

_END_SECONDS = 5.0


class AgentFailedError(SwerexException, RuntimeError):
    """The agent's program could not be started, failed, or wrote what is no command."""


async def converse(task: Task, run: Callable[[Step], Awaitable[dict[str, Any]]]) -> None:
    """Have a task's agent do its work; `run` carries a command out and gives the answer to it.

    Raises:
        AgentFailedError: as that says. Whatever `run` raises comes as it is. The program has ended in
            any case; what it left in the background has not.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *task.agent, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=_LONGEST_LINE
        )
    except OSError as error:
        raise AgentFailedError(f"The agent {task.agent[0]} cannot be started: {error}") from error
    try:
        await _talk(process, task, run)
        if code := await process.wait():
            raise AgentFailedError(f"The agent {task.agent[0]} ended with exit code {code}")
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(process.wait()), _END_SECONDS)


async def _talk(
    process: asyncio.subprocess.Process, task: Task, run: Callable[[Step], Awaitable[dict[str, Any]]]
) -> None:
    assert process.stdin is not None and process.stdout is not None
    try:
        await _say(process.stdin, {"task": task.model_dump()})
        while line := await _line(process.stdout):
            try:
                step = Step.model_validate_json(line)
            except ValueError:
                raise AgentFailedError(f"The agent wrote what is no command: {line[:200]!r}") from None
            await _say(process.stdin, await run(step))
    finally:
        process.stdin.close()


async def _line(stdout: asyncio.StreamReader) -> bytes:
    try:
        return await stdout.readline()
    except ValueError:
        raise AgentFailedError(f"The agent wrote a line of more than {_LONGEST_LINE} bytes") from None


async def _say(stdin: asyncio.StreamWriter, what: dict[str, Any]) -> None:
    with contextlib.suppress(ConnectionError):  # it has ended; what it wrote before and its exit code say the rest
        stdin.write(json.dumps(what).encode() + b"\n")
        await stdin.drain()
