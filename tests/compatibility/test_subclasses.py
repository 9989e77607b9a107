"""What callers subclass, replace and build upon, as they write it: by the names of the original, with the swap on."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from swerex_c.runtime.remote import RemoteRuntime
from swerex_c.utils.wait import _wait_until_alive
from tests.support import images, needs, raw_http
from tests.support.docker_engine import Engine
from tests.support.original import run_python
from tests.support.server_process import KEY, serving

pytestmark = pytest.mark.timeout(400)  # the first one may have an image to make

SWAP = "import swerex_c\nswerex_c.install()\n"

START_COMMAND = """
import asyncio, json, sys
from swerex.deployment.docker import DockerDeployment
from swerex.deployment.hooks.abstract import DeploymentHook
from swerex.deployment.hooks.status import SetStatusDeploymentHook
from swerex.runtime.abstract import BashAction, Command, CreateBashSessionRequest
from swerex.runtime.remote import RemoteRuntime

image = sys.argv[1]


class OwnStart(DockerDeployment):
    "Starts the server that the image has, in its own way."

    tokens = []

    def _get_token(self):
        return "the-callers-token"

    def _get_container_name(self):
        return "own-" + super()._get_container_name()

    def _get_swerex_start_cmd(self, token):
        self.tokens.append(token)
        command = f"swerex-remote --host 127.0.0.1 --port {self._config.port} --auth-token {token}"
        return ["/bin/sh", "-c", f"STARTED_BY=me exec {command}"]


class Steps(DeploymentHook):
    def __init__(self):
        self.seen = []

    def on_custom_step(self, message):
        self.seen.append(message)


async def day():
    deployment = OwnStart(image=image, pull="never", docker_args=["--network", "host"])
    steps, status = Steps(), []
    deployment.add_hook(steps)
    deployment.add_hook(SetStatusDeploymentHook("me", lambda name, message: status.append((name, message))))
    assert deployment._runtime is None and deployment._container_process is None
    await deployment.start()
    try:
        assert isinstance(deployment.runtime, RemoteRuntime)
        assert deployment.runtime._config.auth_token == deployment.tokens[0] == "the-callers-token"
        assert deployment.container_name == deployment._container_name and deployment.container_name.startswith("own-")
        assert deployment._container_process.poll() is None
        assert await deployment.is_alive(timeout=10)
        deployment.runtime._config.timeout = 20
        await deployment.runtime.create_session(CreateBashSessionRequest())
        said = await deployment.runtime.run_in_session(BashAction(command="echo $STARTED_BY $((6 * 7))"))
        assert (said.exit_code, said.output) == (0, "me 42\\n"), said
        assert steps.seen and status == [("me", message) for message in steps.seen]
    finally:
        await deployment.stop()
    assert deployment._runtime is None and deployment._container_process is None
    await deployment.stop()


asyncio.run(day())
"""

OWN_RUNTIME = """
import asyncio
import pytest
from swerex.deployment.abstract import AbstractDeployment
from swerex.runtime.abstract import AbstractRuntime, BashAction, BashObservation, Observation, ReadFileRequest


class Recorder(AbstractRuntime):
    async def run_in_session(self, action):
        return Observation(output=action.command.upper(), exit_code=0)

    async def read_file(self, request):
        raise FileNotFoundError(request.path)

    async def answer(self, *arguments, **more):
        return "fine"

    is_alive = create_session = close_session = execute = write_file = upload = close = answer


class Deployment(AbstractDeployment):
    runtime = None

    def __init__(self):
        "Does not call that of the base class."

    async def start(self):
        self.runtime = Recorder()

    add_hook = is_alive = stop = start


async def day():
    async with Deployment() as deployment:
        runtime = deployment.runtime
        seen = await runtime.run_in_session(BashAction(command="say", set_last_action=True))
        assert isinstance(seen, BashObservation) and seen.output == "SAY", seen
        assert (await runtime.run(BashAction(command="more"))).output == "MORE"
        with pytest.raises(FileNotFoundError, match="^/nowhere$"):
            await runtime.read_file(ReadFileRequest(path="/nowhere"))


asyncio.run(day())
"""

OWN_REQUEST = """
import asyncio, sys
import pytest
from swerex.runtime.abstract import BashAction, Command, CreateBashSessionRequest
from swerex.runtime.remote import RemoteRuntime

port, token = int(sys.argv[1]), sys.argv[2]


class Counted(RemoteRuntime):
    "Sees every request on its way, and answers one by itself."

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seen = []

    async def _request(self, endpoint, payload, output_class, num_retries=0):
        self.seen.append(endpoint)
        if endpoint == "execute" and payload.command == "invent":
            return output_class(stdout="invented", exit_code=0)
        return await super()._request(endpoint, payload, output_class, num_retries)


async def day():
    runtime = Counted(host="http://127.0.0.1", port=port, auth_token=token, timeout=10)
    assert runtime._api_url == f"http://127.0.0.1:{port}" and runtime._headers == {"X-API-Key": token}
    await runtime.wait_until_alive(timeout=20)
    await runtime.create_session(CreateBashSessionRequest())
    assert (await runtime.run_in_session(BashAction(command="echo $((6 * 7))"))).output == "42\\n"
    assert (await runtime.execute(Command(command="invent"))).stdout == "invented"
    assert (await runtime.execute(Command(command=["printf", "real"]))).stdout == "real"
    await runtime.close()
    expected = ["create_session", "run_in_session", "execute", "execute", "close"]
    assert [endpoint for endpoint in runtime.seen if endpoint != "is_alive"] == expected, runtime.seen

    patched = RemoteRuntime(host="http://127.0.0.1", port=port, auth_token=token, timeout=10)

    async def refuse(endpoint, payload, output_class, num_retries=0):
        raise RuntimeError(f"no {endpoint} today")

    patched._request = refuse
    with pytest.raises(RuntimeError, match="^no execute today$"):
        await patched.execute(Command(command="true"))


