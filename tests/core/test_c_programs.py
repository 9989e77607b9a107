"""The tests of the core in C: each program of tests/c, plain and with sanitizers while each allocation fails once."""

from __future__ import annotations

import fcntl
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

C = Path(__file__).parents[1] / "c"
PROGRAMS = sorted(path.stem for path in C.glob("test_*.c"))
MODES = ("plain", "alloc")
SECONDS = 300


@pytest.fixture(scope="session")
def built() -> Path:
    """The directory of the programs, built once by the first worker that asks."""
    (C / "build").mkdir(exist_ok=True)
    with open(C / "build" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        command = ["make", "-C", str(C), f"-j{os.cpu_count()}", *(f"build-{mode}" for mode in MODES)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout[-4000:]
    return C / "build"


@pytest.mark.timeout(900)  # it may have to build
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_program(built: Path, name: str, mode: str) -> None:
    # Its orphans are thousands, and this worker, which adopts orphans, does not reap them; what supervises a step does.
    script = f"make -s -C {shlex.quote(str(C))} run-{mode}-{name} TEST_SECONDS={SECONDS}"
    command = [sys.executable, str(C.parents[1] / ".ci" / "steps.py"), "supervise", str(2 * SECONDS), script]
    done = subprocess.run(command, cwd=C.parents[1], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0 and " passed, 0 failed" in done.stdout, done.stdout[-4000:]
