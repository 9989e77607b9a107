"""Machine of a benchmark: description, variables, files of output."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

__all__ = ["environment", "first_line", "machine", "make_file"]

LINE = "{:08d} the quick brown fox jumps over the lazy dog 0123456789{}"
"""Line of 64 bytes with a number, so that a lost, duplicated or moved piece is detected."""


def first_line(*command: str) -> str:
    """Return the first line of a program's output, or "absent" if it cannot be run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split("\n", 1)[0]
    except OSError:
        return "absent"


def machine() -> dict[str, object]:
    """Return the current date, the processor, and the versions of the kernel, Python and bash."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": models[0].partition(":")[2].strip() if models else platform.machine(),
        "processors": len(os.sched_getaffinity(0)),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "bash": re.sub(r".*version ([\d.]+).*", r"bash \1", first_line("bash", "--version")),
    }


def environment(directory: Path, **more: str) -> dict[str, str]:
    """Return the environment variables that all engines share.

    They set a home in `directory` with the distribution's startup file, and a terminal type that all engines support.

    Args:
        more: additional variables.
    """
    home = directory / "home"
    if not home.exists():
        home.mkdir()
        with contextlib.suppress(OSError):
            shutil.copy("/etc/skel/.bashrc", home / ".bashrc")
    found = {**os.environ, "HOME": str(home), "TERM": "dumb", "LC_ALL": "C.UTF-8", **more}
    for name in ("PROMPT_COMMAND", "PS1", "PS2", "PS0", "BASH_ENV", "ENV"):
        found.pop(name, None)
    return found


def make_file(megabytes: int, end: str = "\n") -> int:
    """Return the descriptor of a file of numbered lines. It is in memory, so `cat` measures the terminal, not a disk.

    Args:
        megabytes: size of the file, if `end` is one character.
        end: end of each line.
    """
    count = megabytes * 1_000_000 // len(LINE.format(0, "\n"))
    file = os.memfd_create("swerex-c-bench")
    with open(file, "w", closefd=False) as out:
        out.writelines(LINE.format(number, end) for number in range(count))
    return file
