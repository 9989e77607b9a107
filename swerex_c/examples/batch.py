"""Command that runs a batch of tasks on a pool of environments.

The tasks are in the style of SWE-bench, and any deployment provides the environments.

    python -m swerex_c.examples.batch TASKS.jsonl --results OUT.jsonl --pool 8 --deployment '{"type": "local"}'
    python -m swerex_c.examples.batch --demo 100 --results OUT.jsonl --pool 64 \\
        --deployment '{"type": "ray", "environment": {"type": "local"}}'

`swerex_c.examples._tasks.Task` describes a task; `--demo N` generates tasks. If you run the same command again, it
continues where the last run ended, for whatever reason: tasks with a result are not done again, except, with
`--retry-errors`, those that ended in an error or at a limit of time or memory.

Modules: `_tasks` reads tasks, `_demo` generates them, `_run` runs them, `_agent` talks to agent programs, `_results`
keeps the result file, `_show` prints.
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

from swerex_c.utils.child_signal import restore_child_signal

if TYPE_CHECKING:
    from swerex_c.examples._results import Result, ResultFile
    from swerex_c.examples._tasks import Task
    from swerex_c.pool.pool import Pool

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
    """Run a batch of tasks.

    The exit status is 1 if a task ended in an error, and 130 if the run was interrupted.
    """
    os.environ.setdefault("SWE_REX_LOG_STREAM_LEVEL", "ERROR")  # the modules imported below read it
    from swerex_c.deployment.config import config_from_json
    from swerex_c.examples._demo import demo_tasks
    from swerex_c.examples._results import ResultFile
    from swerex_c.examples._tasks import read_tasks
    from swerex_c.exceptions import InvalidInputError
    from swerex_c.pool.pool import Pool

    if (tasks is None) == (demo is None):
        _fail("Either a file of tasks or --demo N is needed")
    try:
        config = config_from_json(deployment)
        all_tasks = demo_tasks(demo) if demo is not None else read_tasks(tasks or Path())
        for task in all_tasks:
            if agent and not task.actions and not task.agent:
                task.agent = shlex.split(agent)
        file = ResultFile(results)
    except (InvalidInputError, OSError, ValueError) as error:
        _fail(str(error))
    again = ("error", "limit") if retry_errors else ()
    left = [it for it in all_tasks if it.id not in file.results or file.results[it.id].outcome in again]
    if len(left) < len(all_tasks):
        print(f"{len(all_tasks) - len(left)} of {len(all_tasks)} tasks have a result already", flush=True)
    with file:
        try:
            asyncio.run(_run(all_tasks, left, file, Pool(config, pool, starts_at_once=starts_at_once), attempts))
        except (KeyboardInterrupt, asyncio.CancelledError) as error:
            print("Interrupted. The same command again goes on from here.")
            raise typer.Exit(_INTERRUPTED if isinstance(error, KeyboardInterrupt) else _TERMINATED) from None
        except OSError as error:
            print(f"A result could not be written: {error}", file=sys.stderr)
            raise typer.Exit(_ERRORS) from None
        failed = any(file.results[task.id].outcome == "error" for task in all_tasks)
    raise typer.Exit(_ERRORS if failed else 0)


async def _run(all_tasks: list[Task], left: list[Task], file: ResultFile, pool: Pool, attempts: int) -> None:
    """Do the tasks that are left, print each result, and print all results at the end."""
    from swerex_c.examples._run import Batch
    from swerex_c.examples._show import print_result, print_summary

    me = asyncio.current_task()
    assert me is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, me.cancel)
    new: list[Result] = []

    def finished(result: Result) -> None:
        new.append(result)
        print_result(result, len(all_tasks) - len(left) + len(new), len(all_tasks))

    begin = time.monotonic()
    async with pool:
        await Batch(left, pool, file, attempts=attempts, finished=finished).run()
        seconds, stats = time.monotonic() - begin, pool.stats()
    results = [file.results[task.id] for task in all_tasks]
    print_summary(len(all_tasks), results, new, seconds=seconds, pool=stats)


def _fail(message: str) -> NoReturn:
    print(f"batch: {message}", file=sys.stderr)
    raise typer.Exit(_USAGE)


def main() -> None:
    """Run the command with the arguments of the process, and exit."""
    restore_child_signal()
    app(prog_name="python -m swerex_c.examples.batch")


if __name__ == "__main__":
    main()
