"""Whatever dies, callers get an error that says what and where, soon; nothing runs twice, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
import ray

from swerex_c.deployment.config import DockerDeploymentConfig
from swerex_c.deployment.ray import RayDeployment
from swerex_c.exceptions import MemoryLimitError, SandboxLostError, TimeLimitError
from swerex_c.models import BashAction, BashObservation, Command, ReadFileRequest, UploadRequest
from tests.support.docker_engine import Engine
from tests.support.original import run_python
from tests.support.processes import alive
from tests.support.ray_cluster import Made, Nodes, new_session, raised, running
from tests.support.wait import DEADLINE, until, until_async


async def begin(deployment: RayDeployment, mark: str, ran: Path) -> asyncio.Future[BashObservation]:
    """A command under way that writes each time it is run, and a process that does all to be left alone."""
    await deployment.start()
    await deployment.runtime.create_session(new_session())
    hide = f"(trap '' HUP TERM INT; exec setsid env -i nohup sleep {mark} >/dev/null 2>&1) &"
    await deployment.runtime.run_in_session(BashAction(command=hide))
    action = BashAction(command=f"echo ran >>{ran}; sleep {mark}")
    call = asyncio.ensure_future(deployment.runtime.run_in_session(action))
    await until_async(lambda: ran.exists() and len(running(f"sleep {mark}")) == 2)
    return call


async def is_lost(
    deployment: RayDeployment, call: asyncio.Future[BashObservation], mark: str, ran: Path,
    kind: type[SandboxLostError] = SandboxLostError,
) -> str:  # fmt: skip
    """What it must be like afterwards; the error's words."""
    channel = deployment._channel
    error = await raised(asyncio.wait_for(call, DEADLINE))
    assert type(error) is kind, repr(error)
    assert channel._handle._actor_id.hex() in str(error) and " on node " in str(error)
    with pytest.raises(SandboxLostError):
        await deployment.runtime.run_in_session(BashAction(command="echo 2"))
    with pytest.raises(SandboxLostError):
        await deployment.runtime.execute(Command(command=["true"]))
    assert not await deployment.is_alive()
    await until_async(lambda: not running(mark))
    assert ran.read_text() == "ran\n"
    await asyncio.wait_for(deployment.stop(), DEADLINE)
    return str(error)


@pytest.mark.parametrize("what", ["ray.kill", "actor killed", "actor crashed", "server", "supervisor"])
async def test_a_process_dies(made: Made, tmp_path: Path, mark: str, what: str) -> None:
    """Callers in several threads are all told; and another may be started."""
    deployment = made()

    def wait() -> BaseException:
        return asyncio.run(raised(deployment.runtime.execute(Command(command=["sleep", mark]))))

    call = await begin(deployment, mark, tmp_path / "ran")
    others = [asyncio.ensure_future(asyncio.to_thread(wait)) for _ in range(3)]
    await until_async(lambda: len(running(f"sleep {mark}")) == 5)
    facts = deployment._facts
    pids = {"actor": facts["pid"], "supervisor": facts["supervisor"], "server": facts["server"]}
    assert len(set(pids.values())) == 3
    if what == "ray.kill":
        ray.kill(deployment._channel._handle)
    else:
        os.kill(pids[what.split()[0]], signal.SIGSEGV if what == "actor crashed" else signal.SIGKILL)
    if what == "supervisor":
        # The one that a process may outlive: what is left is what ignores the hang-up.
        assert type(await raised(asyncio.wait_for(call, DEADLINE))) is SandboxLostError
        await until_async(lambda: len(running(f"sleep {mark}")) <= 1)
        for pid in running(f"sleep {mark}"):
            os.kill(pid, signal.SIGKILL)
        return
    words = await is_lost(deployment, call, mark, tmp_path / "ran")
    assert what != "server" or "was killed by signal 9" in words
    assert {type(error) for error in await asyncio.wait_for(asyncio.gather(*others), DEADLINE)} == {SandboxLostError}
    await until_async(lambda: not any(map(alive, pids.values())))
    await deployment.start()
    assert (await deployment.runtime.execute(Command(command=["echo", "new"]))).stdout == "new\n"


async def test_a_node_dies(nodes: Nodes, made: Made, tmp_path: Path, mark: str) -> None:
    node = nodes.add(doomed=1)
    deployment = made(resources={"doomed": 0.1})
    call = await begin(deployment, mark, tmp_path / "ran")
    other = made()
    await other.start()
    os.kill(node.all_processes["raylet"][0].process.pid, signal.SIGKILL)  # as if the machine were lost
    words = await is_lost(deployment, call, mark, tmp_path / "ran")
    assert node.node_id in words
    assert await other.is_alive()


