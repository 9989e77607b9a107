"""The original SWE-ReX in an environment of its own, to compare with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import ran

ROOT = Path(__file__).resolve().parents[2]


def original_python() -> str:
    """Return the interpreter of an environment with the original: SWX_ORIGINAL_PYTHON, or that of `.ci/setup`."""
    if given := os.environ.get("SWX_ORIGINAL_PYTHON"):
        return given
    place = ROOT / ".cache" / "original"
    if not (place / "ready").exists():
        pytest.skip("swe-rex 1.4.0 is not in .cache/original: `bash .ci/setup test` installs it there")
    return str(place / "bin" / "python")


def python_output(python: str, code: str, *arguments: str, env: dict[str, str] | None = None) -> str:
    """Return what a piece of Python prints; it must succeed."""
    done = ran(python, "-c", code, *arguments, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout


def python_json(python: str, code: str, *arguments: str, env: dict[str, str] | None = None) -> Any:
    """Return the value of the JSON that a piece of Python prints."""
    return json.loads(python_output(python, code, *arguments, env=env))


def run_python(code: str, *arguments: str, options: Sequence[str] = (), **environment: str) -> Any:
    """Run a piece of Python that can import this tree's package."""
    words, env = [*options, "-c", textwrap.dedent(code), *arguments], {**our_environment(), **environment}
    return ran(sys.executable, *words, seconds=200, env=env, stdin=subprocess.DEVNULL)


def our_environment() -> dict[str, str]:
    """Return this process's environment, changed so that any Python finds this tree's package."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}
