"""ModalDeployment with a server in the sandbox: a real swerex-remote, behind a tunnel of `modal_server`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("modal")

from swerex_c.deployment.modal import ModalDeployment
from swerex_c.exceptions import DeploymentStartupError, SandboxLostError, StartupTimeoutError
from swerex_c.runtime.abstract import BashAction, Command, CreateBashSessionRequest
from swerex_c.runtime.remote import RemoteRuntime
from swerex_c.utils.free_port import find_free_port
from tests.support.modal_fixtures import ModalWorld, modal_world, world
from tests.support.wait import until_async, until_dead

__all__ = ["modal_world", "world"]

ROOT = Path(__file__).parents[3]


@pytest.fixture
def image(tmp_path: Path) -> dict[str, str]:
    """What the sandbox's image would have: a program `swerex-remote`."""
    program = tmp_path / "bin" / "swerex-remote"
    program.parent.mkdir()
    program.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from swerex_c.cli.serve import main\nmain(program='swerex-remote')\n"
    )
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}"}


@pytest.fixture
async def make(world: ModalWorld, image: dict[str, str]) -> AsyncIterator[Callable[..., ModalDeployment]]:
    import modal

    made: list[ModalDeployment] = []

    def make(of: type[ModalDeployment] = ModalDeployment, /, **kwargs: Any) -> ModalDeployment:
        more = {"secrets": [modal.Secret.from_dict(image)], **kwargs.pop("modal_sandbox_kwargs", {})}
        made.append(of(**{"image": "debian:12", "modal_sandbox_kwargs": more, **kwargs}))
        made[-1]._port = find_free_port()  # all sandboxes of the tests' server have the same ports
        return made[-1]

    yield make
    await asyncio.gather(*(it.stop() for it in made))


async def use(deployment: ModalDeployment) -> None:
    assert isinstance(deployment.runtime, RemoteRuntime)
    assert await deployment.is_alive()
    await deployment.runtime.create_session(CreateBashSessionRequest(startup_timeout=60))
    await deployment.runtime.run_in_session(BashAction(command="export A=1"))
    assert (await deployment.runtime.run_in_session(BashAction(command="echo $A; pwd"))).output.startswith("1\n")


@pytest.mark.parametrize("v2", ["1", "0"])
async def test_a_server_behind_a_tunnel(
    world: ModalWorld, make: Callable[..., ModalDeployment], monkeypatch: pytest.MonkeyPatch, v2: str
) -> None:
    """With TLS, as Modal's tunnels have it; the image gets pipx."""
    monkeypatch.setenv("MODAL_SANDBOX_V2", v2)
    deployment = make(server=True)
    await deployment.start()
    await use(deployment)
    (request,) = world.calls("SandboxCreateV2" if v2 == "1" else "SandboxCreate")
    (port,) = request["definition"]["open_ports"]["ports"]
    assert port["port"] == deployment._port and not port.get("unencrypted")
    commands = [it["image"]["dockerfile_commands"] for it in world.calls("ImageGetOrCreate")]
    assert any("pipx" in line and "apt-get" in line for lines in commands for line in lines)
    assert ["FROM base", "RUN pipx ensurepath"] in commands
    (token,) = {it.get("SWEREX_AUTH_TOKEN") for it in _secrets(request, world)} - {None}
    assert token and not any(token in word for word in request["definition"]["entrypoint_args"])


def _secrets(request: dict[str, Any], world: ModalWorld) -> list[dict[str, str]]:
    sources = [it["env"]["contents"] for it in request.get("secret_sources", ())]
    named = request["definition"].get("secret_ids", ())
    return sources + [world.order("look")["secrets"][it] for it in named]


