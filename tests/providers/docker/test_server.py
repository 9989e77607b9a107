"""Test servers in containers, and programs that `exec_shell` starts."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from swerex_c.deployment.docker import DockerDeployment
from swerex_c.exceptions import DeploymentStartupError, SandboxLostError, StartupTimeoutError
from swerex_c.providers import server_bundle
from swerex_c.runtime.abstract import IsAliveResponse, ReadFileRequest, WriteFileRequest
from swerex_c.runtime.config import RemoteRuntimeConfig
from swerex_c.runtime.remote import RemoteRuntime
from swerex_c.utils.free_port import find_free_port
from tests.support.docker_deployments import NO_NETWORK, Make, make, names, reach
from tests.support.docker_engine import Engine
from tests.support.original import our_environment
from tests.support.session import Session, says
from tests.support.wait import until

__all__ = ["make", "reach"]

# The shell of the caller's choice

SHELL = ["bash", "-c", 'export SEEN="by the shell"; eval "$0"']


@pytest.mark.parametrize("more", [[], ["-t"]])
async def test_programs_are_started_by_the_callers_shell(make: Make, reach: Engine, more: list[str]) -> None:
    deployment = make(exec_shell=SHELL, docker_args=[*NO_NETWORK, *more])
    await deployment.start()
    runtime = deployment.runtime
    assert await says(deployment, 'echo "$SEEN"') == "by the shell\n"
    assert "SEEN=by the shell" in await says(deployment, "mapfile -d '' a </proc/1/environ; printf '%s,' \"${a[@]}\"")
    session = Session(runtime)
    await session.create()
    for command, output in (('echo "$SEEN"', "by the shell\n"), ('echo "a\'b\\\\c!@"', "a'b\\c!@\n")):
        await session.gives(command, output)
    await runtime.write_file(WriteFileRequest(path="/tmp/f", content="text\n"))
    assert (await runtime.read_file(ReadFileRequest(path="/tmp/f"))).content == "text\n"
    await deployment.stop()


# A server in the container


async def test_the_server_is_copied_into_the_container(make: Make, reach: Engine, debian_py: str) -> None:
    deployment = make(
        image=debian_py, server=True, docker_args=["--network", "host"], startup_timeout=90, exec_shell=SHELL
    )
    await deployment.start()
    assert isinstance(deployment.runtime, RemoteRuntime) and deployment._config.port
    assert await says(deployment, "echo $((6 * 7)); echo ${SWEREX_AUTH_TOKEN-none} $SEEN") == "42\nnone by the shell\n"
    key = deployment.runtime._config.auth_token
    assert key not in reach.docker("inspect", "-f", "{{.Config.Cmd}}", str(deployment.container_name))
    reach.docker("kill", str(deployment.container_name))
    until(lambda: deployment._container_process.poll() is not None)
    with pytest.raises(SandboxLostError, match="(?s)Container process terminated.*Listening on"):
        await deployment.is_alive(timeout=60)


async def test_a_server_that_cannot_be(make: Make, reach: Engine, bash_min: str) -> None:
    with pytest.raises(DeploymentStartupError, match="(?s)Container process terminated.*no suitable Python"):
        await make(image=bash_min, server=True).start()
    for server in (True, None):  # None: the subclass says enough
        with pytest.raises(
            DeploymentStartupError, match="(?s)Container process terminated.*stderr:\nsaid by the caller"
        ):
            await make(Silent, image=bash_min, server=server).start()
    deployment = make(Silent, image=bash_min, startup_timeout=2)
    deployment.words = "echo waits >&2; sleep 1000"
    with pytest.raises(StartupTimeoutError, match="Runtime did not start within"):
        await deployment.start()
    deployment = make(Silent, image=bash_min, server=False)
    await deployment.start()
    assert await says(deployment, "echo none is started") == "none is started\n"
    await deployment.stop()
    assert names(reach) == []


class Silent(DockerDeployment):
    words = "echo said by the caller >&2; exit 3"

    def _get_swerex_start_cmd(self, token: str) -> list[str]:
        return ["/bin/sh", "-c", self.words]


async def test_replaced_methods_of_the_class_are_used(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for shell in (["/bin/sh", "-c"], ["/bin/bash", "-lc"]):
        deployment = make(exec_shell=shell)
        *begin, text = deployment._get_swerex_start_cmd("the-key")
        assert begin == shell and text.startswith("swerex-remote --auth-token the-key || ")
    with pytest.raises(ValueError, match="exec_shell"):
        make(exec_shell=[])
    assert not deployment._serves
    monkeypatch.setattr(DockerDeployment, "_get_swerex_start_cmd", lambda self, token: ["/bin/sh", "-c", "exit 3"])
    assert deployment._serves and make(server=False)._serves is False
    monkeypatch.undo()
    deployment._get_swerex_start_cmd = lambda token: []  # type: ignore[method-assign]
    assert deployment._serves


async def test_a_subclass_with_a_start_of_its_own(make: Make, tmp_path: Path) -> None:
    """It uses the private names of the original's `start`, with a server outside of any container."""

    class Own(DockerDeployment):
        async def start(self) -> None:  # type: ignore[override]
            self._pull_image()
            self._container_name = self._get_container_name()
            self._hooks.on_custom_step("Starting runtime")
            token = self._get_token()
            server = [sys.executable, "-m", "swerex_c.server", "--auth-token", token, "--port", str(self._config.port)]
            self._container_process = subprocess.Popen(
                [*server, "--host", "127.0.0.1"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=our_environment()
            )
            self._runtime = RemoteRuntime.from_config(
                RemoteRuntimeConfig(port=self._config.port, timeout=self._runtime_timeout, auth_token=token)
            )
            await self._wait_until_alive(timeout=60)

    deployment = make(Own, port=find_free_port())
    with pytest.raises(RuntimeError):
        await deployment.is_alive()
    await deployment.start()
    assert await deployment.is_alive(timeout=60) == IsAliveResponse(is_alive=True)
    process = deployment._container_process
    process.send_signal(signal.SIGKILL)
    process.wait()
    with pytest.raises(RuntimeError, match="Container process terminated"):
        await deployment.is_alive(timeout=60)
    await deployment.stop()
    assert deployment._container_process is None and deployment._container_name is None


def test_the_copied_server_has_only_what_it_needs() -> None:
    import io
    import tarfile

    with tarfile.open(fileobj=io.BytesIO(server_bundle.archive())) as tar:
        found = tar.getnames()
        assert tar.getmember(".swerex_c/lib/swerex_c/_supervisor").mode == 0o755
    top = {name.split("/")[2] for name in found if name.startswith(".swerex_c/lib/")}
    assert {"swerex_c", "pydantic_core", "uvicorn", "starlette"} <= top
    assert not {"aiohttp", "pytest", "rich", "typer"} & top and "bin" not in top
    assert all(name.startswith(".swerex_c/") and ".." not in name for name in found)
