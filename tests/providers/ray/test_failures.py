"""Whatever dies, callers get an error that says what and where, soon; nothing runs twice, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from swerex_c.deployment.config import DockerDeploymentConfig
from swerex_c.deployment.ray import RayDeployment
from swerex_c.exceptions import MemoryLimitError, SandboxLostError, TimeLimitError
from swerex_c.runtime.abstract import BashAction, BashObservation, Command, ReadFileRequest, UploadRequest
from tests.support.docker_engine import Engine
from tests.support.processes import alive
from tests.support.ray_cluster import Made, Nodes, new_session, raised, running
from tests.support.wait import until

SOON = 15.0
"""Seconds; how long a loss may take to be noticed on a busy machine. It takes less than one on an idle one."""

ROOT = Path(__file__).parents[3]


async def begin(deployment: RayDeployment, mark: str, ran: Path) -> asyncio.Future[BashObservation]:
    """A command under way that writes each time it is run, and a process that does all to be left alone."""
    await deployment.start()
    await deployment.runtime.create_session(new_session())
    hide = f"(trap '' HUP TERM INT; exec setsid env -i nohup sleep {mark} >/dev/null 2>&1) &"
    await deployment.runtime.run_in_session(BashAction(command=hide))
    action = BashAction(command=f"echo ran >>{ran}; sleep {mark}")
    call = asyncio.ensure_future(deployment.runtime.run_in_session(action))
    await asyncio.to_thread(until, lambda: ran.exists() and len(running(f"sleep {mark}")) == 2)
    return call


async def is_lost(
    deployment: RayDeployment, call: asyncio.Future[BashObservation], mark: str, ran: Path,
    kind: type[SandboxLostError] = SandboxLostError,
) -> str:  # fmt: skip
    """What it must be like afterwards; the error's words."""
    channel = deployment._channel
    error = await raised(asyncio.wait_for(call, 60))
    assert type(error) is kind, repr(error)
    assert channel._handle._actor_id.hex() in str(error) and " on node " in str(error)
    for again in (deployment.runtime.run_in_session(BashAction(command="echo 2")), raised(_executed(deployment))):
        with pytest.raises(SandboxLostError):
            result = await again
            assert isinstance(result, BaseException)
            raise result
    assert not await deployment.is_alive()
    await asyncio.to_thread(until, lambda: not running(mark))
    assert ran.read_text() == "ran\n"
    await asyncio.wait_for(deployment.stop(), 20)
    return str(error)


async def _executed(deployment: RayDeployment) -> object:
    return await deployment.runtime.execute(Command(command=["true"]))


@pytest.mark.parametrize("what", ["ray.kill", "actor killed", "actor crashed", "server", "supervisor"])
async def test_a_process_dies(made: Made, tmp_path: Path, mark: str, what: str) -> None:
    deployment = made()
    call = await begin(deployment, mark, tmp_path / "ran")
    facts = deployment._facts
    pids = {"actor": facts["pid"], "supervisor": facts["supervisor"], "server": facts["server"]}
    assert len(set(pids.values())) == 3
    if what == "ray.kill":
        ray.kill(deployment._channel._handle)
    elif what == "supervisor":
        # The one that a process may outlive: what is left is what ignores the hang-up.
        os.kill(pids["supervisor"], signal.SIGKILL)
        error = await raised(asyncio.wait_for(call, 30))
        assert type(error) is SandboxLostError
        await asyncio.to_thread(until, lambda: len(running(f"sleep {mark}")) <= 1)
        for pid in running(f"sleep {mark}"):
            os.kill(pid, signal.SIGKILL)
        return
    else:
        number = signal.SIGSEGV if what == "actor crashed" else signal.SIGKILL
        os.kill(pids["server" if what == "server" else "actor"], number)
    words = await is_lost(deployment, call, mark, tmp_path / "ran")
    if what == "server":
        assert "was killed by signal 9" in words
    for pid in pids.values():
        await asyncio.to_thread(until, lambda pid=pid: not alive(pid))


async def test_a_node_dies(nodes: Nodes, made: Made, tmp_path: Path, mark: str) -> None:
    node = nodes.add(doomed=1)
    deployment = made(resources={"doomed": 0.1})
    call = await begin(deployment, mark, tmp_path / "ran")
    other = made()
    await other.start()
    nodes.kill(node)
    words = await is_lost(deployment, call, mark, tmp_path / "ran")
    assert node.node_id in words
    assert await other.is_alive()
    nodes.remove(node)


async def test_one_that_was_lost_can_be_started_again(made: Made) -> None:
    deployment = made()
    await deployment.start()
    ray.kill(deployment._channel._handle)
    assert not await deployment.is_alive()
    await deployment.start()
    assert (await deployment.runtime.execute(Command(command=["echo", "new"]))).stdout == "new\n"


