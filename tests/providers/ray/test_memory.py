"""A memory limit counts all processes of a tree."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator

from swerex_c.providers.ray import processes
from swerex_c.providers.ray.processes import MemoryLimit, descendants

TAKE = "import os, sys, time; x = bytearray(int(sys.argv[1]) << 20); os.write(1, b'taken\\n'); time.sleep(60)"


@contextlib.contextmanager
def _below_a_shell(*lines: str) -> Iterator[subprocess.Popen[str]]:
    """A shell that runs these lines side by side, so that what is below this process besides does not count."""
    with subprocess.Popen(
        ["bash", "-c", "".join(f"{line} & " for line in lines) + "wait"], stdout=subprocess.PIPE, text=True
    ) as shell:
        try:
            yield shell
        finally:
            for pid in [*descendants(shell.pid), shell.pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, 9)


def _said(shell: subprocess.Popen[str], times: int) -> None:
    assert shell.stdout is not None
    assert [shell.stdout.readline() for _ in range(times)] == ["taken\n"] * times


def test_pages_that_several_share_count_once() -> None:
    """A process that forks has its pages twice, and takes them once."""
    limit = 150 << 20
    program = TAKE.replace("os.write", "os.fork(); os.write")
    with _below_a_shell(shlex.join([sys.executable, "-c", program, "100"])) as one:
        _said(one, 2)
        assert sum(map(processes._resident, descendants(one.pid))) > limit
        assert not MemoryLimit(limit).exceeded(one.pid)
