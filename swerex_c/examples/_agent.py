"""Agent programs of a batch, and the protocol that they use.

An agent program writes commands to standard output and reads the results from standard input. Each line is a JSON
object. The agent first reads the task: {"task": {...}}. For each command line that it writes,

    {"command": "ls", "timeout": 10}

(the timeout is optional), it reads one line:

    {"output": "...", "exit_code": 0}                        the command has ended
    {"output": "...", "exit_code": null, "error": "..."}     the command was interrupted, or was not run

The agent exits when it is done. An exit code other than 0 makes the task an error; its standard error is shown.
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
"""Maximum number of bytes in a line that the agent writes."""

_END_SECONDS = 5.0
"""Maximum seconds to wait for the end of a killed agent."""

Run = Callable[[Step], Awaitable[dict[str, Any]]]
"""Function that runs a command and returns the response to the agent."""


class AgentFailedError(SwerexException, RuntimeError):
    """The agent program could not be started, failed, or wrote an invalid command."""


async def converse(task: Task, run: Run) -> None:
    """Run a task's agent to its end.

    The agent program has ended in any case when this returns or raises; its background processes may still run.

    Raises:
        AgentFailedError: if the agent fails.
        Exception: what `run` raises.
    """
    pipe = asyncio.subprocess.PIPE
    try:
        agent = await asyncio.create_subprocess_exec(*task.agent, stdin=pipe, stdout=pipe, limit=_LONGEST_LINE)
    except OSError as error:
        raise AgentFailedError(f"The agent {task.agent[0]} cannot be started: {error}") from error
    try:
        assert agent.stdin is not None and agent.stdout is not None
        await _write(agent.stdin, {"task": task.model_dump()})
        while line := await _read_line(agent.stdout):
            try:
                step = Step.model_validate_json(line)
            except ValueError:
                raise AgentFailedError(f"The agent wrote what is no command: {line[:200]!r}") from None
            await _write(agent.stdin, await run(step))
        agent.stdin.close()
        if code := await agent.wait():
            raise AgentFailedError(f"The agent {task.agent[0]} ended with exit code {code}")
    finally:
        if agent.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                agent.kill()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(agent.wait(), _END_SECONDS)


async def _read_line(stdout: asyncio.StreamReader) -> bytes:
    try:
        return await stdout.readline()
    except ValueError:
        raise AgentFailedError(f"The agent wrote a line of more than {_LONGEST_LINE} bytes") from None


async def _write(stdin: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    with contextlib.suppress(ConnectionError):  # the agent has ended; its earlier output and its exit code decide
        stdin.write(json.dumps(message).encode() + b"\n")
        await stdin.drain()
