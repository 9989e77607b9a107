"""The shell scripts of the package, as they are sent."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import swerex_c
from swerex_c.utils.shell_script import read_script

ROOT = Path(swerex_c.__file__).parent
SCRIPTS = sorted(str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.suffix in (".bash", ".sh"))


@pytest.mark.parametrize("path", SCRIPTS)
def test_a_script_is_whole_and_has_no_comment_lines(path: str) -> None:
    text = read_script(path)
    shell = "bash" if path.endswith(".bash") else "sh"
    done = subprocess.run([shell, "-n"], input=text, text=True, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.strip() for line in text.splitlines()]
    assert not [line for line in lines if line.startswith(("#", ". "))]
