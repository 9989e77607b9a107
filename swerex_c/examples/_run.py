"""A batch of tasks over a pool of environments.

Each task has an environment of its own. If that is lost on the way, the task as a whole is done again in a fresh one:
nothing of the first attempt is taken over, and only the last one has a result. A result is written once. That a task
ran into a limit of time or memory, its own or its environment's, is its result: it would do so again.
"""

from __future__ import annotations

import asyncio
import datetime
import shlex
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from swerex_c.examples._agent import converse
from swerex_c.examples._results import Result, ResultFile
from swerex_c.examples._tasks import Step, Task
from swerex_c.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    EnvironmentLostError,
    EnvironmentMemoryLimitError,
    EnvironmentTimeLimitError,
    SwerexException,
)
from swerex_c.pool import Pool
from swerex_c.runtime.abstract import (
    AbstractRuntime,
    BashAction,
    BashInterruptAction,
    Command,
    CreateBashSessionRequest,
    UploadRequest,
)

__all__ = ["Batch", "SetupFailedError"]

_STARTUP_SECONDS = 60.0
_REMOVE_SECONDS = 20.0

_LIMITS = (EnvironmentTimeLimitError, EnvironmentMemoryLimitError)

_KEPT = 4000
"""Characters of a check's output that are kept, the last ones."""


class SetupFailedError(SwerexException, RuntimeError):
    """A command that prepares a task's environment did not exit with 0."""


@dataclass
class _Carried:
    """What an attempt came to, as far as it came."""

    commands: int = 0
    patch: str = ""
    check_output: str = ""
    check_exit_code: int | None = None


class Batch:
    """Carries out tasks and writes their results."""

    def __init__(
        self,
        tasks: Sequence[Task],
        pool: Pool,
        results: ResultFile,
        *,
        attempts: int = 3,
        finished: Callable[[Result], None] = lambda result: None,
    ):
        """
        Args:
            tasks: those that are to be done; who has a result already must not be among them.
            attempts: how often a task is begun at most, if its environment is lost.
            finished: called with each result when it is on the disk.
        """
        self._left = deque(tasks)
        self._pool = pool
        self._results = results
        self._attempts = attempts
        self._finished = finished
        self.commands = 0
        """Commands of all attempts."""

    async def run(self) -> None:
        """Do all tasks, as many at a time as the pool has environments.

        Cancelled, it can be begun again with those tasks that have no result. Its pool is not closed.

        Raises:
            OSError: if a result cannot be written.
        """
        # One thread, so that records are written one after the other, and none is cut short by a cancellation.
        with ThreadPoolExecutor(1, thread_name_prefix="results") as writer:
            workers = [
                asyncio.ensure_future(self._work(writer)) for _ in range(min(self._pool.size, len(self._left)))
            ]
            try:
                await asyncio.gather(*workers)
            finally:
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self, writer: ThreadPoolExecutor) -> None:
        while self._left:
            result = await self._result_of(self._left.popleft())
            await asyncio.get_running_loop().run_in_executor(writer, self._results.add, result)
            self._finished(result)

    async def _result_of(self, task: Task) -> Result:
        commands = 0
        for attempt in range(1, self._attempts + 1):
            carried = _Carried()
            begin = time.monotonic()
            result = Result(id=task.id, outcome="error", attempts=attempt)
            try:
                async with self._pool.environment(time_limit=task.timeout) as environment:
                    begin = time.monotonic()
                    await self._carry_out(task, environment.runtime, carried)
                result.outcome = "resolved" if carried.check_exit_code == 0 else "failed"
            except Exception as error:
                result.error, result.message = type(error).__name__, str(error)[:_KEPT]
                if isinstance(error, _LIMITS):
                    result.outcome = "limit"
                lost = isinstance(error, EnvironmentLostError) and not isinstance(error, _LIMITS)
            else:
                lost = False
            commands += carried.commands
            self.commands += carried.commands
            if not lost or attempt == self._attempts:
                break
        result.seconds = round(time.monotonic() - begin, 4)
        result.commands = commands
        result.patch, result.check_output = carried.patch, carried.check_output
        result.check_exit_code = carried.check_exit_code
        result.finished = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        return result

    async def _carry_out(self, task: Task, runtime: AbstractRuntime, carried: _Carried) -> None:
        session = CreateBashSessionRequest(startup_timeout=_STARTUP_SECONDS, env={"PAGER": "cat", "GIT_PAGER": "cat"})
        await runtime.create_session(session)
        made = await runtime.execute(Command(command="mktemp -d -t swerex-batch-XXXXXX", shell=True, check=True))
        directory = made.stdout.strip()

        async def run(step: Step) -> dict[str, Any]:
            carried.commands += 1
            return await _run(runtime, step, task.command_timeout)

        project = await _enter(task, runtime, directory)
        for command in task.setup:
            said = await run(Step(command=command))
            if said["exit_code"] != 0:
                raise SetupFailedError(f"{command[:200]!r} exited with {said['exit_code']}: {said['output'][-1000:]}")
        for step in task.actions:
            await run(step)
        if task.agent:
            await converse(task, run)
        if task.patch:
            carried.commands += 1
            carried.patch = await _patch(task, runtime, project)
        said = await run(Step(command=task.check))
        carried.check_exit_code, carried.check_output = said["exit_code"], said["output"][-_KEPT:]
        # Where environments share a file system, as those of this machine do, nobody else would remove it.
        remove = f"rm -rf -- {shlex.quote(directory)}"
        await runtime.execute(Command(command=remove, shell=True, timeout=_REMOVE_SECONDS))


async def _enter(task: Task, runtime: AbstractRuntime, directory: str) -> str:
    """Bring the task's files, and go where they are, which is returned."""
    if task.upload is not None:
        directory = str(PurePosixPath(directory) / PurePosixPath(task.upload).name)
        await runtime.upload(UploadRequest(source_path=task.upload, target_path=directory))
    await runtime.run_in_session(BashAction(command=f"cd -- {shlex.quote(directory)}", timeout=_STARTUP_SECONDS))
    return directory


async def _patch(task: Task, runtime: AbstractRuntime, project: str) -> str:
    assert task.patch is not None
    command = Command(command=task.patch, shell=True, check=True, cwd=project, timeout=task.command_timeout)
    return (await runtime.execute(command)).stdout


async def _run(runtime: AbstractRuntime, step: Step, seconds: float) -> dict[str, Any]:
    """What an agent is told about a command. What ends the session, or all of the environment, is raised."""
    action = BashAction(
        command=step.command, timeout=seconds if step.timeout is None else step.timeout, check="silent"
    )
    try:
        answer = await runtime.run_in_session(action)
    except CommandTimeoutError as error:
        await runtime.run_in_session(BashInterruptAction(timeout=1.0))
        return {"output": error.output, "exit_code": None, "error": str(error)}
    except BashIncorrectSyntaxError as error:
        return {"output": error.extra_info.get("bash_stderr", ""), "exit_code": None, "error": str(error)}
    if answer.failure_reason:
        return {"output": answer.output, "exit_code": answer.exit_code, "error": answer.failure_reason}
    return {"output": answer.output, "exit_code": answer.exit_code}
