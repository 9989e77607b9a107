"""The batch example on a Ray cluster of several nodes, one of which is killed in the middle."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.original import our_environment
from tests.support.ray_cluster import Nodes
from tests.support.wait import until

TASKS = 12


def start(out: Path, tasks: Path, config: dict[str, Any]) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "swerex_c.examples.batch", str(tasks), "--results", str(out), "--pool", "4"]
    argv += ["--deployment", json.dumps(config)]
    pipe = subprocess.PIPE
    environment = our_environment() | {"RAY_USAGE_STATS_ENABLED": "0"}
    return subprocess.Popen(argv, env=environment, stdout=pipe, stderr=pipe, text=True)


def ids(out: Path) -> list[str]:
    if not out.exists():
        return []
    return [json.loads(line)["id"] for line in out.read_text().splitlines()]


@pytest.mark.timeout(170)
def test_a_node_is_killed_in_the_middle_and_every_task_has_one_result(nodes: Nodes, tmp_path: Path) -> None:
    """Each task notes its begin and its end in the tree that all nodes of this machine share."""
    log = tmp_path / "log"
    nodes.add(cpus=1, batch=2)
    doomed = nodes.add(cpus=1, batch=2)
    go = tmp_path / "go"
    names = [f"task-{number:02d}" for number in range(TASKS)]
    tasks = tmp_path / "tasks.jsonl"
    wait = f"until test -e {go}; do sleep 0.1; done"
    tasks.write_text(
        "".join(
            json.dumps(
                {
                    "id": name,
                    "setup": [f"echo begin {name} >> {log}"],
                    "actions": [wait, "sleep 0.2"],
                    "check": f"echo end {name} >> {log}",
                }
            )
            + "\n"
            for name in names
        )
    )
    out = tmp_path / "out.jsonl"
    config = {
        "type": "ray",
        "address": nodes.address,
        "num_cpus": 0.1,
        "resources": {"batch": 1},
        "environment": {"type": "local"},
        "startup_timeout": 100,
    }
    process = start(out, tasks, config)
    try:
        until(lambda: log.exists() and log.read_text().count("begin") == 4, "four tasks run, two on each node")
        nodes.kill(doomed)
        new = nodes.add(cpus=1, batch=2)
        until(lambda: log.read_text().count("begin") >= 6, "the two that were lost are begun again")
        go.touch()
        shown, errors = process.communicate(timeout=90)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)
    assert process.returncode == 0, (shown, errors)
    assert sorted(ids(out)) == names
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert {record["outcome"] for record in found} == {"resolved"}
    again = {record["id"] for record in found if record["attempts"] > 1}
    assert len(again) == 2
    noted = Counter(log.read_text().splitlines())
    assert all(noted[f"end {name}"] == 1 for name in names)
    assert all(noted[f"begin {name}"] == (2 if name in again else 1) for name in names)
    for node in (doomed, new):
        nodes.remove(node)
