"""Run a batch of tasks on a pool of environments.

Each task has its own environment. If the environment is lost, the whole task is done again in a fresh one: nothing of
the earlier attempt is kept, and only the last attempt has a result. A result is written once. A task that reaches a
limit of time or memory, its own or its environment's, is not retried, because it would reach the limit again.
"""

from __future__ import annotations

import asyncio
import datetime
import shlex
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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
from swerex_c.interfaces import AbstractRuntime
from swerex_c.models import BashAction, BashInterruptAction, Command, CreateBashSessionRequest, UploadRequest
from swerex_c.pool.pool import Pool

__all__ = ["Batch", "SetupFailedError"]

_STARTUP_SECONDS = 60.0
_REMOVE_SECONDS = 20.0
_LIMITS = (EnvironmentTimeLimitError, EnvironmentMemoryLimitError)

_KEPT = 4000
"""Number of characters kept from the end of a check's output."""


class SetupFailedError(SwerexException, RuntimeError):
    """A setup command of a task's environment did not exit with 0."""


class Batch:
    """Batch run of tasks that writes their results."""

    def __init__(
        self,
        tasks: Sequence[Task],
        pool: Pool,
        results: ResultFile,
        *,
        attempts: int = 3,
        finished: Callable[[Result], None] = lambda result: None,
    ):
        """Create a batch run.

        Args:
            tasks: tasks to do; they must not have a result yet.
            attempts: maximum number of attempts per task if its environment is lost.
            finished: called with each result when it is on disk.
        """
        self._left = deque(tasks)
        self._pool = pool
        self._results = results
        self._attempts = attempts
        self._finished = finished

    async def run(self) -> None:
        """Do all tasks, as many at a time as the pool has environments.

        After a cancellation, a new batch can do the tasks that have no result. The pool is not closed.

        Raises:
            OSError: if a result cannot be written.
        """
        # One thread writes the records in sequence, and a cancellation cannot interrupt a write.
        with ThreadPoolExecutor(1, thread_name_prefix="results") as writer:
            workers = [asyncio.ensure_future(self._work(writer)) for _ in range(min(self._pool.size, len(self._left)))]
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
            result = Result(id=task.id, outcome="error", attempts=attempt, commands=commands)
            begin = time.monotonic()
            try:
                async with self._pool.environment(time_limit=task.timeout) as environment:
                    begin = time.monotonic()
                    await self._carry_out(task, environment.runtime, result)
                result.outcome = "resolved" if result.check_exit_code == 0 else "failed"
                break
            except Exception as error:
                result.error, result.message = type(error).__name__, str(error)[:_KEPT]
                result.outcome = "limit" if isinstance(error, _LIMITS) else "error"
                if result.outcome == "limit" or not isinstance(error, EnvironmentLostError):
                    break
            commands = result.commands
        result.seconds = round(time.monotonic() - begin, 4)
        result.finished = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        return result

    async def _carry_out(self, task: Task, runtime: AbstractRuntime, result: Result) -> None:
        """Do a task in an environment: upload, setup, the agent's commands, patch, check."""

        async def run(step: Step) -> dict[str, Any]:
            result.commands += 1
            return await _run(runtime, step, task.command_timeout)

        session = CreateBashSessionRequest(startup_timeout=_STARTUP_SECONDS, env={"PAGER": "cat", "GIT_PAGER": "cat"})
        await runtime.create_session(session)
        made = await runtime.execute(Command(command="mktemp -d -t swerex-batch-XXXXXX", shell=True, check=True))
        directory = project = made.stdout.strip()
        if task.upload is not None:
            project = str(PurePosixPath(directory) / PurePosixPath(task.upload).name)
            await runtime.upload(UploadRequest(source_path=task.upload, target_path=project))
        await runtime.run_in_session(BashAction(command=f"cd -- {shlex.quote(project)}", timeout=_STARTUP_SECONDS))
        for command in task.setup:
            said = await run(Step(command=command))
            if said["exit_code"] != 0:
                raise SetupFailedError(f"{command[:200]!r} exited with {said['exit_code']}: {said['output'][-1000:]}")
        for step in task.actions:
            await run(step)
        if task.agent:
            await converse(task, run)
        if task.patch:
            result.commands += 1
            patch = Command(command=task.patch, shell=True, check=True, cwd=project, timeout=task.command_timeout)
            result.patch = (await runtime.execute(patch)).stdout
        said = await run(Step(command=task.check))
        result.check_exit_code, result.check_output = said["exit_code"], said["output"][-_KEPT:]
        # Environments may share a file system, as those of this machine do, so the directory would remain.
        remove = f"rm -rf -- {shlex.quote(directory)}"
        await runtime.execute(Command(command=remove, shell=True, timeout=_REMOVE_SECONDS))


async def _run(runtime: AbstractRuntime, step: Step, seconds: float) -> dict[str, Any]:
    """Run a command and return the response for the agent. The end of the session or the environment is raised."""
    action = BashAction(command=step.command, timeout=seconds if step.timeout is None else step.timeout, check="silent")
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
