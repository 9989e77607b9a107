"""This machine as a sandbox: through `env`, or through a container that shares its files and processes."""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from swerex_c.providers.docker.backend import DockerBackend
from swerex_c.runtime.abstract import CreateSessionRequest, CreateSessionResponse
from swerex_c.runtime.sandbox import SandboxRuntime
from swerex_c.sandbox.clients import CommandBackend
from swerex_c.sandbox.session import SandboxSession
from swerex_c.utils import background
from tests.support.docker_engine import Engine
from tests.support.images import Tree

__all__ = ["NO_CAT", "Here", "runtime_in", "shared_container"]

NO_CAT = ('/bin/cat /usr/bin/cat "${BASH_CMDS[cat]-}"', "''")
"""What to replace in the script of loaders by what, so that they find no cat."""


class Here(CommandBackend):
    """This machine. `client` begins the command line; `lost` is the reason why the sandbox is lost."""

    name = "this machine"

    def __init__(self, *client: str, **variables: str) -> None:
        self.client = client or ("env",)
        self.variables = variables
        self.lost: str | None = None
        self.started = 0

    def command(self, argv: Sequence[str], names: Sequence[str], terminal: bool) -> list[str]:
        self.started += not terminal
        return [*self.client, *argv]

    async def why_lost(self) -> str | None:
        return self.lost

    def environment(self) -> dict[str, str]:
        return dict(os.environ) | self.variables


class _Learned(SandboxRuntime):
    """A runtime whose new sessions know how their shell waits at its prompt, which others learn while they are idle."""

    async def create_session(self, request: CreateSessionRequest) -> CreateSessionResponse:
        answer = await super().create_session(request)
        session = self.sessions[request.session]
        assert isinstance(session, SandboxSession)
        while session._prompt is None:
            await background.run(session._learn())
        return answer


def runtime_in(place: str) -> SandboxRuntime:
    """Return a runtime with this process's environment and directory, `here` or in a `shared_container`."""
    if place == "here":
        return _Learned(Here())
    passed = [word for name in os.environ if not name.startswith("DOCKER_") for word in ("-e", name)]
    return _Learned(DockerBackend(place, arguments=["-w", os.getcwd(), *passed]))


@contextmanager
def shared_container(engine: Engine) -> Iterator[str]:
    """Start a container with this machine's files, processes and users, and terminals of its own. Yields its id."""
    image, tree, mounts = f"swx-shared-{uuid.uuid4().hex[:8]}", Tree(), []
    for entry in sorted(Path("/").iterdir()):
        if entry.name in ("dev", "proc", "sys"):
            continue
        if entry.is_symlink():
            tree.add(entry.name, kind=b"2", link=os.readlink(entry))
        elif stat.S_ISDIR(entry.stat().st_mode):
            tree.directories(entry.name)
            mounts += ["-v", f"{entry}:{entry}"]
    engine.docker("import", "-", image, input=tree.whole())
    options = ["--pid", "host", "--network", "none", "--pull", "never"]
    container = engine.docker("run", "-d", *options, *mounts, image, "sleep", "infinity")
    try:
        yield container
    finally:
        engine.docker("rm", "-f", container, check=False)
