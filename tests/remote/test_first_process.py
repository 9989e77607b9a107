"""A server that is the first process of a container."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.needs import alone, else_skipped
from tests.support.server_process import KEY, REMOTE, environment, serving
from tests.support.wait import DEADLINE, until

ZOMBIES = "cat /proc/[0-9]*/stat 2> /dev/null | grep -c ') Z '"


@pytest.fixture
def first() -> list[str]:
    """The server's command, as the first of processes of its own."""
    with else_skipped():
        return alone(*REMOTE)


def test_orphans_are_collected_and_exit_codes_are_kept(first: list[str], tmp_path: Path) -> None:
    with serving(tmp_path / "log", command=first) as server:
        for number in range(1, 21):
            answer = server.post("/execute", command=f"(setsid sleep 0.05 &); exit {number}", shell=True).json()
            assert answer["exit_code"] == number
        until(lambda: server.post("/execute", command=ZOMBIES, shell=True).json()["stdout"] == "0\n")
        server.post("/execute", command="kill -TERM 1", shell=True)
        assert server.process.wait(DEADLINE) == 0


def test_the_key_is_seen_in_neither_process(first: list[str], tmp_path: Path) -> None:
    with serving(tmp_path / "log", "--auth-token", KEY, command=first, key=None) as server:
        command = f"cat /proc/1/cmdline /proc/1/environ | tr '\\0' '\\n' | grep -c {KEY[:-1]}[{KEY[-1]}]"
        assert server.post("/execute", command=command, shell=True).json()["stdout"] == "0\n"


def test_one_on_standard_streams_ends_with_its_client(first: list[str]) -> None:
    """And with the code that a server has."""
    done = subprocess.run([*first, "--stdio"], input=b"", capture_output=True, timeout=DEADLINE, env=environment())
    assert done.returncode == 0
