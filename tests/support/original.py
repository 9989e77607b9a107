"""The original SWE-ReX in an environment of its own, to compare with."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENTS = ["swe-rex==1.4.0", "aiohttp"]


def original_python() -> str:
    """The interpreter of an environment that has the original: SWX_ORIGINAL_PYTHON, or one made in .cache/."""
    if given := os.environ.get("SWX_ORIGINAL_PYTHON"):
        return given
    place = ROOT / ".cache" / "bench-original"
    python, ready = place / "bin" / "python", place / "ready"
    place.parent.mkdir(exist_ok=True)
    with open(place.parent / "bench-original.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not ready.exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
            done = subprocess.run([python, "-m", "pip", "install", "-q", *REQUIREMENTS], capture_output=True, text=True)
            if done.returncode != 0:
                why = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
                pytest.skip(f"swe-rex 1.4.0 cannot be installed here, and SWX_ORIGINAL_PYTHON is not set: {why}")
            ready.touch()
    return str(python)


def python_output(python: str, code: str, *arguments: str, env: dict[str, str] | None = None) -> str:
    """What a piece of Python prints; it must succeed."""
    done = subprocess.run([python, "-c", code, *arguments], capture_output=True, text=True, env=env, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def python_json(python: str, code: str, *arguments: str, env: dict[str, str] | None = None) -> Any:
    """The JSON that a piece of Python prints."""
    return json.loads(python_output(python, code, *arguments, env=env))


def our_environment() -> dict[str, str]:
    """The process's environment, in which any Python finds this tree's package."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


if __name__ == "__main__":  # made before the tests, its making does not hold them up
    original_python()
