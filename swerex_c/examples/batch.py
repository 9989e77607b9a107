"""Run a batch of tasks on a pool of environments, and go on where an earlier run ended.

The tasks are in the style of SWE-bench, and any deployment provides the environments.

    python -m swerex_c.examples.batch TASKS.jsonl --results OUT.jsonl --pool 8 --deployment '{"type": "local"}'
    python -m swerex_c.examples.batch --demo 100 --results OUT.jsonl --pool 64 \\
        --deployment '{"type": "ray", "environment": {"type": "local"}}'

`swerex_c.examples.tasks.Task` describes a task; `--demo N` makes tasks up. If you run the same command again, tasks
with a result are not done again, except, with `--retry-errors`, those that ended in an error or at a limit.

Each task has its own environment. If that is lost, the whole task is done again in a fresh one. A task that reaches a
limit of time or memory, its own or its environment's, is not, because it would reach the limit again.

To run your own agent, replace the loop over `task.actions` in `carry_out`.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shlex
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath
from typing import Annotated, NoReturn

import typer

from swerex_c import (
    BashIncorrectSyntaxError,
    BashInterruptAction,
    Command,
    CommandTimeoutError,
    CreateBashSessionRequest,
    Pool,
    SandboxLostError,
    SwerexException,
    UploadRequest,
)
from swerex_c.deployment.config import config_from_json
from swerex_c.examples.tasks import Result, ResultFile, Task, demo_tasks, open_results, read_tasks
from swerex_c.exceptions import InvalidInputError, MemoryLimitError, TimeLimitError
from swerex_c.interfaces import AbstractRuntime
from swerex_c.utils.child_signal import restore_child_signal
from swerex_c.utils.visible import visible

__all__ = ["SetupFailedError", "app", "main", "run_batch"]

_ATTEMPTS = 3
"""Maximum number of attempts for a task whose environment is lost."""

_KEPT = 4000
"""Number of characters kept from the end of a check's output."""


class SetupFailedError(SwerexException, RuntimeError):
    """A setup command of a task's environment did not exit with 0."""


# A task in an environment


async def carry_out(task: Task, runtime: AbstractRuntime, result: Result) -> None:
    """Do a task: upload, setup, the agent's commands, patch, check."""
    session = CreateBashSessionRequest(startup_timeout=60, env={"PAGER": "cat", "GIT_PAGER": "cat"})
    await runtime.create_session(session)
    made = await runtime.execute(Command(command="mktemp -d -t swerex-batch-XXXXXX", shell=True, check=True))
    directory = project = made.stdout.strip()
    if task.upload is not None:
        project = str(PurePosixPath(directory) / PurePosixPath(task.upload).name)
        await runtime.upload(UploadRequest(source_path=task.upload, target_path=project))
    await runtime.run(f"cd -- {shlex.quote(project)}", timeout=60)
    for command in task.setup:
        code, output = await run_step(runtime, command, task.command_timeout)
        if code != 0:
            raise SetupFailedError(f"{command[:200]!r} exited with {code}: {output[-1000:]}")
    for command in task.actions:
        await run_step(runtime, command, task.command_timeout)
    if task.patch:
        patch = Command(command=task.patch, shell=True, check=True, cwd=project, timeout=task.command_timeout)
        result.patch = (await runtime.execute(patch)).stdout
    result.check_exit_code, output = await run_step(runtime, task.check, task.command_timeout)
    result.check_output = output[-_KEPT:]
    # Environments may share a file system, as those of this machine do, so the directory would remain.
    await runtime.execute(Command(command=["rm", "-rf", "--", directory], timeout=20))


async def run_step(runtime: AbstractRuntime, command: str, seconds: float) -> tuple[int | None, str]:
    """Run a command in the session, and return its exit code and its output.

    The exit code is None if the command was interrupted after `seconds`, or bash refuses it. The end of the session or
    of the environment is raised.
    """
    try:
        answer = await runtime.run(command, timeout=seconds, check="silent")
    except CommandTimeoutError as error:
        await runtime.run_in_session(BashInterruptAction(timeout=1.0))
        return None, error.output
    except BashIncorrectSyntaxError as error:
        return None, error.extra_info.get("bash_stderr", "")
    return answer.exit_code, answer.output


# All tasks on a pool


async def run_batch(tasks: Iterable[Task], pool: Pool, file: ResultFile, *, finished: Callable[[Result], None]) -> None:
    """Do tasks: all wait for an environment of the pool, which serves them in order.

    Args:
        finished: called with each result when it is on disk.

    Raises:
        OSError: if a result cannot be written.
    """

    async def work(task: Task) -> None:
        result = await _result_of(task, pool)
        file.add(result)
        finished(result)

    try:
        async with asyncio.TaskGroup() as group:
            for task in tasks:
                group.create_task(work(task))
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None


