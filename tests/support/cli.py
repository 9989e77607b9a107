"""The command `swerex-c`, run as a user runs it."""

from __future__ import annotations

import subprocess
import sys

from tests.support.original import our_environment
from tests.support.wait import DEADLINE

COMMAND = [sys.executable, "-m", "swerex_c"]


def cli(*arguments: str, input: str | None = "", **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        input=input, capture_output=True, text=True, timeout=DEADLINE, env={**our_environment(), **env},
    )  # fmt: skip


def results(done: subprocess.CompletedProcess[str]) -> tuple[str, str, int]:
    """Return standard output, standard error and the exit code."""
    return done.stdout, done.stderr, done.returncode
