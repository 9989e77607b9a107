"""`swerex-c bench`: its answers are checked, its budget is kept, and it leaves nothing behind."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from swerex_c.bench import summary
from swerex_c.bench.engine import Answer, Engine
from swerex_c.bench.machine import _remove_abandoned
from swerex_c.bench.make import make
from swerex_c.bench.operations import Operations
from swerex_c.bench.process import NO_TIME
from swerex_c.bench.rows import ORIGINAL, OURS, PLACE, PROGRAMS, PTY, ROWS, WARM, chosen
from swerex_c.bench.run import BOOT, Found, MissingError, Setting, measure
from swerex_c.cli.main import app
from tests.support.cli import COMMAND, cli
from tests.support.original import our_environment
from tests.support.processes import Family
from tests.support.wait import until

LOCAL = {"deployment": {"type": "local"}}
ENGINES = {"ours": LOCAL, "pty": {}, "programs": {}}
PACKAGE = Path(summary.__file__).parent.parent


@pytest.fixture(autouse=True)
def some_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Shells that are started in this process read no startup files of the user's."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("PROMPT_COMMAND", "PS1", "BASH_ENV", "ENV"):
        monkeypatch.delenv(name, raising=False)


def with_engine(kind: str, use: Callable[[Operations], Awaitable[Any]]) -> Any:
    async def work() -> Any:
        operations = make(kind, ENGINES[kind])
        await operations.engine.start()
        try:
            return await use(operations)
        finally:
            await operations.engine.end()

    return asyncio.run(work())


def numbered(path: Path) -> str:
    path.write_text("".join(f"{i:07d}\n" for i in range(25_000)))
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ENGINES)
def test_the_operations_of_each_engine_give_times_of_right_answers(kind: str, tmp_path: Path) -> None:
    file = numbered(tmp_path / "file")
    requests: dict[str, dict[str, Any]] = {
        "command": {"text": "true"},
        "output": {"path": file},
        "fleet": {"sessions": 3},
    }
    if kind != "programs":
        requests |= {"create": {}, "interrupt": {}}
    if kind != "pty":
        requests |= {"execute": {}}

    async def work(operations: Operations) -> None:
        for name, request in requests.items():
            found = await getattr(operations, name)(seconds=0.01, **request)
            assert found["wrong"] == 0 and found["count"] > 0, name
            if name == "fleet":
                assert found["count"] >= 3 and found["per_second"] > 0
            assert len(found["samples_us"]) == found["count"] and min(found["samples_us"]) > 0

    with_engine(kind, work)


async def test_rests_are_not_part_of_what_is_timed() -> None:
    operations = make("pty", {})
    await operations.engine.start()
    try:
        found = await operations.create(seconds=0, rest=0.3)
    finally:
        await operations.engine.end()
    assert (
        found["seconds"] >= 0.3
        and len(found["samples_us"]) == 1
        and found["samples_us"][0] < found["seconds"] * 1e6 - 3e5
    )


@pytest.mark.parametrize("kind", ENGINES)
def test_wrong_answers_are_counted_and_have_no_time(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Every bash finds this function in its environment.
    monkeypatch.setenv("BASH_FUNC_true%%", "() { builtin echo surprise; }")

    async def work(operations: Operations) -> None:
        found: dict[str, Any] = await operations.command("true", seconds=0.01)
        assert found["wrong"] == found["count"] > 0 and found["samples_us"] == []
        found = await operations.fleet(2, seconds=0.01)
        assert found["wrong"] == found["count"] >= 2

    with_engine(kind, work)


def test_output_has_to_be_the_file(tmp_path: Path) -> None:
    file, other = numbered(tmp_path / "file"), tmp_path / "other"
    text = Path(file).read_text()
    other.write_text(text[8:] + text[:8])  # as long, and with the same lines

    async def work(operations: Operations) -> None:
        operations.placed[file] = str(other)
        found: dict[str, Any] = await operations.output(file, seconds=0)
        assert (found["wrong"], found["samples_us"]) == (1, [])

    with_engine("programs", work)


class Late(Engine):
    """Answers with what was asked before."""

    last: Answer = ("", 0)

    async def open(self, key: str) -> None:
        pass

    async def run(self, key: str, text: str) -> Answer:
        answer, self.last = self.last, ("" if text == "true" else text.removeprefix("echo ") + "\n", 0)
        return answer


async def test_an_engine_that_is_one_answer_behind_is_seen() -> None:
    found: dict[str, Any] = await Operations(Late()).command("true", seconds=0.01)
    assert found["wrong"] > 0


def run(seconds: float, rows: list[str], engines: list[str], **more: Any) -> tuple[Found, dict[str, Any]]:
    """A run that is long enough for all of them, however busy the machine is."""
    for longer in (1, 4, 12):
        setting = Setting(seconds * longer, **more)
        found = measure(setting, chosen(rows, engines))
        if not found.absent and not any(row.errors.keys() - row.wrong.keys() for row in found.rows):
            break
    return found, summary.as_data(found, setting)


def test_a_run_gives_lines_ratios_and_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    found, data = run(0.8, ["builtin"], [PTY, PROGRAMS])
    assert data["ok"] and not data["absent"] and summary.is_good(found)
    lines = data["rows"]["builtin"]["lines"]
    assert set(lines) == {PTY, PROGRAMS}
    for line in lines.values():
        assert 0 < line["p50_us"] <= line["p99_us"] and line["cpu_self_us"] > 0 and line["cpu_children_us"] > 0
    assert lines[PROGRAMS]["ratio"] > 1 and "ratio" not in lines[PTY]
    assert set(lines[PTY]["rounds"].values()) == {1.0}
    assert json.loads(json.dumps(data)) == data
    summary.print_tables(found, Setting(0.8))
    said = capsys.readouterr().out
    assert "raw pty (limit)" in said and "subprocess.run" in said and "WRONG" not in said


def test_a_wrong_answer_has_no_time_in_the_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BASH_FUNC_true%%", "() { builtin echo surprise; }")
    found, data = run(0.6, ["builtin"], [PROGRAMS])
    assert not data["ok"] and not summary.is_good(found)
    line = data["rows"]["builtin"]["lines"][PROGRAMS]
    assert line["wrong"] > 0 and not set(line) & {"p50_us", "p99_us", "ratio", "cpu_self_us"}
    summary.print_tables(found, Setting(0.6))
    assert " WRONG" in capsys.readouterr().out


def test_an_engine_that_is_lost_on_the_way_is_not_called_missing(capsys: pytest.CaptureFixture[str]) -> None:
    rows = chosen(["builtin", "program"], [OURS, PTY, ORIGINAL])
    turn = {"round": 0, "count": 1, "wrong": 0, "samples_us": [10.0], "cpu_self_us": 1.0, "cpu_children_us": 1.0}
    for row in rows:
        row.results, row.errors = {PTY: [turn]}, {ORIGINAL: "no module"}
    rows[0].results[OURS], rows[1].errors[OURS] = [turn], NO_TIME
    found = Found(rows)
    found.absent = {OURS: "it gave no answer in 9 s", ORIGINAL: "no module"}
    summary.print_tables(found, Setting(0.6))
    printed = capsys.readouterr().out
    assert f"{OURS} not to the end: it gave no answer in 9 s" in printed and f"Without {OURS}" not in printed
    assert f"Without {ORIGINAL}: no module" in printed
    assert re.search(f"^  {OURS} +{NO_TIME}$", printed, re.MULTILINE) and printed.count("no module") == 1


def test_a_run_in_which_nothing_of_ours_was_measured_is_not_good() -> None:
    turn = {"round": 0, "count": 1, "wrong": 0, "samples_us": [1.0], "cpu_self_us": 1.0, "cpu_children_us": 1.0}
    found = Found(chosen(["builtin"], [OURS, PTY]))
    (row,) = found.rows
    row.results[PTY] = [turn]
    assert not summary.is_good(found)
    row.results[OURS] = [turn]
    assert summary.is_good(found)
    row.errors[OURS] = "its process ended with 1"
    assert not summary.is_good(found)


def test_what_a_killed_run_left_is_removed_and_what_another_uses_is_not(tmp_path: Path) -> None:
    left, used, new = (tmp_path / f"swerex-c-bench-{name}" for name in ("left", "used", "new"))
    for path in (left, used, new):
        path.mkdir()
        (path / "lock").touch()
        if path is not new:
            os.utime(path, (1, 1))
    with open(used / "lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _remove_abandoned(tmp_path)
    assert [path.exists() for path in (left, used, new)] == [False, True, True]


def other_python(path: Path, swerex: str | None) -> str:
    """An interpreter that has nothing but a package `swerex` with this runtime; without one, a program that hangs."""
    script = path / "python"
    if swerex is None:
        script.write_text("#!/bin/sh\nexec sleep 100\n")
    else:
        (path / "swerex" / "runtime").mkdir(parents=True)
        (path / "swerex" / "__init__.py").write_text('__version__ = "9.9"\n')
        (path / "swerex" / "exceptions.py").write_text("class CommandTimeoutError(Exception): pass\n")
        (path / "swerex" / "runtime" / "abstract.py").write_text(
            "from types import SimpleNamespace as Command\n"
            "BashAction = BashInterruptAction = CreateBashSessionRequest = CloseBashSessionRequest = Command\n"
        )
        (path / "swerex" / "runtime" / "local.py").write_text(
            "import time\nfrom types import SimpleNamespace as Answer\n"
            "class LocalRuntime:\n    async def close(self): pass\n"
            f"    async def create_session(self, request): pass\n{swerex}"
        )
        script.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {sys.executable} -S "$@"\n')
    script.chmod(0o755)
    return str(script)


ANSWERS = """\
    async def run_in_session(self, action):
        word, _, rest = action.command.partition(" ")
        return Answer(output=rest + chr(10) if word == "echo" else "", exit_code=0)
