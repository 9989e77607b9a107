"""The batch example on a Ray cluster of several nodes, one of which is killed in the middle."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.support.original import our_environment
from tests.support.ray_cluster import Nodes
from tests.support.wait import until


@pytest.mark.timeout(170)
def test_a_node_is_killed_in_the_middle_and_every_task_has_one_result(nodes: Nodes, tmp_path: Path) -> None:
    """Each task notes its begin and its end in the tree that all nodes of this machine share."""
    log, go, tasks, out = (tmp_path / name for name in ("log", "go", "tasks.jsonl", "out.jsonl"))
    nodes.add(cpus=1, batch=2)
    doomed = nodes.add(cpus=1, batch=2)
    names = [f"task-{number:02d}" for number in range(12)]
    with tasks.open("w") as file:
        for name in names:
            task = {
                "id": name,
                "setup": [f"echo begin {name} >> {log}"],
                "actions": [f"until test -e {go}; do sleep 0.1; done", "sleep 0.2"],
                "check": f"echo end {name} >> {log}",
            }
            print(json.dumps(task), file=file)
    config = {
        "type": "ray",
        "address": nodes.address,
        "num_cpus": 0.1,
        "resources": {"batch": 1},
        "environment": {"type": "local"},
        "startup_timeout": 100,
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "swerex_c.examples.batch", str(tasks), "--results", str(out), "--pool", "4"]
        + ["--deployment", json.dumps(config)],
        env=our_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
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
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted(record["id"] for record in found) == names
    assert {record["outcome"] for record in found} == {"resolved"}
    again = {record["id"] for record in found if record["attempts"] > 1}
    assert len(again) == 2
    noted = Counter(log.read_text().splitlines())
    assert all(noted[f"end {name}"] == 1 for name in names)
    assert all(noted[f"begin {name}"] == (2 if name in again else 1) for name in names)
    for node in (doomed, new):
        nodes.remove(node)
