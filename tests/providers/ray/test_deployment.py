"""An environment in a Ray cluster is an ordinary runtime behind an ordinary deployment."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from swerex_c.deployment.config import (
    DockerDeploymentConfig,
    IsolationConfig,
    LocalDeploymentConfig,
    RayDeploymentConfig,
    get_deployment,
)
from swerex_c.deployment.ray import RayDeployment
from swerex_c.exceptions import (
    DeploymentStartupError,
    NotSupportedError,
    RuntimeClosedError,
    SandboxLostError,
    StartupTimeoutError,
)
from swerex_c.models import BashAction, Command, UploadRequest
from swerex_c.providers.ray import cluster, runtime
from tests.support.harness import needs
from tests.support.original import ROOT, run_python
from tests.support.processes import memory_of
from tests.support.ray_cluster import Made, Nodes, actors, new_session, raised, running, with_variable
from tests.support.wait import DEADLINE, settle, until_async


async def test_a_broken_pipe_does_not_end_the_server(made: Made) -> None:
    deployment = made()
    await deployment.start()
    os.kill(deployment._facts["server"], signal.SIGPIPE)  # as a write does to a connection that its peer has closed
    assert await deployment.is_alive()


async def test_a_long_command_that_is_cancelled_as_it_is_sent_does_not_run(made: Made, tmp_path: Path) -> None:
    """Ray fetches its text from an object store while the actor already gets the cancellation."""
    deployment = made(resources={"far": 0.1})
    await deployment.start()
    runtime = deployment.runtime
    await runtime.create_session(new_session())
    text = "x" * (4 << 20)
    for number in range(5):
        call = asyncio.ensure_future(runtime.run_in_session(BashAction(command=f"touch {tmp_path}/{number} # {text}")))
        await settle()  # it is sent
        call.cancel()
        assert isinstance(await raised(call), asyncio.CancelledError)
    assert (await runtime.run_in_session(BashAction(command="echo on"))).output.strip() == "on"
    assert os.listdir(tmp_path) == []


# Where it is


async def test_a_stop_ends_an_actor_that_is_being_created(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    create, created, goes_on = cluster.new_actor, threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Any:
        actor = create(*arguments)
        created.set()
        goes_on.wait(DEADLINE)
        return actor

    monkeypatch.setattr(cluster, "new_actor", slow)
    before, deployment = actors(), made()
    starting = asyncio.ensure_future(deployment.start())
    await until_async(created.is_set)
    stopping = asyncio.ensure_future(deployment.stop())
    await settle()
    goes_on.set()
    await stopping
    kept = await raised(starting)  # an error of the start may refer to the actor's handle
    assert isinstance(kept, RuntimeClosedError)
    await until_async(lambda: actors() == before)


async def test_actor_options_choose_the_node(nodes: Nodes, made: Made) -> None:
    """As on a node that is named, or in a placement group."""
    group = ray.util.placement_group([{"CPU": 0.1, "far": 1}])
    head = nodes.cluster.head_node.node_id
    try:
        assert group.wait(DEADLINE)
        names, raylets = [], set()
        for strategy in (NodeAffinitySchedulingStrategy(head, soft=False), PlacementGroupSchedulingStrategy(group, 0)):
            deployment = made(actor_options={"scheduling_strategy": strategy})
            await deployment.start()
            names.append(deployment._channel.name)
            raylets.add((await deployment.runtime.execute(Command(command="echo $RAY_RAYLET_PID", shell=True))).stdout)
        assert head in names[0] and head not in names[1] and len(raylets) == 2
    finally:
        ray.util.remove_placement_group(group)


def test_configuration() -> None:
    for fields in ({"memory_limit": 5}, {"time_limit": 0}, {"nothing": 1}):
        with pytest.raises(ValueError):
            RayDeploymentConfig(**fields)  # type: ignore[arg-type]
    config = RayDeploymentConfig(environment={"type": "docker", "image": "x"})  # type: ignore[arg-type]
    assert isinstance(config.environment, DockerDeploymentConfig)
    assert RayDeploymentConfig(**config.model_dump()) == config
    assert isinstance(get_deployment(config), RayDeployment)


async def test_a_full_cluster_is_waited_for(made: Made, mark: str) -> None:
    """Until there is room, it is too late, or the start is given up, which leaves nothing."""
    first = made(resources={"far": 4})
    await first.start()
    late = made(resources={"far": 4}, startup_timeout=1.5)
    error = await raised(late.start())
    assert type(error) is StartupTimeoutError and "1.5 seconds" in str(error)
    assert "requests 0.1 CPU, 4 far" in str(error) and "has 2 CPU" in str(error)  # what there is
    for how in ("cancel", "stop"):
        await until_async(lambda: len(actors()) == 1)
        waiting = made(resources={"far": 4})
        starting = asyncio.ensure_future(waiting.start())
        await until_async(lambda: len(actors()) == 2)
        if how == "cancel":
            starting.cancel()
        else:
            await waiting.stop()
        assert isinstance(await raised(starting), asyncio.CancelledError if how == "cancel" else RuntimeClosedError)
    await until_async(lambda: len(actors()) == 1)
    second = made(resources={"far": 4}, runtime_env={"env_vars": {"SWX_WHOSE": mark}})
    starting = asyncio.ensure_future(second.start())
    await until_async(lambda: len(actors()) == 2)
    assert not starting.done()
    await first.stop()
    await starting
    assert await second.is_alive()
    await second.stop()
    # Further on, while the processes start.
    for stage in (lambda: second._channel, actors, lambda: with_variable(f"SWX_WHOSE={mark}")):
        await until_async(lambda: not actors())
        starting = asyncio.ensure_future(second.start())
        await until_async(stage)
        starting.cancel()
        await asyncio.wait([starting])
        await second.stop()
    await until_async(lambda: not actors() and not with_variable(f"SWX_WHOSE={mark}"))


# Clusters and workers that do not fit


async def test_another_version_on_the_workers(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "__version__", "99.0")
    error = await raised(made().start())
    assert type(error) is DeploymentStartupError
    assert "this process has 99.0" in str(error) and "install swerex-c 99.0" in str(error)


DRIVER = """
import asyncio, sys
root, address = sys.argv[1:]
sys.path.insert(0, root)
import ray
ray.init(address=address, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": "/nowhere"}})
from swerex_c.deployment.config import RayDeploymentConfig
from swerex_c.exceptions import DeploymentStartupError
try:
    asyncio.run(RayDeploymentConfig(num_cpus=0.1).get_deployment().start())
    print("started")
except DeploymentStartupError as error:
    print("told:", error)
"""


def test_workers_without_the_package(nodes: Nodes, tmp_path: Path) -> None:
    """The driver alone has it: by its sys.path, from a directory that the workers do not look in."""
    (tmp_path / "driver.py").write_text(DRIVER)
    done = subprocess.run(
        [sys.executable, "driver.py", str(ROOT), nodes.address], cwd=tmp_path, capture_output=True, text=True,
        timeout=60, env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )  # fmt: skip
    if "started\n" in done.stdout:
        pytest.skip("swerex-c is installed where this Python finds it")
    assert "told: The Python of the cluster's workers does not have swerex-c" in done.stdout, done.stdout + done.stderr


CONNECTING = """
import asyncio
import ray  # which takes a while, and not of the start's time
from swerex_c.deployment.config import RayDeploymentConfig
for address in ("ray://127.0.0.1:1", "127.0.0.1:1"):
    try:
        asyncio.run(RayDeploymentConfig(address=address, startup_timeout=3).get_deployment().start())
    except Exception as error:
        print(type(error).__name__, " ".join(str(error).split()))
"""


def test_clusters_that_cannot_be_used() -> None:
    """In a process of its own, which is in no cluster."""
    done = run_python(CONNECTING)
    client, nobody = done.stdout.splitlines()[:2]
    assert client.startswith("DeploymentStartupError Environments cannot be reached by Ray's client"), done.stderr
    assert nobody.split()[0] in ("DeploymentStartupError", "StartupTimeoutError")


# What is on the node


async def test_an_isolated_view(made: Made, mark: str) -> None:
    needs("bwrap")
    deployment = made(environment=LocalDeploymentConfig(isolation=IsolationConfig(network=False)))
    await deployment.start()
    runtime = deployment.runtime
    await runtime.create_session(new_session())
    seen = await runtime.run_in_session(BashAction(command="echo private >/tmp/swx-private; tail -n +3 /proc/net/dev"))
    assert seen.output.split()[0] == "lo:" and len(seen.output.splitlines()) == 1
    assert not os.path.exists("/tmp/swx-private")
    await runtime.run_in_session(BashAction(command=f"setsid sleep {mark} &"))
    await until_async(lambda: running(mark))
    ray.kill(deployment._channel._handle)
    await until_async(lambda: not running(mark))


async def test_an_environment_that_cannot_start_has_its_reason(made: Made) -> None:
    isolation = IsolationConfig(writable=["/nowhere/at/all" + "/x" * 40_000])  # which the error names
    error = await raised(made(environment=LocalDeploymentConfig(isolation=isolation)).start())
    assert isinstance(error, DeploymentStartupError) and "/nowhere/at/all" in str(error)


# Files and trees, which cross whole or not at all, in pieces


async def test_a_transfer_that_is_cancelled_or_whose_place_dies(made: Made, tmp_path: Path) -> None:
    deployment = made(resources={"far": 0.1})
    await deployment.start()
    (tmp_path / "tree").mkdir()
    with open(tmp_path / "tree" / "large", "wb") as file:
        file.truncate(2 << 30)
    request = UploadRequest(source_path=str(tmp_path / "tree"), target_path=str(tmp_path / "target"))
    for how in ("cancel", "kill"):
        upload = asyncio.ensure_future(deployment.runtime.upload(request))
        await until_async(lambda: len(os.listdir(tmp_path)) > 1)  # what comes is beside the target meanwhile
        if how == "cancel":
            upload.cancel()
        else:
            ray.kill(deployment._channel._handle)
        error = await raised(asyncio.wait_for(upload, DEADLINE))
        assert isinstance(error, asyncio.CancelledError if how == "cancel" else SandboxLostError), repr(error)
        assert not (tmp_path / "target").exists()
        if how == "cancel":  # what had come goes, too
            await until_async(lambda: os.listdir(tmp_path) == ["tree"])


async def test_little_of_a_large_file_is_in_memory_at_once(made: Made, tmp_path: Path) -> None:
    """Four times what an object store holds here passes through it."""
    deployment = made(resources={"far": 0.1})
    await deployment.start()
    size = 320 << 20
    with open(tmp_path / "large", "wb") as file:
        file.truncate(size)
    before = memory_of(what="VmHWM")
    await deployment.runtime.upload(
        UploadRequest(source_path=str(tmp_path / "large"), target_path=str(tmp_path / "copy"))
    )
    assert (tmp_path / "copy").stat().st_size == size
    assert memory_of(what="VmHWM") - before < 128 << 20
    with pytest.raises((NotSupportedError, OSError)):
        await deployment.runtime.download(str(tmp_path), "/proc/nothing/here")
