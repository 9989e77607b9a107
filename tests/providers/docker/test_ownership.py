"""Test what happens to containers whose owner was dropped, has ended, or was killed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable

from swerex_c.providers import ownership
from tests.support.cli import cli, results
from tests.support.docker_deployments import Make, make, names, reach
from tests.support.docker_engine import Engine
from tests.support.harness import in_forked_child
from tests.support.original import our_environment, run_python

__all__ = ["make", "reach"]


def test_a_forked_process_does_not_stop_what_its_parent_started(make: Make, reach: Engine) -> None:
    deployment = make()
    asyncio.run(deployment.start())
    in_forked_child(lambda: asyncio.run(deployment.stop()))
    assert len(names(reach)) == 1
    asyncio.run(deployment.stop())
    assert names(reach) == []


STARTED = """if True:
    import asyncio, sys, time
    from swerex_c.deployment.docker import DockerDeployment
    kept = [
        DockerDeployment(image="swx-test/bash-only", pull="never", docker_args=["--network", "none"], **fields)
        for fields in ({}, {"remove_container": False})
    ]
    async def start():
        await asyncio.gather(*(deployment.start() for deployment in kept))
    asyncio.run(start())
    print(*(deployment.container_name for deployment in kept), flush=True)
    sys.stdin.read()
"""


def test_what_a_dead_process_left_is_pruned_and_nothing_else(
    reach: Engine, container: Callable[..., str], bash_only: str
) -> None:
    """Foreign containers stay, also one with inherited labels, and one whose label imitates a line of the list."""
    another = {"swerex_c.host": "another", "swerex_c.pid": "4194305"}
    others_facts = {**ownership.labels("of-another-host", keep=False), **another}
    given = ["--name", "of-another-host", *(f"--label={name}={value}" for name, value in others_facts.items())]
    foreign = [container(bash_only), container(bash_only, *given)]
    quiet = {**our_environment(), "SWE_REX_LOG_STREAM_LEVEL": "ERROR"}
    process = subprocess.Popen(
        [sys.executable, "-c", STARTED], env=quiet, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        first, second = process.stdout.readline().split()
        process.kill()
        process.wait()
        # Whoever makes an image of a container has its labels in it, and in what is started from that.
        reach.docker("commit", first, "swx-test/of-ours")
        foreign.append(container("swx-test/of-ours"))
        line = "\t".join([foreign[0], reach.docker("inspect", "-f", "{{.Name}}", foreign[0])[1:], "i", "running", "x"])
        foreign.append(container(bash_only, "--label=swerex_c=x", f"--label=swerex_c.host=a\n\nb\tc\n{line}\nd"))
        told, err, code = results(cli("prune"))
        assert (len(told.splitlines()), err, code) == (2, "", 0)
        assert f"removed: {first}" in told and f"stopped but kept: {second}" in told
        assert first not in names(reach)
        assert reach.docker("inspect", "-f", "{{.State.Running}}", second, *foreign) == "false" + "\ntrue" * 4
    finally:
        process.kill()
        process.communicate()
        inherited = reach.docker("ps", "-aq", "--filter", "ancestor=swx-test/of-ours").split()
        reach.docker("rm", "-f", *inherited, *names(reach, ownership.KEEP), check=False)
        reach.docker("rmi", "swx-test/of-ours", check=False)


def test_a_process_that_ends_in_the_normal_way_leaves_nothing(make: Make, reach: Engine) -> None:
    done = run_python(STARTED, options=["-X", "dev"], SWE_REX_LOG_STREAM_LEVEL="ERROR")
    said = [line for line in done.stderr.splitlines() if not line.startswith("Executing <")]  # a busy machine
    assert (done.returncode, said) == (0, [])
    first, second = done.stdout.split()
    assert first not in names(reach)
    assert reach.docker("inspect", "-f", "{{.State.Running}}", second) == "false"
    reach.docker("rm", second)


def test_who_lives() -> None:
    mine = ownership.labels("it", keep=False)
    assert ownership.is_owner_alive(mine) is True
    dead = subprocess.Popen(["true"])
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
    assert ownership.is_owner_alive({**mine, "swerex_c.pid": str(dead.pid)}) is False  # ended, and not waited for
    dead.wait()
    for change, answer in (
        ({"swerex_c.pid": str(dead.pid)}, False),
        ({"swerex_c.pid": str(1 << 40)}, False),
        ({"swerex_c.started": "1"}, False),  # the number is another process's by now
        ({"swerex_c.boot": "an earlier one"}, False),
        ({"swerex_c.host": "another"}, None),
        ({"swerex_c.host": "another", "swerex_c.boot": "another"}, None),
        ({"swerex_c.pidns": "another"}, None),
        ({"swerex_c.pid": ""}, None),
        ({"swerex_c.boot": ""}, None),
    ):
        assert ownership.is_owner_alive({**mine, **change}) is answer, change
    assert ownership.is_owner_alive({}) is None
    assert ownership.KEEP in ownership.labels("it", keep=True)
