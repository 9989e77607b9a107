"""Machine of a benchmark: description, directory, variables, files of output."""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

__all__ = ["MEGABYTE", "environment", "first_line", "machine", "make_file", "work_directory"]

MEGABYTE = 1_000_000
"""Bytes of a megabyte."""

LINE = "{:08d} the quick brown fox jumps over the lazy dog 0123456789\n"
"""Line of 64 bytes with a number, so that a lost, duplicated or moved piece is detected."""

_PREFIX, _LOCK = "swerex-c-bench-", "lock"
_OLD = 60.0
"""Age in seconds after which an unlocked directory cannot be one that a run is just creating."""


def first_line(*command: str) -> str:
    """Return the first line of a program's output, or "absent" if it cannot be run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split("\n", 1)[0]
    except OSError:
        return "absent"


def machine() -> dict[str, object]:
    """Return a description of the machine, with the current date and load.

    It has the processor and the versions of the kernel, Python and bash.
    """
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": models[0].partition(":")[2].strip() if models else platform.machine(),
        "processors": len(os.sched_getaffinity(0)),
        "load_before": os.getloadavg()[0],
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


@contextlib.contextmanager
def work_directory() -> Iterator[Path]:
    """Yield a temporary directory, in memory if possible.

    In memory, `cat FILE` measures the terminal and not a disk.
    """
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else tempfile.gettempdir()
    _remove_abandoned(Path(where))
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=where) as name, open(f"{name}/{_LOCK}", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield Path(name)


def _remove_abandoned(where: Path) -> None:
    """Remove the directories of killed runs, because they occupy memory and no other cleanup removes them."""
    for path in where.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > _OLD:
                with open(path / _LOCK) as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path)


def make_file(path: Path, megabytes: int, end: str = "\n") -> str:
    """Write a file of numbered lines, unless it is there, and return its path.

    Args:
        megabytes: size of the file, if `end` is one character.
        end: end of each line.
    """
    if not path.exists():
        count = megabytes * MEGABYTE // len(LINE.format(0))
        with path.open("w") as out:
            for start in range(0, count, 10_000):
                lines = "".join([LINE.format(i) for i in range(start, min(start + 10_000, count))])
                out.write(lines.replace("\n", end))
    return str(path)
