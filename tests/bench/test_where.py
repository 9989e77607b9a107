"""What benchmarks/where.py makes of the kernel's trace and of callgrind's files: by real traces of single commands."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRACES = ROOT / "tests" / "data" / "traces"
WHO = {"asyncio": (4871, 4915, {4872}), "reactor": (4929, 4935, {4936}), "pty": (4947, 4948, set())}
"""The caller, bash, and the caller's other threads in each trace."""


@pytest.fixture(scope="module")
def where() -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import where

        yield where
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


def command(where: Any, tmp_path: Path, kind: str) -> Any:
    (tmp_path / "trace").write_text((TRACES / f"{kind}.txt").read_text())
    (found,) = where.commands(where.read_trace(tmp_path), *WHO[kind])
    return found


IN_AND_BACK = "begin typing typed passed line first+mark first+marked mark marked answer looking proved "


@pytest.mark.parametrize(
    ("kind", "moments"),
    [
        ("asyncio", IN_AND_BACK + "end"),
        ("reactor", IN_AND_BACK + "told woken ended"),
        ("pty", "begin typing typed passed line only+mark marked answer returned"),
    ],
)
def test_the_steps_follow_each_other(where: Any, tmp_path: Path, kind: str, moments: str) -> None:
    found = command(where, tmp_path, kind)
    names = [name.replace("+", " ") for name in moments.split()]
    times = [found.moments[name] for name in names]
    assert set(found.moments) == set(names) and times == sorted(times)
    shown = [(start, end) for _, _, start, end in where.STEPS if {start, end} <= set(found.moments)]
    assert sum(found.moments[end] - found.moments[start] for start, end in shown) == pytest.approx(times[-1] - times[0])


def test_what_is_counted(where: Any, tmp_path: Path) -> None:
    found = command(where, tmp_path, "asyncio")
    calls = {name: number for (who, name), number in found.calls.items() if who == "caller"}
    assert calls == {
        "getpid": 3,
        "epoll_ctl": 2,
        "write": 1,
        "ppoll": 1,
        "read": 2,
        "poll": 1,
        "pread64": 1,
        "ioctl": 1,
    }
    calls = {name: number for (who, name), number in found.calls.items() if who == "bash"}
    assert calls == {"write": 2, "rt_sigaction": 1, "rt_sigprocmask": 2, "read": 1}
    assert (found.counts["bytes read"], found.counts["reads with data"], found.counts["looks at /proc"]) == (112, 1, 1)
    assert (found.counts["wakes of caller"], found.counts["wakes of bash"]) == (1, 1)
    assert found.cpu["caller"] == pytest.approx(48) and found.cpu["bash"] == pytest.approx(25)
    assert found.to_sleep == pytest.approx([9]) and found.from_sleep == pytest.approx([8])
    assert found.cpu["worker"] == pytest.approx(7) and found.counts["runs of the worker"] == 3
    assert found.counts["of which on another processor than the command began: worker"] == 3


def test_a_trace_without_commands_has_none(where: Any, tmp_path: Path) -> None:
    lines = (TRACES / "pty.txt").read_text().splitlines()
    (tmp_path / "trace").write_text("\n".join(lines[1:]))
    assert list(where.commands(where.read_trace(tmp_path), *WHO["pty"])) == []


PROFILE = """\
version: 1
events: Ir
ob=(1) /lib/one.so
fl=(1) one.c
fn=(1) work
10 100
+1 20
cob=(2) /lib/libc.so.6
cfn=(2) malloc
calls=3 5
* 60
fn=(3) rest
12 7

ob=(2)
fn=(2)
5 60
"""


def test_a_profile_of_callgrind(where: Any, tmp_path: Path) -> None:
    (tmp_path / "out").write_text(PROFILE)
    found = where.read_profile(tmp_path / "out")
    assert found.total == 187
    assert found.by_object == {"/lib/one.so": 127, "/lib/libc.so.6": 60}
    assert found.by_function == {"work": 120, "rest": 7, "malloc": 60} and found.calls == {"malloc": 3}
