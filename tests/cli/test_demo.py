"""The README's first command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.harness import write_script
from tests.support.original import our_environment
from tests.support.processes import ran
from tests.support.wait import quicker_than


def demo(**environment: str) -> subprocess.CompletedProcess[str]:
    return ran(sys.executable, "-m", "swerex_c.cli.demo", env={**our_environment(), **environment})


@pytest.mark.parametrize("terminal", ["dumb", "xterm-256color"])
def test_it_is_all_right(terminal: str) -> None:
    done = demo(TERM=terminal)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    steps, right = map(int, re.findall(r"^(\d+) of (\d+) steps gave the expected result", done.stdout, re.MULTILINE)[0])
    assert steps == right >= 10
    assert len(re.findall(r"^ok ", done.stdout, re.MULTILINE)) == right
    assert "WRONG" not in done.stdout and "\x1b" not in done.stdout
    for part in ("hello from C", "exit code 2", "timeout", "(interrupt)", "42", "(10,000,000 characters)"):
        assert part in done.stdout


@pytest.mark.idle
def test_it_is_quick() -> None:
    with quicker_than(20):
        demo()


def test_it_says_what_is_wrong(tmp_path: Path) -> None:
    """With a bash whose `cat` lies, the steps that use it are wrong, and the status says so."""
    write_script(tmp_path / "cat", "echo lie")
    done = demo(PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert done.returncode == 1
    assert re.search(r"^WRONG +read the file it wrote", done.stdout, re.MULTILINE)
    assert "ok     send it a line" in done.stdout


def test_without_bash_it_says_so(tmp_path: Path) -> None:
    done = demo(PATH=str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert "Cannot create a session: bash is not in PATH" in done.stderr and "Traceback" not in done.stderr