async def test_calls_of_several_threads_are_all_told(made: Made, mark: str) -> None:
    deployment = made()
    await deployment.start()

    def wait() -> BaseException:
        return asyncio.run(raised(deployment.runtime.execute(Command(command=["sleep", mark]))))

    calls = [asyncio.ensure_future(asyncio.to_thread(wait)) for _ in range(3)]
    await asyncio.to_thread(until, lambda: len(running(f"sleep {mark}")) == 3)
    ray.kill(deployment._channel._handle)
    assert {type(error) for error in await asyncio.wait_for(asyncio.gather(*calls), SOON)} == {SandboxLostError}


DRIVER = """
import asyncio, os, ray, sys
from swerex_c.deployment.config import RayDeploymentConfig
from swerex_c.runtime.abstract import BashAction, Command, CreateBashSessionRequest
from tests.support.ray_cluster import running
from tests.support.wait import until_async
async def main():
    deployment = RayDeploymentConfig(num_cpus=0.1, address=sys.argv[1]).get_deployment()  # which connects
    await deployment.start()
    await deployment.runtime.create_session(CreateBashSessionRequest(startup_timeout=30))
    hide = f"(trap '' HUP TERM; exec setsid env -i nohup sleep {sys.argv[2]} >/dev/null 2>&1) &"
    await deployment.runtime.run_in_session(BashAction(command=hide))
    call = asyncio.ensure_future(deployment.runtime.execute(Command(command=["sleep", sys.argv[2]])))
    await until_async(lambda: len(running(f"sleep {sys.argv[2]}")) >= 2)
    print("ready", flush=True)
    if sys.argv[3] == "shutdown":
        ray.shutdown()
    try:
        await call
    except Exception as error:
        print(type(error).__name__, flush=True)
    await deployment.stop()
    print("stopped", flush=True)
asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["killed", "shutdown"])
def test_the_driver_dies_or_leaves_the_cluster(nodes: Nodes, mark: str, how: str) -> None:
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, nodes.address, mark, how],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert driver.stdout is not None
    try:
        while (line := driver.stdout.readline()) != "ready\n":
            assert line, "the driver ended"
        if how == "killed":
            assert running(f"sleep {mark}")
            driver.kill()
            driver.wait()
        else:
            said, _ = driver.communicate(timeout=60)
            assert "\nSandboxLostError\n" in f"\n{said}" and said.endswith("stopped\n")
        until(lambda: not running(f"sleep {mark}"))
    finally:
        driver.kill()
        driver.wait()


LEFT = """
import asyncio, os, ray, sys
from swerex_c.deployment.config import RayDeploymentConfig
from swerex_c.runtime.abstract import BashAction, Command, CreateBashSessionRequest, UploadRequest
from tests.support.ray_cluster import actors, running
from tests.support.wait import until_async
def deployment(**more):
    return RayDeploymentConfig(num_cpus=0.1, address=sys.argv[1], **more).get_deployment()
async def told(name, work):
    try:
        print(name, "gave", await asyncio.wait_for(work, 60), flush=True)
    except BaseException as error:
        text = str(error)
        print(name, type(error).__name__, "shut down in this process" in text, "has since" in text, flush=True)
async def stream(runtime):
    async for _ in runtime.stream_in_session(BashAction(command="true")):
        pass
async def main():
    one = deployment()
    await one.start()
    runtime, channel = one.runtime, one._channel
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=30))
    if sys.argv[2] == "start":
        two = deployment(resources={"far": 4}, startup_timeout=60)
        first = deployment(resources={"far": 4}, startup_timeout=60)
        await first.start()
        starting = asyncio.ensure_future(two.start())
        await until_async(lambda: two._channel and len(actors()) == 3)  # with that of `one`
        ray.shutdown()
        await told("start", starting)
    else:
        sleeps = ["sleep", f"1000.{os.getpid()}"]
        pending = asyncio.ensure_future(runtime.execute(Command(command=sleeps)))
        await until_async(lambda: running(" ".join(sleeps)))
        ray.shutdown()
        if sys.argv[2] == "again":
            ray.init(address=sys.argv[1], log_to_driver=False)
            job = ray.get_runtime_context().get_job_id()
        await told("pending", pending)
        channel._error = None  # as if nobody had noticed yet
        await told("execute", runtime.execute(Command(command=["true"])))
        channel._error = None
        await told("stream", stream(runtime))
        channel._error = None
        await told("upload", runtime.upload(UploadRequest(source_path="/etc/hostname", target_path="/tmp/x")))
        channel._error = None
        await told("alive", runtime.is_alive())
        if sys.argv[2] == "again":
            assert job == ray.get_runtime_context().get_job_id()
            ray.shutdown()
        channel._error = None
    await one.stop()
    print("initialized", ray.is_initialized(), flush=True)
    os._exit(0)
