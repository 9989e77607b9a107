"""`swerex-c bench`: its answers are checked, its budget is kept, and it leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import pty
import select
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from swerex_c.bench import report, rows
from swerex_c.bench.command import contenders
from swerex_c.bench.engines import Answer, BareTerminal, Engine, Subprocess
from swerex_c.bench.measure import NO_TIME, Contender, Row, Run, Turn
from swerex_c.bench.worker import Operations
from swerex_c.cli.main import app
from tests.support.cli import start
from tests.support.harness import write_script
from tests.support.processes import Family
from tests.support.wait import DEADLINE, until

pytestmark = pytest.mark.usefixtures("family")


def test_output_has_to_be_the_file(tmp_path: Path) -> None:
    file, other = tmp_path / "file", tmp_path / "other"
    text = "".join(f"{number:07d}\n" for number in range(25_000))
    file.write_text(text)
    other.write_text(text[8:] + text[:8])  # as long, and with the same lines

    operations = Operations(Subprocess())
    found = asyncio.run(operations.output(str(file), 1, 0))
    assert (found["wrong"], found["bytes"]) == (0, len(text))
    operations.uploaded[str(file)] = str(other)
    found = asyncio.run(operations.output(str(file), 1, 0))
    assert (found["wrong"], found["samples_us"]) == (1, [])


class Late(Engine):
    """Answers with what was asked before."""

    last: Answer = ("", 0)

    async def run(self, key: str, text: str) -> Answer:
        answer, self.last = self.last, ("" if text == "true" else text.removeprefix("echo ") + "\n", 0)
        return answer


def test_an_engine_that_is_one_answer_behind_is_seen() -> None:
    assert asyncio.run(Operations(Late()).command("true", 3, 0.01))["wrong"] > 0


def test_a_terminal_is_plain_however_early_bash_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bash restores the modes that it found when a signal has ended a command."""
    fork = pty.fork

    def behind_bash() -> tuple[int, int]:
        pid, fd = fork()
        if pid:
            select.select([fd], [], [], DEADLINE)
        return pid, fd

    monkeypatch.setattr(pty, "fork", behind_bash)

    async def interrupt() -> dict[str, Any]:
        operations = Operations(BareTerminal())
        await operations.engine.start()
        try:
            return await operations.interrupt(1, 0)
        finally:
            await operations.end()

    assert asyncio.run(interrupt())["wrong"] == 0


def some_rows(*keys: str) -> list[Row]:
    return [row for row in rows.all_rows() if row.key in keys]


def once(wanted: list[str], engines: list[Contender]) -> tuple[Run, dict[str, Any]]:
    found = Run(engines, 60, once=True)
    found.measure(some_rows(*wanted))
    return found, report.as_data(found)


def test_an_engine_that_cannot_start_is_told_without_a_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    contender = Contender(rows.OURS, "swerex_c.bench.engines:Ours", {"deployment": {"type": "docker", "image": "a b"}})
    found, _ = once(["true"], [contender])
    assert found.absent and "Traceback" not in capfd.readouterr().err


def test_every_row_of_the_command_is_answered() -> None:
    some = {rows.OURS, rows.LIMIT, rows.SUBPROCESS}
    found, data = once(
        [key for key in rows.KEYS if not key.endswith("-64")], [it for it in contenders(None) if it.name in some]
    )
    assert data["ok"] and not data["absent"], json.dumps(data["rows"])
    for key, row in data["rows"].items():
        assert {rows.OURS, row["baseline"]} <= set(row["lines"])
        for name, line in row["lines"].items():
            assert 0 < line["p50_us"] <= line["p99_us"], (key, name)
            assert ("ratio" in line) == (name != row["baseline"])
    said = "\n".join(report.lines(found))
    assert max(map(len, said.splitlines())) <= 80
    assert report.rate({"bytes": 1, "megabytes_per_second": 2345.6}) == "2,346 MB/s"
    assert "bare terminal (limit)" in said and "WRONG" not in said
    help_text = CliRunner().invoke(app, ["bench", "--help"], env={"COLUMNS": "200"}).output
    assert all(key in help_text for key in rows.KEYS)


def test_a_wrong_answer_has_no_time_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BASH_FUNC_true%%", "() { builtin echo surprise; }")
    found, data = once(["true"], [Contender(rows.SUBPROCESS, "swerex_c.bench.engines:Subprocess")])
    line = data["rows"]["true"]["lines"][rows.SUBPROCESS]
    assert not data["ok"] and line["wrong"] > 0 and not set(line) & {"p50_us", "p99_us", "ratio"}
    assert " WRONG answer" in "\n".join(report.lines(found))


