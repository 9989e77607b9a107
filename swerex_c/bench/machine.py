"""What a run has to say of the machine that it was made on."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
from pathlib import Path

__all__ = ["first_line", "machine"]


def first_line(*command: str) -> str:
    """The first line that a program prints; "absent" if it is not there."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split("\n", 1)[0]
    except OSError:
        return "absent"


def machine() -> dict[str, object]:
    """The processor, how busy it is now, and the versions of what takes part."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": models[0].partition(":")[2].strip() if models else platform.machine(),
        "processors": len(os.sched_getaffinity(0)),
        "load_before": os.getloadavg()[0],
        "kernel": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "bash": first_line("bash", "--version"),
    }
