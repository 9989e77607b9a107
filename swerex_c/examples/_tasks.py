"""Tasks of a batch: what a line of the task file may hold, and the small tasks that are made up on request."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Annotated, Any, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from swerex_c.deployment.config import DaytonaDeploymentConfig, DeploymentConfig
from swerex_c.exceptions import InvalidInputError

__all__ = ["Step", "Task", "demo_tasks", "deployment_config", "read_tasks"]


class Step(BaseModel):
    """A command of the agent's. Any exit code will do: the next step is taken."""

    command: str
    timeout: float | None = None
    """Seconds; None is those of the task's `command_timeout`. One that takes longer is interrupted."""

    model_config = ConfigDict(extra="forbid")


def _as_step(value: Any) -> Any:
    return {"command": value} if isinstance(value, str) else value


class Task(BaseModel):
    """One line of the task file: what an agent has to do in an environment, and how it is known that it did.

    All commands run in one bash session that starts in an empty directory of the environment's own.
    """

    id: str = Field(min_length=1)
    upload: str | None = None
    """A directory of this machine, relative to the task file. Its copy in the environment is where the session goes."""

    setup: list[str] = []
    """Commands that prepare the environment. One that fails makes the task an error."""

    actions: list[Annotated[Step, BeforeValidator(_as_step)]] = []
    """What the agent does, if it is a script: texts, or objects with `command` and `timeout`."""

    agent: list[str] = []
    """What the agent does, if it is a program: see `swerex_c.examples._agent`."""

    check: str
    """The task is resolved if this exits with 0."""

    patch: str | None = None
    """A command whose standard output is kept as the task's patch, such as `git diff`: as it is if it is UTF-8, and
    other bytes as `\\xff`. It runs before the check, outside of the session, in the directory in which that began."""

    timeout: float = Field(default=1800.0, gt=0)
    """Seconds that the environment may be in use."""

    command_timeout: float = Field(default=120.0, gt=0)
    """Seconds for each command."""

    model_config = ConfigDict(extra="forbid")


def read_tasks(path: Path) -> list[Task]:
    """The tasks of a JSONL file.

    Raises:
        InvalidInputError: if a line is no task, or an id is there twice; with the line's number.
        OSError: if it cannot be read.
    """
    tasks: dict[str, Task] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
        if not line.strip():
            continue
        try:
            task = Task.model_validate_json(line)
        except ValidationError as error:
            raise InvalidInputError(f"{path}, line {number}: {_first(error)}") from None
        if task.id in tasks:
            raise InvalidInputError(f"{path}, line {number}: the id {task.id!r} is there twice")
        if task.upload is not None:
            task.upload = str((path.parent / task.upload).resolve())
        tasks[task.id] = task
    return list(tasks.values())


def deployment_config(text: str) -> DeploymentConfig:
    """The configuration of a deployment that a JSON object describes; its `type` says which.

    Raises:
        InvalidInputError: if it is none.
    """
    kinds: dict[str, Any] = {"daytona": DaytonaDeploymentConfig}
    for kind in get_args(DeploymentConfig):
        if "type" in kind.model_fields:
            kinds[kind.model_fields["type"].default] = kind
    try:
        data = json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"The deployment is no JSON: {error}") from None
    name = data.get("type") if isinstance(data, dict) else None
    if name not in kinds:
        raise InvalidInputError(f'The deployment needs a "type", one of: {", ".join(sorted(kinds))}')
    if name == "daytona":  # whose configuration has no type, as in SWE-ReX
        data = {key: value for key, value in data.items() if key != "type"}
    try:
        config: DeploymentConfig = kinds[name].model_validate(data)
    except ValidationError as error:
        raise InvalidInputError(f"The deployment of type {name}: {_first(error)}") from None
    return config


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]


# Tasks that are made up: a tiny repository with a failing test, and an agent that mends it

_BUGS = [
    ("total", "return sum(values[1:])", "return sum(values)", "total([1, 2, 3])", "6"),
    ("longest", "return min(words, key=len)", "return max(words, key=len)", 'longest(["a", "abc", "ab"])', '"abc"'),
    ("is_even", "return number % 2 == 1", "return number % 2 == 0", "is_even(4)", "True"),
    ("initials", "return name[0]", 'return "".join(w[0] for w in name.split())', 'initials("ada king")', '"ak"'),
    ("clamp", "return max(low, max(n, high))", "return max(low, min(n, high))", "clamp(7, low=0, high=5)", "5"),
]
_ARGUMENTS = {
    "total": "values",
    "longest": "words",
    "is_even": "number",
    "initials": "name",
    "clamp": "n, low, high",
}


def demo_tasks(count: int, *, seed: int = 0) -> list[Task]:
    """Tasks that are the same for the same numbers. In every tenth the agent's edit is wrong, so that its check fails.

    They need bash, git and python3 in the environment.
    """
    chance = random.Random(seed)
    return [_demo_task(number, chance) for number in range(1, count + 1)]


def _demo_task(number: int, chance: random.Random) -> Task:
    function, bug, mended, call, answer = chance.choice(_BUGS)
    module = f"{chance.choice(['util', 'core', 'tools', 'helpers'])}_{number}"
    head = f"def {function}({_ARGUMENTS[function]}):"
    doc = f'    """Part of exercise {number}."""'
    source = f"{head}\n{doc}\n    {bug}"
    test = (
        f"import unittest\n\nimport {module}\n\n\nclass Test{number}(unittest.TestCase):\n"
        f"    def test_{function}(self):\n        self.assertEqual({module}.{call}, {answer})"
    )
    new = "return None" if number % 10 == 0 else mended
    run_tests = "python3 -m unittest -q"
    return Task(
        id=f"demo-{number:05d}",
        setup=[
            f"cat > {module}.py <<'EOF'\n{source}\nEOF",
            f"cat > test_{module}.py <<'EOF'\n{test}\nEOF",
            "git init -q . && git add -A && git -c user.name=demo -c user.email=demo@example.org commit -q -m first",
        ],
        actions=[
            Step(command="ls"),
            Step(command=f"cat {module}.py"),
            Step(command=run_tests),
            Step(command=f"grep -n {function} test_{module}.py"),
            Step(command=f"cat > {module}.py <<'EOF'\n{head}\n{doc}\n    {new}\nEOF"),
            Step(command=run_tests),
        ],
        check=run_tests,
        patch="git diff",
        timeout=300,
    )