async def _result_of(task: Task, pool: Pool) -> Result:
    for attempt in range(1, _ATTEMPTS + 1):
        result = Result(id=task.id, outcome="error", attempts=attempt)
        begin = time.monotonic()
        try:
            async with pool.environment(time_limit=task.timeout) as environment:
                begin = time.monotonic()
                await carry_out(task, environment.runtime, result)
            result.outcome = "resolved" if result.check_exit_code == 0 else "failed"
            break
        except Exception as error:
            result.error, result.message = type(error).__name__, str(error)[:_KEPT]
            is_limit = isinstance(error, TimeLimitError | MemoryLimitError)
            result.outcome = "limit" if is_limit else "error"
            if is_limit or not isinstance(error, SandboxLostError):
                break
    result.seconds = round(time.monotonic() - begin, 4)
    return result


# The command

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def batch(
    tasks: Annotated[Path | None, typer.Argument(metavar="TASKS.jsonl", help="One task a line, as JSON.")] = None,
    results: Annotated[Path, typer.Option(help="Where results are appended.")] = Path("results.jsonl"),
    pool: Annotated[int, typer.Option(min=1, help="How many environments at once.")] = 4,
    deployment: Annotated[str, typer.Option(help="What each environment is, as JSON.")] = '{"type": "local"}',
    demo: Annotated[int | None, typer.Option(min=1, help="Make up this many tasks instead of reading a file.")] = None,
    retry_errors: Annotated[
        bool, typer.Option("--retry-errors", help="Do those again that ended in an error or at a limit.")
    ] = False,
) -> None:
    """Run a batch of tasks.

    The exit status is 1 if a task ended in an error, and 130 if the run was interrupted.
    """
    if (tasks is None) == (demo is None):
        _fail("Either a file of tasks or --demo N is needed")
    with contextlib.ExitStack() as stack:
        try:
            config = config_from_json(deployment)
            all_tasks = demo_tasks(demo) if demo is not None else read_tasks(tasks or Path())
            file = stack.enter_context(open_results(results))
        except (InvalidInputError, OSError, ValueError) as error:
            _fail(str(error))
        again = ("error", "limit") if retry_errors else ()
        left = [it for it in all_tasks if it.id not in file.results or file.results[it.id].outcome in again]
        if len(left) < len(all_tasks):
            print(f"{len(all_tasks) - len(left)} of {len(all_tasks)} tasks have a result already", flush=True)
        try:
            asyncio.run(_run(left, len(all_tasks), Pool(config, pool, max_waiting=len(left)), file))
        except (KeyboardInterrupt, asyncio.CancelledError) as error:
            print("Interrupted. The same command again goes on from here.")
            number = signal.SIGINT if isinstance(error, KeyboardInterrupt) else signal.SIGTERM
            raise typer.Exit(128 + number) from None
        except OSError as error:
            print(f"A result could not be written: {error}", file=sys.stderr)
            raise typer.Exit(1) from None
        outcomes = Counter(file.results[task.id].outcome for task in all_tasks)
    print(f"{outcomes['resolved']} resolved, {outcomes['failed']} failed, {outcomes['limit']} at a limit, ", end="")
    print(f"{outcomes['error']} errors")
    raise typer.Exit(1 if outcomes["error"] else 0)


async def _run(left: list[Task], count: int, pool: Pool, file: ResultFile) -> None:
    """Do the tasks that are left of `count`, and print each result. SIGTERM cancels this."""
    me = asyncio.current_task()
    assert me is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)
    numbers = itertools.count(count - len(left) + 1)

    def finished(result: Result) -> None:
        more = f" {result.error}: {result.message}" if result.error else ""
        line = f"{next(numbers)}/{count} {result.id}: {result.outcome} in {result.seconds:.2f} s{more}"
        print(visible(line.replace("\n", " ")), flush=True)

    async with pool:
        await run_batch(left, pool, file, finished=finished)


def _fail(message: str) -> NoReturn:
    print(f"batch: {message}", file=sys.stderr)
    raise typer.Exit(2)


def main() -> None:
    """Run the command with the arguments of the process, and exit."""
    os.environ.setdefault("SWE_REX_LOG_STREAM_LEVEL", "ERROR")
    restore_child_signal()
    app(prog_name="python -m swerex_c.examples.batch")


if __name__ == "__main__":
    main()
