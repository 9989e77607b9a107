"""The command `swerex-c`, run as a user runs it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from tests.support.original import our_environment
from tests.support.processes import ran

COMMAND = [sys.executable, "-m", "swerex_c"]


def cli(*arguments: str, input: str | None = "", **env: str) -> subprocess.CompletedProcess[str]:
    return ran(*COMMAND, *arguments, input=input, env={**our_environment(), **env})


def start(*arguments: str, command: list[str] = COMMAND, **env: str) -> Any:
    """Begin a command without input, whose output and errors are pipes of text."""
    pipe, env = subprocess.PIPE, {**our_environment(), **env}
    return subprocess.Popen(
        [*command, *arguments], stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, env=env
    )


def results(done: subprocess.CompletedProcess[str]) -> tuple[str, str, int]:
    """Return standard output, standard error and the exit code."""
    return done.stdout, done.stderr, done.returncode
