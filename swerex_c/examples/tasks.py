"""Files of a batch: its tasks, some for a demo, and their results."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_serializer

from swerex_c.deployment.config import first_problem
from swerex_c.exceptions import InvalidInputError

__all__ = ["Result", "ResultFile", "Task", "demo_tasks", "open_results", "read_tasks"]


class Task(BaseModel):
    """One line of the task file: an agent's work, and the check of its result.

    All commands run in one bash session, which starts in a new empty directory of the environment.
    """

    id: str = Field(min_length=1)
    upload: str | None = None
    """Directory of this machine, relative to the task file. The session starts in its copy in the environment."""

    setup: list[str] = []
    """Commands that prepare the environment. A command that fails makes the task an error."""

    actions: list[str] = []
    """Commands of the agent. The next one follows whatever the exit code is."""

    check: str
    """Command that exits with 0 if the task is resolved."""

    patch: str | None = None
    """Command whose standard output is kept as the task's patch, such as `git diff`; bytes that are not UTF-8 are
    escaped as `\\xff`. It runs before the check, outside of the session, in the session's first directory."""

    timeout: float = Field(default=1800.0, gt=0)
    """Maximum seconds that the environment may be in use."""

    command_timeout: float = Field(default=120.0, gt=0)
    """Maximum seconds for each command. An action that takes longer is interrupted."""

    model_config = ConfigDict(extra="forbid")


def read_tasks(path: Path) -> list[Task]:
    """Read the tasks of a JSONL file.

    Raises:
        InvalidInputError: if a line is not a task, or an id occurs twice; the message has the line number.
        OSError: if the file cannot be read.
    """
    tasks: dict[str, Task] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if not line.strip():
            continue
        try:
            task = Task.model_validate_json(line)
        except ValidationError as error:
            raise InvalidInputError(f"{path}, line {number}: {first_problem(error)}") from None
        if task.id in tasks:
            raise InvalidInputError(f"{path}, line {number}: the id {task.id!r} is there twice")
        if task.upload is not None:
            task.upload = str((path.parent / task.upload).resolve())
        tasks[task.id] = task
    return list(tasks.values())


def demo_tasks(count: int) -> list[Task]:
    """Return tasks that mend a bug in a tiny repository; in every tenth one the edit fails the check.

    They need bash, git and python3 in the environment.
    """
    return [_demo_task(number) for number in range(1, count + 1)]


def _demo_task(number: int) -> Task:
    mended = "None" if number % 10 == 0 else "sum(values)"
    source, test = f"total_{number}.py", f"test_total_{number}.py"
    run_tests = "python3 -m unittest -q"
    return Task(
        id=f"demo-{number:05d}",
        setup=[
            f"cat > {source} <<'EOF'\ndef total(values):\n    return sum(values[1:])\nEOF",
            f"cat > {test} <<'EOF'\n{_TEST.format(number=number)}EOF",
            "git init -q . && git add -A && git -c user.name=demo -c user.email=demo@example.org commit -q -m first",
        ],
        actions=["ls", f"cat {source}", run_tests, f"sed -i 's/return .*/return {mended}/' {source}", run_tests],
        check=run_tests,
        patch="git diff",
        timeout=300,
    )


_TEST = """\
import unittest

from total_{number} import total


class Test(unittest.TestCase):
    def test_total(self):
        self.assertEqual(total([1, 2, 3]), 6)
"""


# Results


class Result(BaseModel):
    """Result of a task."""

    id: str
    outcome: Literal["resolved", "failed", "limit", "error"]
    """Outcome of the check ("resolved" or "failed"); "limit" if the task reached a limit of time or memory, its own or
    that of its environment; "error" if it was not completed for another reason."""

    error: str = ""
    """Class name of the exception for the limit or the error."""

    message: str = ""
    attempts: int = 1
    """Number of attempts; more than 1 if the environment was lost, except by reaching a limit."""

    seconds: float = 0.0
    """Duration of the last attempt, from getting the environment to the end of the attempt."""

    patch: str = ""
    check_output: str = ""
    check_exit_code: int | None = None

    @field_serializer("error", "message", "patch", "check_output")
    def _as_text(self, value: str) -> str:
        """Escape characters that UTF-8 cannot encode, such as surrogates for the bytes of a file name."""
        return value.encode("utf-8", "backslashreplace").decode()


class ResultFile:
    """Append-only file of results, one JSON object a line.

    A record is on disk before its task counts as finished. If the process or the machine dies while it writes a record,
    the next run removes the incomplete record and does that task again.
    """

    def __init__(self, path: Path, file: FileIO):
        """Read the records of a file, and remove an incomplete last one. Raises as `open_results`."""
        self._file = file
        self.results: dict[str, Result] = {}
        file.seek(0)
        *lines, incomplete = file.readall().split(b"\n")
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    result = Result.model_validate_json(line)
                except ValidationError:
                    raise InvalidInputError(f"{path}, line {number}: this is no result of a task") from None
                self.results[result.id] = result
        if incomplete:
            file.truncate(file.tell() - len(incomplete))
            os.fsync(file)

    def add(self, result: Result) -> None:
        """Append a record and sync it to disk.

        Raises:
            OSError: if the record cannot be written; the file is then truncated to its former end if possible.
        """
        rest = memoryview(result.model_dump_json().encode() + b"\n")
        before = os.fstat(self._file.fileno()).st_size
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file)
        except OSError:
            self._file.truncate(before)
            raise
        self.results[result.id] = result


@contextlib.contextmanager
def open_results(path: Path) -> Iterator[ResultFile]:
    """Open or create a file of results, which one process at a time can do.

    Raises:
        InvalidInputError: if it is no regular file, another process has it open, or a complete line is not a record.
        OSError: if it cannot be opened.
    """
    with open(path, "a+b", buffering=0) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise InvalidInputError(f"{path} cannot keep results, because it is no regular file: name another")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidInputError(f"Another process writes {path}") from None
        yield ResultFile(path, file)
