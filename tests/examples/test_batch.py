"""The example that runs a batch of tasks over a pool: its tasks, its results, its ends, and going on after them."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swerex_c.deployment.config import LocalDeploymentConfig
from swerex_c.deployment.local import LocalDeployment
from swerex_c.examples.batch import run_batch
from swerex_c.examples.tasks import Result, Task, open_results, read_tasks
from swerex_c.exceptions import InvalidInputError, MemoryLimitError, SandboxLostError, TimeLimitError
from swerex_c.pool import Pool
from swerex_c.runtime.abstract import Command, CommandResponse
from tests.support.cli import start
from tests.support.original import our_environment
from tests.support.processes import command_line, ran
from tests.support.wait import until

pytestmark = pytest.mark.slow

BATCH = [sys.executable, "-m", "swerex_c.examples.batch"]


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the tasks' directories are made, to see whether they are removed."""
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setenv("TMPDIR", str(directory))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return directory


def batch(*arguments: object) -> tuple[int, str, str]:
    done = ran(*BATCH, *map(str, arguments), env=our_environment())
    return done.returncode, done.stdout, done.stderr


def records(path: Path) -> list[Result]:
    return [Result.model_validate_json(line) for line in path.read_bytes().split(b"\n")[:-1]]


def write(path: Path, *tasks: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return path


def test_the_demo_from_nothing_to_its_table(tmp_path: Path, temporary: Path) -> None:
    out = tmp_path / "out.jsonl"
    code, shown, errors = batch("--demo", 10, "--pool", 4, "--results", out)
    assert (code, errors) == (0, "")
    found = {result.id: result for result in records(out)}
    assert len(found) == len(records(out)) == 10
    assert [id for id, result in found.items() if result.outcome != "resolved"] == ["demo-00010"]
    assert found["demo-00010"].outcome == "failed" and found["demo-00010"].check_exit_code == 1
    for result in found.values():
        assert result.patch.startswith("diff --git a/") and "\r" not in result.patch and result.patch.count("\n-") == 2
        assert (result.attempts, result.error) == (1, "") and result.seconds > 0
    assert shown.endswith("\n9 resolved, 1 failed, 0 at a limit, 0 errors\n")
    assert list(temporary.iterdir()) == []


def test_files_go_up(tmp_path: Path) -> None:
    (tmp_path / "project/data").mkdir(parents=True)
    (tmp_path / "project/data/value").write_text("wrong\n")
    common = {"upload": "project", "check": "grep -q mine value", "patch": "cat data/value"}
    tasks = write(
        tmp_path / "tasks.jsonl",
        {"id": "mine", **common, "actions": ["(a", "false", "echo mine > data/value; cd data"]},
        {"id": "other", **common, "actions": ["cd data"]},
    )
    out = tmp_path / "out.jsonl"
    assert batch(tasks, "--results", out)[0] == 0
    found = {result.id: (result.outcome, result.patch) for result in records(out)}
    assert found == {"mine": ("resolved", "mine\n"), "other": ("failed", "wrong\n")}
    assert (tmp_path / "project/data/value").read_text() == "wrong\n"


def test_errors_by_kind_and_retrying_them(tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    tasks = write(
        tmp_path / "tasks.jsonl",
        {"id": "setup", "setup": [f"test -e {flag}"], "check": "true"},
        {"id": "slow", "actions": ["sleep 60"], "check": "true", "timeout": 0.5},
        {"id": "good", "actions": ["sleep 60"], "check": "true", "command_timeout": 3},
        {"id": "bad", "check": "false"},
        {"id": "ends", "actions": ["exit 3"], "check": "true"},
    )
    out = tmp_path / "out.jsonl"
    code, shown, _ = batch(tasks, "--results", out)
    found = {result.id: result for result in records(out)}
    assert code == 1
    assert {id: (result.outcome, result.error) for id, result in found.items()} == {
        "setup": ("error", "SetupFailedError"),
        "slow": ("limit", "TimeLimitError"),
        "good": ("resolved", ""),
        "bad": ("failed", ""),
        "ends": ("error", "SessionDiedError"),
    }
    assert found["slow"].attempts == 1
    flag.touch()
    code, shown, _ = batch(tasks, "--results", out, "--retry-errors")
    assert code == 1 and "2 of 5 tasks have a result already" in shown
    assert len(records(out)) == 8 and {result.id: result for result in records(out)}["setup"].outcome == "resolved"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_it_and_it_goes_on_where_it_was(
    tmp_path: Path, temporary: Path, number: signal.Signals, code: int
) -> None:
    out, go = tmp_path / "out.jsonl", tmp_path / "go"
    wait = f"echo $$ >> {tmp_path}/pids; test -e {go} || sleep 1000"
    tasks = write(
        tmp_path / "tasks.jsonl",
        *({"id": f"quick-{i}", "check": "true"} for i in range(3)),
        *({"id": f"waits-{i}", "actions": [wait], "check": "true"} for i in range(3)),
    )
    process = start(str(tasks), "--results", str(out), "--pool", "3", command=BATCH)
    pids = tmp_path / "pids"
    until(lambda: pids.exists() and len(pids.read_text().split()) == 3 and len(records(out)) == 3)
    process.send_signal(number)
    shown, errors = process.communicate(timeout=30)
    assert process.returncode == code and "goes on from here" in shown and "Traceback" not in errors
    for pid in pids.read_text().split():
        until(lambda pid=pid: not command_line(pid))
    go.touch()
    assert batch(tasks, "--results", out, "--pool", 3)[0] == 0
    assert sorted(result.id for result in records(out)) == sorted(
        [f"quick-{i}" for i in range(3)] + [f"waits-{i}" for i in range(3)]
    )


# An environment that is lost


async def done_by(make: Callable[[], LocalDeployment], tasks: list[Task], out: Path) -> tuple[list[Result], int]:
    """Return the results of a batch on a single environment at a time, and how many of them were replaced."""
    finished: list[Result] = []
    with open_results(out) as file:
        async with Pool(make, 1) as pool:
            await run_batch(tasks, pool, file, finished=finished.append)
            return finished, pool.stats().counts["replaced"]


@pytest.mark.parametrize(
    ("losses", "told"),
    [
        ([SandboxLostError], ("resolved", "", 2)),
        ([SandboxLostError] * 9, ("error", "SandboxLostError", 3)),
        ([TimeLimitError], ("limit", "TimeLimitError", 1)),
        ([MemoryLimitError], ("limit", "MemoryLimitError", 1)),
    ],
)
async def test_a_lost_environment_repeats_the_whole_task_and_a_limit_is_a_result(
    tmp_path: Path, losses: list[type[SandboxLostError]], told: tuple[str, str, int]
) -> None:
    """A limit would be reached at each attempt."""
    left = [*losses]

    class Mortal(LocalDeployment):
        async def start(self, *args: Any, **kwargs: Any) -> None:
            await super().start()
            execute = self.runtime.execute

            async def until_lost(command: Command) -> CommandResponse:
                if left and command.command == "echo patch":
                    raise left.pop()("the environment has ended")
                return await execute(command)

            self.runtime.execute = until_lost  # type: ignore[method-assign]

    log = tmp_path / "log"
    setup, actions = [f"echo setup >> {log}"], [f"echo act >> {log}"]
    tasks = [Task(id="a", setup=setup, actions=actions, patch="echo patch", check="true")]
    (result,), replaced = await done_by(Mortal, tasks, tmp_path / "out.jsonl")
    assert (result.outcome, result.error, result.attempts) == told
    assert replaced == len(losses) - len(left) and log.read_text().split() == ["setup", "act"] * result.attempts
    assert ("the environment has ended" in result.message) == (told[0] != "resolved")
    assert len(records(tmp_path / "out.jsonl")) == 1


async def test_a_result_that_cannot_be_written_ends_the_batch(tmp_path: Path) -> None:
    with open_results(tmp_path / "out.jsonl") as file:
        file._file.close()
        file._file = open("/dev/full", "wb", buffering=0)
        async with Pool(LocalDeploymentConfig(), 2) as pool:
            with pytest.raises(OSError):
                tasks = [Task(id=str(i), check="true") for i in range(20)]
                await run_batch(tasks, pool, file, finished=lambda result: None)
    assert (tmp_path / "out.jsonl").read_text() == ""


async def test_what_is_no_text_is_written_all_the_same(tmp_path: Path) -> None:
    """As the names of files in an error's message, which may be any bytes."""

    class Odd(LocalDeployment):
        async def start(self, *args: Any, **kwargs: Any) -> None:
            raise InvalidInputError("the file \udcff")

    await done_by(Odd, [Task(id=id, check="true") for id in "ab"], tmp_path / "out.jsonl")
    assert [result.id for result in records(tmp_path / "out.jsonl")] == ["a", "b"]
    assert "the file \\udcff" in records(tmp_path / "out.jsonl")[0].message


# The files


def test_a_result_file_is_one_processes_and_names_a_line_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with open_results(path) as file:
        file.add(Result(id="a\n\u2028b", outcome="failed"))
        file.add(Result(id="c", outcome="resolved"))
        with pytest.raises(InvalidInputError, match="Another process"), open_results(path):
            pass
    for cut in range(len(path.read_bytes())):
        torn = tmp_path / f"torn-{cut}"
        torn.write_bytes(path.read_bytes()[:cut])
        with open_results(torn) as file:
            assert list(file.results) == ["a\n\u2028b", "c"][: torn.read_bytes().count(b"\n")]
            file.add(Result(id="new", outcome="resolved"))
        assert records(torn)[-1].id == "new"
    path.write_bytes(b"{}\n" + path.read_bytes())
    with pytest.raises(InvalidInputError, match="line 1"), open_results(path):
        pass


def test_what_is_wrong_with_a_task_file_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    for text, what in {
        '{"id": "a", "check": "true"}\n\n{"id": "a", "check": "x"}': "line 3: the id 'a' is there twice",
        '{"id": "a"}': "line 1: check: Field required",
        '{"id": "a", "check": "x", "cheque": 1}': "line 1: cheque",
        "not json": "line 1",
    }.items():
        path.write_text(text)
        with pytest.raises(InvalidInputError, match=what):
            read_tasks(path)


def test_a_line_of_a_task_file_ends_where_jsons_do(tmp_path: Path) -> None:
    """Texts of tasks may hold what else Unicode calls the end of a line."""
    path = tmp_path / "tasks.jsonl"
    check = "echo \u2028 \u2029 \x85"
    path.write_bytes(f'{{"id": "a", "check": "{check}"}}\r\n{{"id": "b", "check": "true"}}'.encode())
    assert [(task.id, task.check) for task in read_tasks(path)] == [("a", check), ("b", "true")]


def test_wrong_arguments_are_told_in_a_line(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    demo = ["--demo", 1]
    for arguments in ([], ["no-such-file"], [*demo, "--deployment", "{}"], [*demo, "--results", "/dev/full"]):
        code, _, errors = batch("--results", out, *arguments)
        assert code == 2 and len(errors.splitlines()) == 1 and errors.startswith("batch: ")
