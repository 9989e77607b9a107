"""What the runner of .ci/run says of steps and tests that pass, fail, fail once, crash, hang, or leave a daemon."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow

PLAN = """
from dataclasses import dataclass, field
PYTEST = "{python} -m pytest -q -p no:cacheprovider -p tests.support.results"
GATE_SECONDS, RERUN_SECONDS = 100, 30

@dataclass(frozen=True)
class Step:
    name: str
    command: str
    limit: int = 60
    needs: tuple = ()
    rerun: str = ""
    alone: bool = False
    environment: dict = field(default_factory=dict)

def tests(name, limit=60):
    return Step(name, f"{{PYTEST}} test_{{name}}.py", limit, rerun=PYTEST)

GATE = [{steps}]
FULL, FULL_SECONDS = [], 0
"""


def begin(place: Path, steps: str, *names: str) -> subprocess.Popen[str]:
    """Start the gate with the steps of a toy plan."""
    for file in (".ci/steps.py", "tests/__init__.py", "tests/support/__init__.py", "tests/support/results.py"):
        (place / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, place / file)
    (place / ".ci" / "plan.py").write_text(PLAN.format(python=sys.executable, steps=steps))
    command = [sys.executable, ".ci/steps.py", "gate", *names]
    outer = ("PYTEST_CURRENT_TEST", "CI_RESULTS")  # of this test itself
    environment = {name: value for name, value in os.environ.items() if name not in outer}
    out = subprocess.PIPE
    return subprocess.Popen(command, cwd=place, env=environment, stdout=out, stderr=subprocess.STDOUT, text=True)


def gate(place: Path, steps: str, *names: str) -> tuple[int, str]:
    """Run the steps of a toy plan; return the exit status and what is printed."""
    with begin(place, steps, *names) as process:
        said, _ = process.communicate(timeout=110)
    return process.returncode, said


def toy(place: Path, name: str, *lines: str) -> None:
    (place / f"test_{name}.py").write_text("import os, pathlib, subprocess, time\n" + "\n".join(lines) + "\n")


def test_all_pass(tmp_path: Path) -> None:
    toy(tmp_path, "good", "def test_one(): pass", "def test_two(): pass")
    status, said = gate(tmp_path, "tests('good'), Step('shell', 'true', needs=('good',))")
    assert (status, said.splitlines()[-1]) == (0, "3 passed, 0 failed"), said


ONCE = ["    before = os.path.exists('ran')", "    pathlib.Path('ran').touch()"]
FAILURES: dict[str, tuple[list[str], int, list[str]]] = {
    "its lines": (
        ["def test_it():", "    print('a last word')", "    assert 6 * 9 == 42"],
        1,
        ["FAILED (assertion) toy: ", "assert (6 * 9) == 42", "a last word", "NOT RUN: after", "\n0 passed, 2 failed"],
    ),
    "only once": (
        ["def test_it():", *ONCE, "    assert before", "def test_other(): pass"],
        0,
        ["FLAKY (assertion) toy: ", "1 flaky", "\n1 passed, 0 failed"],
    ),
    "the second run is only skipped": (
        ["def test_it():", *ONCE, "    if before: pytest.skip('again')", "    assert 0", "def test_other(): pass"],
        1,
        ["FAILED (assertion) toy: "],
    ),
    "a wrong answer, which is right later, and another": (
        ["def test_it():", *ONCE, "    if not before: raise WrongAnswer('42')", "def test_bad(): assert 0"],
        1,
        ["== WRONG ANSWERS", "FLAKY (answer) toy: ", "== FAILED"],
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_told(tmp_path: Path, name: str) -> None:
    lines, expected, says = FAILURES[name]
    toy(tmp_path, "toy", "import pytest", "from tests.support.results import WrongAnswer", *lines)
    after = ", Step('after', 'true', needs=('toy',))" if "NOT RUN: after" in says else ""
    status, said = gate(tmp_path, f"tests('toy'){after}")
    assert status == expected, said
    for words in says:
        assert words.replace("toy: ", "toy: test_toy.py::test_it") in said, said
    assert said.find("== WRONG ANSWERS") <= said.find("== FAILED"), said  # also where there is none


@pytest.mark.parametrize("workers", ["", " -n 2"])
def test_a_crash_is_not_tried_again(tmp_path: Path, workers: str) -> None:
    toy(tmp_path, "crash", "def test_it():", *ONCE, "    if not before: os.abort()", "def test_other(): pass")
    step = f"Step('crash', PYTEST + '{workers} test_crash.py', rerun=PYTEST)"
    status, said = gate(tmp_path, step)
    assert status == 1 and "FAILED (crash) crash: " in said and "test_it" in said, said


def test_what_hangs_is_ended_and_named(tmp_path: Path) -> None:
    toy(tmp_path, "hang", "def test_it(): time.sleep(1000)")
    status, said = gate(tmp_path, "tests('hang', limit=20)")
    assert status == 1 and "TIMEOUT" in said and "FAILED (timeout) hang: hang" in said, said
    assert "in test_it" in said, "faulthandler says where it was: " + said


def test_a_daemon_is_ended_with_its_step(tmp_path: Path) -> None:
    code = "import os, time; os.setsid(); print(os.getpid(), flush=True); time.sleep(1000)"
    start = f"subprocess.Popen(['{sys.executable}', '-c', {code!r}], stdout=subprocess.PIPE, text=True)"
    lines = [f"    daemon = {start}", "    pathlib.Path('pid').write_text(daemon.stdout.readline())"]
    toy(tmp_path, "daemon", "def test_it():", *lines)
    status, said = gate(tmp_path, "tests('daemon')")
    assert status == 0, said
    assert not Path("/proc", (tmp_path / "pid").read_text().strip()).exists()


def test_a_gate_that_is_killed_takes_its_steps_along(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pid")
    with begin(tmp_path, "Step('long', 'echo $$ > pid; exec sleep 1000')") as process:
        descriptor = os.pidfd_open(int((tmp_path / "pid").read_text()))
        process.kill()
    assert select.select([descriptor], [], [], 60)[0]
    os.close(descriptor)


def test_nothing_collected_is_a_failure(tmp_path: Path) -> None:
    toy(tmp_path, "empty")
    status, said = gate(tmp_path, "Step('empty', PYTEST + ' test_empty.py || true', rerun=PYTEST)")
    assert status == 1 and "it collected no test" in said, said


def test_a_step_brings_what_it_needs(tmp_path: Path) -> None:
    steps = "Step('a', 'touch a'), Step('b', 'cp a b', needs=('a',)), Step('c', 'rm b', needs=('b',)), Step('d', 'no')"
    status, said = gate(tmp_path, steps, "c")
    assert status == 0 and said.splitlines()[-1] == "3 passed, 0 failed", said


def test_an_unknown_step_is_named(tmp_path: Path) -> None:
    status, said = gate(tmp_path, "Step('shell', 'true')", "shel")
    assert status == 2 and "there is no step shel; there are shell" in said, said