def python_with(path: Path, name: str, code: str) -> str:
    """Return an interpreter that has nothing but a package with this code."""
    (path / name).mkdir()
    (path / name / "__init__.py").write_text(code)
    return write_script(path / "python", f'PYTHONPATH={path} exec {sys.executable} -S "$@"')


def test_the_budget_is_kept_though_an_engine_hangs(tmp_path: Path, family: Family) -> None:
    hangs = "import time\n__version__ = '9'\ndef spawn(*_, **__):\n    time.sleep(999)\n"
    python = python_with(tmp_path, "pexpect", hangs)
    some = [it for it in contenders(python) if it.name in (rows.SUBPROCESS, rows.TUNED)]
    found = Run(some, 2, rounds=1)
    found.measure(some_rows("true"))
    assert "error" in report.as_data(found)["rows"]["true"]["lines"][rows.TUNED]
    assert not family.left()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("import no_such_module", "No module named"),
        ("import sys\nsys.modules['swerex'] = __import__('json')", "gives this"),
    ],
    ids=["missing", "swapped"],
)
def test_an_engine_that_is_missing_is_told_and_the_rest_goes_on(tmp_path: Path, code: str, says: str) -> None:
    names = (rows.SUBPROCESS, rows.SWEREX)
    found, data = once(["true"], [it for it in contenders(python_with(tmp_path, "swerex", code)) if it.name in names])
    assert says in found.absent[rows.SWEREX]
    assert "error" in data["rows"]["true"]["lines"][rows.SWEREX]
    assert "p50_us" in data["rows"]["true"]["lines"][rows.SUBPROCESS]


def test_an_interpreter_without_any_package_can_be_a_worker(tmp_path: Path) -> None:
    """As that of the peers is, which need not have what this package requires."""
    python = python_with(tmp_path, "pexpect", "")
    _, data = once(["true"], [Contender(rows.LIMIT, "swerex_c.bench.engines:BareTerminal", python=python)])
    assert "p50_us" in data["rows"]["true"]["lines"][rows.LIMIT]


def test_a_run_in_which_nothing_of_ours_was_measured_is_not_good() -> None:
    result = {"round": 0, "count": 1, "wrong": 0, "samples_us": [1.0]}
    found = Run([], 1, rows=some_rows("true"))
    ours, limit = found.rows[0].turns = [Turn(rows.OURS), Turn(rows.LIMIT)]
    limit.results = [result]
    assert not report.is_good(found)
    ours.results = [result]
    ours.error = NO_TIME
    assert report.is_good(found)
    ours.error = "its process ended with 1"
    assert not report.is_good(found)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--only", "nothing"], "no row nothing"),
        (["--host", "http://127.0.0.1:8000"], "SWEREX_AUTH_TOKEN"),
        (["--image", "x", "--host", "y"], "not several"),
        (["--peers-python", "/no/such/python"], "/no/such/python"),
        (["--json", "/no/such/directory/file"], "No such file"),
        (["--seconds", "0"], "--seconds"),
    ],
)
def test_wrong_use_ends_with_2(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["bench", *arguments], env={"SWEREX_AUTH_TOKEN": ""})
    assert done.exit_code == 2 and isinstance(done.exception, SystemExit) and says in done.output


def test_an_interrupted_run_keeps_its_results(family: Family) -> None:
    some = [it for it in contenders(None) if it.name in (rows.LIMIT, rows.SUBPROCESS)]
    found = Run(some, 60, once=True)
    shown: list[str] = []

    def show(text: str) -> None:
        shown.append(text)
        if "/bin/true" in text:
            raise KeyboardInterrupt

    found.measure(some_rows(*rows.KEYS), show)
    data = report.as_data(found)["rows"]
    assert found.interrupted and shown
    assert all("p50_us" in line for line in data["true"]["lines"].values())
    assert all("error" in line for line in data["bin-true"]["lines"].values())
    assert not family.left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_ended_leaves_nothing(family: Family, number: int, tmp_path: Path) -> None:
    with start("bench", "--only", "true", "--seconds", "300", TMPDIR=str(tmp_path)) as process:
        until(lambda: any("--noediting" in it for it in family.living().values()))
        process.send_signal(number)
        err = process.communicate()[1]
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    assert "Traceback" not in err and not family.left()