"""
LIES = ANSWERS.replace('else ""', 'else "surprise"')
HANGS = "    async def run_in_session(self, action): time.sleep(100)\n"


@pytest.mark.slow
@pytest.mark.parametrize("lies", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_the_original_is_found_by_its_interpreter_and_its_answers_count(tmp_path: Path, lies: bool) -> None:
    python = other_python(tmp_path, LIES if lies else ANSWERS)
    found, data = run(1.0, ["builtin"], [PROGRAMS, ORIGINAL], original_python=python)
    assert data["machine"]["original"] == "9.9"
    lines = data["rows"]["builtin"]["lines"]
    assert (lines[ORIGINAL]["wrong"] > 0) == lies == ("p50_us" not in lines[ORIGINAL])
    assert lines[PROGRAMS]["wrong"] == 0
    assert summary.is_good(found) == (not lies)


@pytest.mark.parametrize("kind", [None, HANGS], ids=["does not start", "does not answer"])
def test_the_budget_is_kept_whoever_hangs(tmp_path: Path, family: Family, kind: str | None) -> None:
    python = other_python(tmp_path, kind)
    for seconds in (0.8, 4.0, 12.0):  # so long that the others have a turn, however busy the machine is
        began = time.monotonic()
        subprocess.run([sys.executable, "-S", "-c", "pass"], check=True)
        slow = time.monotonic() - began  # a part that no budget can bound
        setting = Setting(seconds, original_python=python)
        found = measure(setting, chosen(["builtin"], [PROGRAMS, ORIGINAL]))
        assert time.monotonic() - began < seconds * 1.5 + 2 + 3 * slow
        lines = summary.as_data(found, setting)["rows"]["builtin"]["lines"]
        assert "error" in lines[ORIGINAL]
        if "error" not in lines[PROGRAMS]:
            break
    assert lines[PROGRAMS]["count"] > 0
    assert summary.is_good(found)  # nothing answered wrong, and it is not ours
    assert not family.left()


def test_what_is_needed_and_missing_is_said_at_once(tmp_path: Path) -> None:
    setting = Setting(60, original_python=str(tmp_path / "none"), needed=(ORIGINAL,))
    with pytest.raises(MissingError, match="No such file") as caught:
        measure(setting, chosen(["builtin"], [PTY, ORIGINAL]))
    assert caught.value.engine == ORIGINAL


def test_the_swap_is_not_taken_for_the_original(tmp_path: Path) -> None:
    """Where `import swerex` gives this package, there is no original to measure."""
    python = tmp_path / "python"
    code = "import sys; sys.path.insert(0, sys.argv[1] + '/..'); from swerex_c._alias import add_finder; add_finder()"
    python.write_text(f'#!/bin/sh\nshift\ncode=$1\nshift\nexec {sys.executable} -c "{code}\n$code" "$@"\n')
    python.chmod(0o755)
    with pytest.raises(MissingError, match="gives this package"):
        measure(Setting(20, original_python=str(python), needed=(ORIGINAL,)), chosen(["builtin"], [ORIGINAL]))


def test_an_interpreter_without_any_package_can_be_a_worker(tmp_path: Path) -> None:
    """As that of the original is, which need not have what this package requires, nor be of a version it supports."""
    command = [sys.executable, "-I", "-S", "-c", BOOT, str(PACKAGE)]
    for kind in ("pty", "programs"):
        asks = [{"kind": kind, "options": {}}, {"operation": "command", "text": "true", "seconds": 0.01}]
        lines = "".join(json.dumps(it) + "\n" for it in asks)
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
            assert worker.stdin is not None and worker.stdout is not None
            worker.stdin.write(lines)
            worker.stdin.flush()
            assert json.loads(worker.stdout.readline())["ready"] == ""
            assert json.loads(worker.stdout.readline())["wrong"] == 0


def test_every_row_has_ours_and_its_limit() -> None:
    rows = chosen([], [OURS, PTY, PROGRAMS, ORIGINAL, PLACE])
    assert [row.key for row in rows] == list(ROWS)
    for row in rows:
        names = [turn.engine for turn in row.turns]
        assert {OURS, PLACE, row.baseline} <= set(names)
    said = CliRunner().invoke(app, ["bench", "--help"], env={"COLUMNS": "200"}).output
    assert all(name in said for name in ROWS)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--only", "nothing"], "no row nothing"),
        (["--port", "8000"], "SWEREX_AUTH_TOKEN"),
        (["--image", "x", "--port", "8000"], "not several"),
        (["--deployment", "{}"], '"type"'),
        (["--original-python", "/no/such/python"], "/no/such/python: No such file"),
        (["--json", "/no/such/directory/file"], "No such file"),
        (["--seconds", "0"], "--seconds"),
    ],
)
def test_wrong_use_ends_with_2(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["bench", *arguments], env={"SWEREX_AUTH_TOKEN": ""})
    assert done.exit_code == 2 and isinstance(done.exception, SystemExit)
    assert says in done.output


def home_of(pid: int) -> str:
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(it.removeprefix(b"HOME=").decode() for it in variables if it.startswith(b"HOME="))


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupted_run_leaves_nothing(family: Family, number: int) -> None:
    command = [*COMMAND, "bench", "--only", "interrupt"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=our_environment(), text=True) as process:
        until(lambda: any(it.startswith("sleep 100") for it in family.living().values()))
        homes = {home_of(pid) for pid, line in family.living().items() if "-i" in line.split()}
        process.send_signal(number)
        assert process.wait(60) == 128 + number
        assert process.stderr is not None and "Traceback" not in process.stderr.read()
    assert not family.left()
    assert homes and not any(os.path.exists(it) for it in homes)


@pytest.mark.slow
def test_a_run_that_is_killed_leaves_no_shells(family: Family) -> None:
    command = [*COMMAND, "bench", "--only", "fleet-16"]
    with subprocess.Popen(command, env=our_environment()) as process:
        until(lambda: sum("--noediting" in it for it in family.living().values()) >= 16)
        process.kill()
    assert not family.left()


@pytest.mark.slow
def test_the_command_measures_every_row(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    done = cli("bench", "--seconds", "15", "--json", str(file))
    assert done.returncode == 0, done.stderr
    data = json.loads(file.read_text())
    assert data["ok"] and data["run"]["took"] < 15 * 1.5 and set(data["rows"]) == set(ROWS)
    measured = 0
    for key, row in data["rows"].items():
        line, warm = row["lines"][OURS], row["lines"].get(WARM, {})
        assert row["title"] in done.stdout
        if line.get("error") == NO_TIME:
            continue  # a busy machine may have none for all of them in so few seconds
        measured += 1
        assert ("per_second" if key.startswith("fleet") else "p50_us") in line and not line["wrong"], key
        if "p50_us" in warm:
            assert warm["p50_us"] < line["p50_us"]
    assert measured >= 5


@pytest.mark.slow
def test_an_engine_that_was_too_slow_once_is_measured_in_the_next_rows(tmp_path: Path) -> None:
    """It hangs in the first row that asks it, and not after it was started again."""
    first = tmp_path / "first"
    hangs_once = ANSWERS.replace(
        "        word",
        f"        import os\n        if not os.path.exists({str(first)!r}):\n"
        f"            open({str(first)!r}, 'w').close()\n            time.sleep(100)\n        word",
    )
    python = other_python(tmp_path, hangs_once)
    for seconds in (1.5, 6.0, 20.0):
        first.unlink(missing_ok=True)
        setting = Setting(seconds, original_python=python)
        found = measure(setting, chosen(["builtin", "program"], [ORIGINAL]))
        lines = {key: row["lines"][ORIGINAL] for key, row in summary.as_data(found, setting)["rows"].items()}
        assert "error" in lines["builtin"] or "failed" in lines["builtin"]
        if "p50_us" in lines["program"]:
            break
    assert lines["program"]["p50_us"] > 0