async def test_an_unencrypted_tunnel_that_the_caller_asks_for(
    world: ModalWorld, make: Callable[..., ModalDeployment]
) -> None:
    port = find_free_port()
    deployment = make(server=True, install_pipx=False, modal_sandbox_kwargs={"unencrypted_ports": [port]})
    deployment._port = port
    await deployment.start()
    await use(deployment)
    (request,) = world.calls("SandboxCreateV2")
    assert request["definition"]["open_ports"]["ports"] == [{"port": port, "unencrypted": True}]
    commands = [line for it in world.calls("ImageGetOrCreate") for line in it["image"]["dockerfile_commands"]]
    assert not any("pipx" in line for line in commands)


async def test_a_subclass_says_how_its_server_is_started(make: Callable[..., ModalDeployment]) -> None:
    class Own(ModalDeployment):
        def _get_token(self) -> str:
            return "the-key"

        def _start_swerex_cmd(self, token: str) -> str:
            assert token == "the-key"
            return "export OWN=1; " + super()._start_swerex_cmd(token)

    deployment = make(Own)
    await deployment.start()
    await use(deployment)
    assert (await deployment.runtime.execute(Command(command="echo $OWN", shell=True))).stdout == "1\n"


async def test_whoever_replaces_the_command_is_heard(
    make: Callable[..., ModalDeployment], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def command(self: ModalDeployment, token: str) -> str:
        asked.append(token)
        return f"swerex-remote --port {self._port} --auth-token {token}"

    monkeypatch.setattr(ModalDeployment, "_start_swerex_cmd", command)
    deployment = make()
    await deployment.start()
    await use(deployment)
    assert len(asked) == 1


async def test_the_text_of_the_original() -> None:
    deployment = ModalDeployment(image="debian:12")
    arguments = "--port 8880 --auth-token key"
    assert deployment._start_swerex_cmd("key") == f"swerex-remote {arguments} || pipx run swe-rex {arguments}"


async def test_what_a_server_says_that_ends_is_told(make: Callable[..., ModalDeployment]) -> None:
    class Ending(ModalDeployment):
        def _start_swerex_cmd(self, token: str) -> str:
            return "echo on the way; echo no server here >&2; exit 3"

    told = r"(?s)exit code 3.*on the way.*no server here"
    with pytest.raises((SandboxLostError, DeploymentStartupError), match=told):
        await make(Ending).start()


async def test_a_server_that_never_answers(make: Callable[..., ModalDeployment], caplog: Any) -> None:
    class Silent(ModalDeployment):
        def _start_swerex_cmd(self, token: str) -> str:
            return "echo waiting; sleep 1000"

    with pytest.raises(StartupTimeoutError):
        await make(Silent, startup_timeout=5).start()
    assert "Output of the server:\nstdout:\nwaiting\n" in caplog.text


async def test_a_sandbox_that_ends_is_told(world: ModalWorld, make: Callable[..., ModalDeployment]) -> None:
    deployment = make(server=True)
    await deployment.start()
    world.order("end", sandbox=deployment.sandbox.object_id, status="TIMEOUT")
    with pytest.raises(SandboxLostError, match="Container process terminated. .*its time limit was reached"):
        await until_dead(deployment)


@pytest.mark.parametrize("stage", ["SandboxCreateV2", "SandboxGetTunnelsV2", "answer"])
async def test_a_start_is_given_up(world: ModalWorld, make: Callable[..., ModalDeployment], stage: str) -> None:
    kwargs: dict[str, Any] = {}
    if stage == "SandboxGetTunnelsV2":  # those of others are known when it is made
        port = find_free_port()
        kwargs["modal_sandbox_kwargs"] = {"unencrypted_ports": [port]}
    deployment = make(server=True, **kwargs)
    if kwargs:
        deployment._port = port
    world.order("fault", name=stage, delay=2)
    starting = asyncio.ensure_future(deployment.start())
    try:
        await until_async(lambda: world.calls("SandboxCreateV2" if stage == "answer" else stage) or starting.done())
        assert not starting.done()
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
    finally:
        world.order("forgive")
    assert not world.running()
