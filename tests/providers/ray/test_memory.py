"""A memory limit is kept for a tree of processes: by the kernel where a control group can be made, else by looking."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from swerex_c.providers.ray import memory
from swerex_c.providers.ray.memory import CgroupLimit, PolledLimit, descendants, new_limit

TAKE = "import os, sys, time; x = bytearray(int(sys.argv[1]) << 20); os.write(1, b'taken\\n'); time.sleep(60)"


def _group(limit: int) -> CgroupLimit:
    found = new_limit(limit, f"swx-test-{os.getpid()}-{time.monotonic_ns()}")
    if not isinstance(found, CgroupLimit):
        pytest.skip("no control group can be made here")
    return found


def _take(megabytes: int, group: CgroupLimit | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", TAKE, str(megabytes)], stdout=subprocess.PIPE, text=True,
        preexec_fn=group.enter if group is not None else None,
    )  # fmt: skip


def test_a_group_keeps_the_limit_and_says_so() -> None:
    group = _group(64 << 20)
    try:
        with _take(20, group) as small:
            assert small.stdout is not None and small.stdout.readline() == "taken\n"
            assert not group.exceeded(os.getpid())
            with _take(60, group) as large:
                assert large.wait(20) == -9 or small.wait(20) == -9
            assert group.exceeded(os.getpid())
            small.kill()
    finally:
        group.close()
    assert not group.path.exists()


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


def test_a_watch_counts_all_descendants() -> None:
    take = shlex.join([sys.executable, "-c", TAKE, "70"])
    with _below_a_shell(take) as one:
        _said(one, 1)
        assert len(descendants(one.pid)) == 1 and one.pid in descendants(os.getpid())
        assert not PolledLimit(100 << 20).exceeded(one.pid)
    # One below a shell of its own counts as well.
    with _below_a_shell(take, f"({take}; true)") as two:
        _said(two, 2)
        assert len(descendants(two.pid)) == 3
        assert PolledLimit(100 << 20).exceeded(two.pid)
        assert not PolledLimit(10 << 30).exceeded(two.pid)


def test_pages_that_several_share_count_once() -> None:
    """A process that forks has its pages twice, and takes them once."""
    limit = 150 << 20
    program = TAKE.replace("os.write", "os.fork(); os.write")
    with _below_a_shell(shlex.join([sys.executable, "-c", program, "100"])) as one:
        _said(one, 2)
        assert sum(map(memory._resident, descendants(one.pid))) > limit
        assert not PolledLimit(limit).exceeded(one.pid)


def test_where_no_group_can_be_made_it_is_watched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "_bases", lambda: [tmp_path, tmp_path / "nothing"])
    assert isinstance(new_limit(1 << 30, "group"), PolledLimit)
    assert os.listdir(tmp_path) == []


def test_a_group_of_the_second_version(tmp_path: Path) -> None:
    """The files are those of the kernel's documentation (cgroup-v2.rst); here they are plain ones."""

    class Base(type(tmp_path)):  # type: ignore[misc]
        def mkdir(self, *args: object, **kwargs: object) -> None:
            super().mkdir(*args, **kwargs)
            for name, text in (("memory.max", "max"), ("memory.swap.max", "max"), ("cgroup.procs", "")):
                (Path(self) / name).write_text(text)
            (Path(self) / "memory.events").write_text("low 0\nhigh 0\nmax 3\noom 1\noom_kill 0\noom_group_kill 0\n")

    group = CgroupLimit(Base(tmp_path / "group"), 12345678)
    path = tmp_path / "group"
    assert ((path / "memory.max").read_text(), (path / "memory.swap.max").read_text()) == ("12345678", "0")
    group.enter()
    assert (path / "cgroup.procs").read_text() == str(os.getpid())
    assert not group.exceeded(1)
    (path / "memory.events").write_text("oom 1\noom_kill 2\n")
    assert group.exceeded(1)