asyncio.run(day())
"""

LOGGER = """
import logging, sys
from functools import partial
import swerex.utils.log as log

loaded = [name for name in sys.modules if name.startswith(("swerex.runtime", "swerex.deployment", "swerex_c.runtime"))]
assert loaded == [], loaded
made = []


def get_logger(name, *, emoji=""):
    made.append((name, emoji))
    return logging.getLogger(f"mine.{name}")


log.get_logger = partial(get_logger, emoji="!")
from swerex.deployment.config import DummyDeploymentConfig, LocalDeploymentConfig, get_deployment
from swerex.runtime.remote import RemoteRuntime

local = get_deployment(LocalDeploymentConfig())
assert local.logger.name == "mine.rex-deploy", local.logger
assert get_deployment(DummyDeploymentConfig()).logger.name == "mine.rex-deploy"
assert RemoteRuntime(auth_token="").logger.name == "mine.rex-runtime"
assert made and all(emoji == "!" and name.startswith("rex-") for name, emoji in made), made
"""

FLAGS = """
import sys
from pydantic import BaseModel, Field
from pydantic_settings import BaseSettings, CliApp, SettingsConfigDict
from swerex.deployment.config import (
    DeploymentConfig, DockerDeploymentConfig, LocalDeploymentConfig, ModalDeploymentConfig, RemoteDeploymentConfig,
)


class Environment(BaseModel):
    deployment: DeploymentConfig = Field(
        default_factory=lambda: DockerDeploymentConfig(image="python:3.11", python_standalone_dir="/root")
    )


class Run(BaseSettings, cli_implicit_flags=False):
    model_config = SettingsConfigDict(extra="forbid", env_prefix="CALLER_", cli_parse_args=False)
    env: Environment = Field(default_factory=Environment)


def parsed(*arguments):
    return CliApp.run(Run, cli_args=list(arguments)).env.deployment


assert type(parsed()) is DockerDeploymentConfig and parsed().python_standalone_dir == "/root"
assert type(parsed("--env.deployment.type=local")) is LocalDeploymentConfig
modal = parsed("--env.deployment.type=modal", "--env.deployment.image=x", "--env.deployment.install_pipx=False")
assert type(modal) is ModalDeploymentConfig and (modal.image, modal.install_pipx) == ("x", False)
remote = parsed("--env.deployment.type=remote", "--env.deployment.auth_token=t", "--env.deployment.port=1")
assert type(remote) is RemoteDeploymentConfig and remote.port == 1
docker = parsed(
    "--env.deployment.type=docker", "--env.deployment.image=image", "--env.deployment.pull=never",
    '--env.deployment.docker_args=["--platform=linux/amd64", "--memory=1g"]', "--env.deployment.remove_images=True",
)
assert type(docker) is DockerDeploymentConfig
assert (docker.image, docker.pull, docker.remove_images) == ("image", "never", True)
assert (docker.platform, docker.docker_args) == ("linux/amd64", ["--memory=1g"])


class Mine(DockerDeploymentConfig):
    image: str = "mine"
    python_standalone_dir: str | None = "/root"


assert Mine().get_deployment()._config.image == "mine"
"""


def run(code: str, *arguments: str, **environment: str) -> None:
    """The code runs without an error, with ours in the original's place."""
    done = run_python(SWAP + code, *arguments, **environment)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.xdist_group("engine")
def test_a_start_command_of_ones_own(docker: Engine) -> None:
    """In an image that has the original's server."""
    with needs.else_skipped():
        image = images.provide(docker.docker, "debian-rex")
    run(START_COMMAND, image, **docker.environment)


@pytest.mark.parametrize("code", [OWN_RUNTIME, LOGGER], ids=["own runtime", "logger"])
def test_what_callers_write(code: str) -> None:
    """A runtime and a deployment, and a logger that is replaced before anything is imported."""
    run(code)


def test_a_request_of_ones_own(tmp_path: Path) -> None:
    with serving(tmp_path / "log") as server:
        run(OWN_REQUEST, str(server.port), KEY)


def test_flags_of_a_command_line() -> None:
    pytest.importorskip("pydantic_settings")
    run(FLAGS)


@pytest.mark.parametrize("slow", [0.0, 0.3], ids=["at once", "after the client's patience"])
async def test_a_server_of_the_original_is_found_soon_after_it_begins(slow: float) -> None:
    """As in a container whose port is answered by the engine before there is a server: with little patience."""
    begin, asked = time.monotonic(), list[str]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if time.monotonic() - begin > 1:
            path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
            asked.append(path)
            alive = path == "/is_alive"
            await asyncio.sleep(0 if alive else slow)
            body = b'{"is_alive": true, "message": ""}' if alive else b'{"detail": "Not Found"}'
            head = f"HTTP/1.1 {'200 OK' if alive else '404 Not Found'}\r\nserver: uvicorn\r\n"
            head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
        writer.close()

    async with raw_http.serving(answer) as url:
        await _wait_until_alive(RemoteRuntime(host=url, auth_token="t").is_alive, timeout=60, function_timeout=0.15)
        assert asked.count("/wire") <= 3
