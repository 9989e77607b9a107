"""Tasks of a batch: the format of a line of the task file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from swerex_c.deployment.config import first_problem
from swerex_c.exceptions import InvalidInputError

__all__ = ["Step", "Task", "read_tasks"]


class Step(BaseModel):
    """Command of the agent. The next step follows whatever its exit code is."""

    command: str
    timeout: float | None = None
    """Seconds until the command is interrupted; None means the task's `command_timeout`."""

    model_config = ConfigDict(extra="forbid")


ScriptedStep = Annotated[Step, BeforeValidator(lambda step: {"command": step} if isinstance(step, str) else step)]
"""Step of an agent that is a script: an object, or only its command."""


class Task(BaseModel):
    """One line of the task file: an agent's work, and the check of its result.

    All commands run in one bash session, which starts in a new empty directory of the environment.
    """

    id: str = Field(min_length=1)
    upload: str | None = None
    """Directory of this machine, relative to the task file. The session starts in its copy in the environment."""

    setup: list[str] = []
    """Commands that prepare the environment. A command that fails makes the task an error."""

    actions: list[ScriptedStep] = []
    """Steps of an agent that is a script: strings, or objects with `command` and `timeout`."""

    agent: list[str] = []
    """Program and arguments of an agent that is a program: see `swerex_c.examples._agent`."""

    check: str
    """Command that exits with 0 if the task is resolved."""

    patch: str | None = None
    """Command whose standard output is kept as the task's patch, such as `git diff`; bytes that are not UTF-8 are
    escaped as `\\xff`. It runs before the check, outside of the session, in the session's first directory."""

    timeout: float = Field(default=1800.0, gt=0)
    """Maximum seconds that the environment may be in use."""

    command_timeout: float = Field(default=120.0, gt=0)
    """Maximum seconds for each command."""

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
