"""A batch of tasks in the manner of SWE-bench, over a pool of environments on any engine.

    python -m swerex_c.examples.batch TASKS.jsonl --results OUT.jsonl --pool 8 --deployment '{"type": "local"}'
    python -m swerex_c.examples.batch --demo 100 --results OUT.jsonl --pool 64 \\
        --deployment '{"type": "ray", "environment": {"type": "local"}}'

What a task is says `swerex_c.examples._tasks.Task`; `--demo N` makes some up. The same command again goes on where the
last one ended, however it did: tasks with a result are not done again, but with `--retry-errors` those that ended in an
error or at a limit of time or memory.

The parts: `_tasks` reads, `_run` carries out, `_agent` talks to an agent that is a program, `_results` keeps the file,
`_show` draws.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from swerex_c.deployment.config import DeploymentConfig
    from swerex_c.examples._results import Result, ResultFile
    from swerex_c.examples._tasks import Task

__all__ = ["app", "main"]

_ERRORS, _USAGE, _INTERRUPTED, _TERMINATED = 1, 2, 130, 143

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def batch(
    tasks: Annotated[Path | None, typer.Argument(metavar="TASKS.jsonl", help="One task a line, as JSON.")] = None,
    results: Annotated[Path, typer.Option(help="Where results are appended.")] = Path("results.jsonl"),
    pool: Annotated[int, typer.Option(min=1, help="How many environments at once.")] = 4,
    deployment: Annotated[str, typer.Option(help="What each environment is, as JSON.")] = '{"type": "local"}',
    demo: Annotated[int | None, typer.Option(min=1, help="Make up this many tasks instead of reading a file.")] = None,
    agent: Annotated[str, typer.Option(help="The agent's program, for tasks that name neither actions nor one.")] = "",
    attempts: Annotated[int, typer.Option(min=1, help="How often a task is begun if its environment is lost.")] = 3,
    starts_at_once: Annotated[int, typer.Option(min=1, help="How many environments may be starting.")] = 8,
    retry_errors: Annotated[
        bool, typer.Option("--retry-errors", help="Do those again that ended in an error or at a limit.")
    ] = False,
) -> None:
    """Run a batch of tasks. Ends with 1 if a task ended in an error, with 130 if it was interrupted."""
    os.environ.setdefault("SWE_REX_LOG_STREAM_LEVEL", "ERROR")  # read when the rest is imported
    from swerex_c.examples._results import ResultFile
    from swerex_c.examples._tasks import demo_tasks, deployment_config, read_tasks
    from swerex_c.exceptions import InvalidInputError

    if (tasks is None) == (demo is None):
        _fail("Either a file of tasks or --demo N is needed")
    try:
        config = deployment_config(deployment)
        all_tasks = demo_tasks(demo) if demo is not None else read_tasks(tasks or Path())
        for task in all_tasks:
            if agent and not task.actions and not task.agent:
                task.agent = shlex.split(agent)
        file = ResultFile(results)
    except (InvalidInputError, OSError, ValueError) as error:
        _fail(str(error))
    with file:
        raise typer.Exit(_run(all_tasks, config, file, pool, attempts, starts_at_once, retry_errors))


def _run(
    all_tasks: list[Task],
    config: DeploymentConfig,
    file: ResultFile,
    size: int,
    attempts: int,
    starts_at_once: int,
    retry_errors: bool,
) -> int:
    from rich.console import Console

    done = {
        task.id: file.results[task.id]
        for task in all_tasks
        if task.id in file.results and not (retry_errors and file.results[task.id].outcome in ("error", "limit"))
    }
    left = [task for task in all_tasks if task.id not in done]
    console = Console()
    if done:
        console.print(f"{len(done)} of {len(all_tasks)} tasks have a result already")
    code = 0
    try:
        asyncio.run(_carry_out(console, all_tasks, left, config, file, size, attempts, starts_at_once))
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except asyncio.CancelledError:
        code = _TERMINATED
    except OSError as error:
        print(f"A result could not be written: {error}", file=sys.stderr)
        return _ERRORS
    if code:
        console.print("Interrupted. The same command again goes on from here.")
        return code
    ours = [file.results[task.id] for task in all_tasks]
    return _ERRORS if any(result.outcome == "error" for result in ours) else 0


async def _carry_out(
    console: Console,
    all_tasks: list[Task],
    left: list[Task],
    config: DeploymentConfig,
    file: ResultFile,
    size: int,
    attempts: int,
    starts_at_once: int,
) -> None:
    from swerex_c.examples._run import Batch
    from swerex_c.examples._show import progress, summary
    from swerex_c.pool import Pool

    me = asyncio.current_task()
    assert me is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)
    ids = {task.id for task in left}
    before = [file.results[task.id] for task in all_tasks if task.id not in ids and task.id in file.results]
    begin = time.monotonic()
    new = 0
    async with Pool(config, size, starts_at_once=starts_at_once) as pool:
        with progress(console, len(all_tasks), before) as show:

            def finished(result: Result) -> None:
                nonlocal new
                new += 1
                show(result)

            running = Batch(left, pool, file, attempts=attempts, finished=finished)
            try:
                await running.run()
            finally:
                seconds = time.monotonic() - begin
                stats = pool.stats()
    ours = [file.results[task.id] for task in all_tasks if task.id in file.results]
    summary(console, len(all_tasks), ours, new=new, seconds=seconds, commands=running.commands, pool=stats)


def _fail(message: str) -> NoReturn:
    print(f"batch: {message}", file=sys.stderr)
    raise typer.Exit(_USAGE)


def main() -> None:
    """Run the command with the process's arguments, and exit."""
    app(prog_name="python -m swerex_c.examples.batch")


if __name__ == "__main__":
    main()