asyncio.run(main())
"""


@pytest.mark.timeout(240)  # it starts Ray's workers on a machine that may be busy
@pytest.mark.parametrize("how", ["shutdown", "again", "start"])
def test_a_process_that_leaves_the_cluster_is_told_so_and_ray_does_not_start_itself(nodes: Nodes, how: str) -> None:
    nodes_before = len(running("raylet/raylet"))
    done = subprocess.run(
        [sys.executable, "-c", LEFT, nodes.address, how],
        capture_output=True, text=True, timeout=220, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    lost = f"SandboxLostError True {how == 'again'}"
    expected = ["start DeploymentStartupError True False"]
    if how != "start":
        alive = "alive gave is_alive=False message="
        # What was under way may have been told between the two.
        expected = ["pending SandboxLostError True", *(f"{it} {lost}" for it in ("execute", "stream", "upload")), alive]
    expected.append("initialized False")
    told = ("start ", "pending ", "execute ", "stream ", "upload ", "alive ", "initialized ")
    lines = [line for line in done.stdout.splitlines() if line.startswith(told)]
    assert len(lines) == len(expected), (done.stdout, done.stderr)
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start), (done.stdout, done.stderr)
    assert len(running("raylet/raylet")) == nodes_before


async def test_ray_that_is_shut_down_meanwhile_does_not_end_the_program(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray raises SystemExit in a thread that waits for it then."""

    def ended(*args: object, **kwargs: object) -> None:
        raise SystemExit(0)

    deployment = made()
    with monkeypatch.context() as patch:
        patch.setattr(ray, "wait", ended)
        patch.setattr(ray, "get", ended)
        await deployment.start()
        await deployment.runtime.download("/etc/hostname", str(tmp_path / "copy"))
        await deployment.stop()


# Limits


async def test_the_time_limit(made: Made, tmp_path: Path, mark: str) -> None:
    deployment = made(time_limit=6)
    call = await begin(deployment, mark, tmp_path / "ran")
    words = await is_lost(deployment, call, mark, tmp_path / "ran", TimeLimitError)
    assert "time limit of 6 seconds" in words


async def test_the_memory_limit(made: Made, tmp_path: Path, mark: str) -> None:
    deployment = made(memory_limit=200 << 20)
    call = await begin(deployment, mark, tmp_path / "ran")
    await deployment.runtime.create_session(new_session(session="other"))
    fits = "python3 -c 'x = bytearray(60 << 20); print(len(x))'"
    assert (await deployment.runtime.run_in_session(BashAction(command=fits, session="other"))).output == "62914560\n"
    # Several processes that are below the limit by themselves.
    grows = "for i in 1 2 3; do python3 -c 'import time; x = bytearray(90 << 20); time.sleep(60)' & done; wait"
    too_much = asyncio.ensure_future(deployment.runtime.run_in_session(BashAction(command=grows, session="other")))
    assert type(await raised(asyncio.wait_for(too_much, 30))) is MemoryLimitError
    words = await is_lost(deployment, call, mark, tmp_path / "ran", MemoryLimitError)
    assert f"memory limit of {200 << 20} bytes" in words


# Containers


async def test_a_container_ends_with_its_actor(made: Made, docker: Engine, bash_only: str, tmp_path: Path) -> None:
    variables = {name: docker.environment[name] for name in ("PATH", "DOCKER_HOST", "DOCKER_CONFIG")}
    image = DockerDeploymentConfig(image=bash_only, pull="never", docker_args=["--network", "none"])
    for how in ("stop", "actor", "server", "time"):
        deployment = made(
            environment=image, runtime_env={"env_vars": variables}, memory_limit=128 << 20,
            time_limit=8 if how == "time" else None,
        )  # fmt: skip
        await deployment.start()
        runtime = deployment.runtime
        await runtime.create_session(new_session())
        seen = await runtime.run_in_session(BashAction(command="echo $BASH; [ -e /work ] || echo elsewhere"))
        assert seen.output.endswith("bash\nelsewhere\n")
        (tmp_path / "file").write_text("in a container")
        await runtime.upload(UploadRequest(source_path=str(tmp_path / "file"), target_path="/there"))
        assert (await runtime.read_file(ReadFileRequest(path="/there"))).content == "in a container"
        await runtime.download("/there", str(tmp_path / how))
        assert (tmp_path / how).read_text() == "in a container"
        ids = docker.docker("ps", "-q").split()
        assert len(ids) == 1
        assert docker.docker("inspect", "-f", "{{.HostConfig.Memory}}", ids[0]) == str(128 << 20)
        if how == "stop":
            await deployment.stop()
            assert not docker.docker("ps", "-aq")
            continue
        stream = runtime.stream_in_session(BashAction(command="echo on; read -t 100 </dev/tty; sleep 100"))
        assert await anext(stream) == "on\n"
        call = asyncio.ensure_future(anext(stream))
        if how == "actor":
            ray.kill(deployment._channel._handle)
        elif how == "server":
            os.kill(deployment._facts["server"], signal.SIGKILL)
        error = await raised(asyncio.wait_for(call, 40))
        assert type(error) is (TimeLimitError if how == "time" else SandboxLostError), repr(error)
        await asyncio.to_thread(until, lambda: not docker.docker("ps", "-aq"))