LEFT = """
import asyncio, os, ray, sys
from swerex_c.deployment.config import RayDeploymentConfig
from swerex_c.models import BashAction, Command, CreateBashSessionRequest, UploadRequest
from tests.support.ray_cluster import actors, running
from tests.support.wait import until_async
address, how, mark = sys.argv[1:]
def deployment(**more):
    return RayDeploymentConfig(num_cpus=0.1, address=address, **more).get_deployment()  # which connects
async def told(name, work):
    try:
        print(name, "gave", await asyncio.wait_for(work, 60), flush=True)
    except BaseException as error:
        print(name, type(error).__name__, "shut down in this process" in str(error), flush=True)
async def stream(runtime):
    async for _ in runtime.stream_in_session(BashAction(command="true")):
        pass
async def main():
    one = deployment()
    await one.start()
    runtime, channel = one.runtime, one._channel
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=30))
    hide = f"(trap '' HUP TERM; exec setsid env -i nohup sleep {mark} >/dev/null 2>&1) &"
    await runtime.run_in_session(BashAction(command=hide))
    if how == "start":
        two = deployment(resources={"far": 4}, startup_timeout=60)
        first = deployment(resources={"far": 4}, startup_timeout=60)
        await first.start()
        starting = asyncio.ensure_future(two.start())
        await until_async(lambda: two._channel and len(actors()) == 3)  # with that of `one`
        ray.shutdown()
        await told("start", starting)
    else:
        pending = asyncio.ensure_future(runtime.execute(Command(command=["sleep", mark])))
        await until_async(lambda: len(running(f"sleep {mark}")) == 2)
        if how == "killed":
            os.kill(os.getpid(), 9)
        ray.shutdown()
        if how == "again":
            ray.init(address=address, log_to_driver=False)
            job = ray.get_runtime_context().get_job_id()
        await told("pending", pending)
        copy = UploadRequest(source_path="/etc/hostname", target_path="/tmp/x")
        for call in (runtime.execute(Command(command=["true"])), stream(runtime), runtime.upload(copy)):
            channel._error = None  # as if nobody had noticed yet
            await told(call.__name__, call)
        channel._error = None
        print("alive", await runtime.is_alive(), flush=True)
        if how == "again":
            assert job == ray.get_runtime_context().get_job_id()
            ray.shutdown()
        channel._error = None
    await one.stop()
    print("initialized", ray.is_initialized(), flush=True)
    os._exit(0)
asyncio.run(main())
"""


@pytest.mark.timeout(240)  # it starts Ray's workers on a machine that may be busy
@pytest.mark.parametrize("how", ["killed", "shutdown", "again", "start"])
async def test_a_process_dies_or_leaves_the_cluster(nodes: Nodes, mark: str, how: str) -> None:
    """It is told so, Ray does not start itself again, and nothing is left."""
    nodes_before = len(running("raylet/raylet"))
    done = await asyncio.to_thread(run_python, LEFT, nodes.address, how, mark)
    lost = [f"{it} SandboxLostError True" for it in ("pending", "execute", "stream", "upload")]
    expected = {"killed": [], "start": ["start DeploymentStartupError True", "initialized False"]}.get(
        how, [*lost, "alive is_alive=False message=", "initialized False"]
    )
    told = ("start ", "pending ", "execute ", "stream ", "upload ", "alive ", "initialized ")
    lines = [line for line in done.stdout.splitlines() if line.startswith(told)]
    assert len(lines) == len(expected) and all(map(str.startswith, lines, expected)), (done.stdout, done.stderr)
    assert (done.returncode == -signal.SIGKILL) is (how == "killed"), done.stderr
    await until_async(lambda: not running(f"sleep {mark}"))
    assert len(running("raylet/raylet")) == nodes_before


# Limits


async def test_a_server_that_hangs_is_not_waited_for_long(made: Made) -> None:
    deployment = made()
    await deployment.start()
    os.kill(deployment._facts["server"], signal.SIGSTOP)
    await asyncio.wait_for(deployment._channel.end(), 20)


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
    too_much = deployment.runtime.run_in_session(BashAction(command=grows, session="other"))
    assert type(await raised(asyncio.wait_for(too_much, DEADLINE))) is MemoryLimitError
    words = await is_lost(deployment, call, mark, tmp_path / "ran", MemoryLimitError)
    assert f"memory limit of {200 << 20} bytes" in words


SHARING = """
import os, signal
from swerex_c.providers.ray import supervisor
limit, (read, write) = 150 << 20, os.pipe()
child = os.fork()
if not child:
    os.setpgid(0, 0)
    pages = bytearray(100 << 20)
    os.fork()
    os.write(write, b".")
    signal.pause()
found = b""
while len(found) < 2:
    found += os.read(read, 1)
resident = sum(map(supervisor._resident, supervisor._descendants()))
print(resident > limit, supervisor._takes_more_than(limit), supervisor._takes_more_than(limit // 3))
os.killpg(child, 9)
"""


def test_pages_that_several_share_count_once() -> None:
    """A process that forks has its pages twice, and takes them once."""
    assert run_python(SHARING).stdout == "True False True\n"


# Containers


@pytest.mark.parametrize("how", ["stop", "actor", "server", "time"])
async def test_a_container_ends_with_its_actor(
    made: Made, docker: Engine, bash_only: str, tmp_path: Path, how: str
) -> None:
    variables = {name: docker.environment[name] for name in ("PATH", "DOCKER_HOST", "DOCKER_CONFIG")}
    image = DockerDeploymentConfig(image=bash_only, pull="never", docker_args=["--network", "none"])
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
    await runtime.download("/there", str(tmp_path / "back"))
    assert (tmp_path / "back").read_text() == "in a container"
    (container,) = docker.docker("ps", "-q").split()
    assert docker.docker("inspect", "-f", "{{.HostConfig.Memory}}", container) == str(128 << 20)
    if how == "stop":
        await deployment.stop()
    else:
        stream = runtime.stream_in_session(BashAction(command="echo on; read -t 100 </dev/tty; sleep 100"))
        assert await anext(stream) == "on\n"
        call = asyncio.ensure_future(anext(stream))
        if how == "actor":
            ray.kill(deployment._channel._handle)
        elif how == "server":
            os.kill(deployment._facts["server"], signal.SIGKILL)
        error = await raised(asyncio.wait_for(call, DEADLINE))
        assert type(error) is (TimeLimitError if how == "time" else SandboxLostError), repr(error)
        await asyncio.to_thread(until, lambda: not docker.docker("ps", "-aq"))
    assert not docker.docker("ps", "-aq")
