"""Client of a container engine's command line.

It runs, lists and removes containers, pulls and builds images, and says what a refusal means.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from swerex_c.exceptions import DeploymentStartupError, DockerPullError, SwerexException
from swerex_c.providers import ownership
from swerex_c.providers.docker.backend import DockerBackend, PodmanBackend, client_environment
from swerex_c.providers.orphans import OwnedSandbox
from swerex_c.sandbox.clients import CompletedCommand, run_command
from swerex_c.utils.visible import visible
from swerex_c.utils.wait import settle

__all__ = ["Engine"]

_ASK_SECONDS = 30.0
"""Seconds to wait for an engine's answer to a light request, such as a list, and for ending a container."""

_SETTLE_SECONDS = 4.0
"""Seconds for which a cancelled start waits to learn whether the engine has made the container."""

_LOG_SECONDS = 10.0
"""Seconds to wait for the output of a container."""

_LOG_LINES = 50
"""Maximum number of lines of a container's output to report; the last ones."""

_NO_IMAGE = ("no such image", "unable to find image", "image not known", "no such object")
_OTHER_PLATFORM = ("does not match the specified platform", "does not match the expected platform", "no image found")
_NO_PROGRAM = ("executable file not found", "no such file or directory")
_NO_ENGINE = ("cannot connect to the docker daemon", "is the docker daemon running", "error during connect")
_RUNS = ("running", "paused", "restarting", "up")
_NO_CONTAINER = ("no such container", "no container with name or id")
_NOT_RUNNING = (*_NO_CONTAINER, "is not running", "can only kill running")


class Engine:
    """Docker or Podman, through its command."""

    def __init__(self, runtime: str, environment: Mapping[str, str] | None = None) -> None:
        """Create a client of an engine, without running its command yet.

        Args:
            runtime: the command, "docker" or "podman".
            environment: the command's environment; a copy of this process's if None.
        """
        self.runtime = runtime
        self.environment = client_environment(environment)

    async def ask(self, *words: str, timeout: float | None = _ASK_SECONDS, **how: Any) -> CompletedCommand:
        """Run the command once, and return its result whatever its exit code is.

        Raises:
            DeploymentStartupError: if there is no such command.
            TimeoutError: if it does not end in time.
        """
        try:
            return await run_command([self.runtime, *words], environment=self.environment, timeout=timeout, **how)
        except TimeoutError:
            raise
        except OSError as error:
            raise self._not_run(error) from None

    def _not_run(self, error: OSError) -> DeploymentStartupError:
        msg = f"The command {self.runtime!r} cannot be run ({error.strerror}): install it, or add it to PATH"
        return DeploymentStartupError(msg)

    # Images

    async def has_image(self, image: str) -> bool:
        """Check whether an image is on this machine.

        Raises:
            DeploymentStartupError: if there is no such command, or its engine cannot be reached.
        """
        result = await self.ask("image", "inspect", "-f", "{{.Id}}", image)
        if result.code and (error := self._out_of_reach(result)):
            raise error
        return result.code == 0

    async def pull(self, image: str, platform: str | None) -> None:
        """Pull an image.

        Raises:
            DockerPullError: if the engine refuses.
            DeploymentStartupError: if the engine cannot be reached.
        """
        words = ["pull", *(["--platform", platform] if platform else []), image]
        result = await self.ask(*words, timeout=None)
        if result.code:
            text = visible((result.stderr + b"\n" + result.stdout).decode(errors="replace").strip() or result.message)
            raise self._out_of_reach(result) or DockerPullError(f"Failed to pull image {image}. {text}")

    async def build(self, words: Sequence[str], dockerfile: bytes, what: str) -> str:
        """Build an image from a Dockerfile that uses no other file, and return its id.

        Raises:
            DeploymentStartupError: if the build fails, with the end of its output.
        """
        result = await self.ask("build", "-q", *words, "-", timeout=None, input=dockerfile)
        *_, image = ["", *result.stdout.decode(errors="replace").split()]
        if result.code or not image:
            text = (result.stdout + b"\n" + result.stderr).decode(errors="replace").strip()[-4000:]
            raise self._out_of_reach(result) or DeploymentStartupError(f"{what} failed: {text or result.message}")
        return image

    async def remove_image(self, image: str) -> str | None:
        """Remove an image; return None, or why it failed."""
        try:
            result = await self.ask("rmi", image)
        except (TimeoutError, DeploymentStartupError) as error:
            return str(error)
        missing = any(sign in result.message.lower() for sign in _NO_IMAGE)
        return result.message if result.code and not missing else None

    # Containers

    def is_docker(self) -> bool:
        """Check whether the command is Docker's own client.

        A script or Podman may have the same name.
        """
        path = shutil.which(self.runtime, path=self.environment.get("PATH"))
        if path is None or "podman" in (self.runtime, os.path.basename(os.path.realpath(path))):
            return False
        with contextlib.suppress(OSError), open(path, "rb") as file:
            return file.read(2) != b"#!"
        return False

    async def launch(self, words: Sequence[str], image: str, greeting: bytes = b"") -> bytes:
        """Run, create or start a container, and return the rest of the line of its greeting, if there is one.

        If this is cancelled, it waits up to `_SETTLE_SECONDS` for the engine's answer: a container whose creation was
        only requested cannot be removed.

        Args:
            words: the command line, with the subcommand.
            greeting: if not empty, wait for a line of the container's output that begins with this, then leave it.
                This works only with Docker, whose client can be killed because the container runs under another
                process. Podman's client must run to completion.

        Raises:
            DockerPullError: if the image is not on this machine, or for another platform.
            DeploymentStartupError: if it failed for another reason.
        """
        result = await settle(self.ask(*words, timeout=None, until=greeting), _SETTLE_SECONDS)
        line, whole, _ = (result.stdout.partition(greeting)[2] if greeting else b"\n").partition(b"\n")
        if result.code or not whole:
            raise self._refused(result, image, runs_bash=words[0] == "run")
        return line

    def _refused(self, result: CompletedCommand, image: str, *, runs_bash: bool) -> DeploymentStartupError:
        """Return the error for a container that could not be made."""
        words = result.message.replace(" Run 'docker run --help' for more information", "")
        lower = words.lower()
        if any(sign in lower for sign in (*_NO_IMAGE, *_OTHER_PLATFORM)):
            return DockerPullError(f"The image {image!r} is not on this machine, and was not pulled: {words}")
        if runs_bash and "bash" in lower and any(sign in lower for sign in _NO_PROGRAM):
            msg = f"The image {image!r} has no bash, which sessions need: install bash in it, or use another image"
            return DeploymentStartupError(f"{msg} ({words})")
        return self._out_of_reach(result) or DeploymentStartupError(f"Cannot start the container: {words}")

    def _out_of_reach(self, result: CompletedCommand) -> DeploymentStartupError | None:
        if any(sign in result.message.lower() for sign in _NO_ENGINE):
            return DeploymentStartupError(f"The engine of {self.runtime!r} cannot be reached: {result.message}")
        return None

    def waiter(self, container: str) -> subprocess.Popen[bytes]:
        """Return a client that ends when a container does. It starts in a few milliseconds.

        Raises:
            DeploymentStartupError: if there is no such command.
        """
        try:
            return subprocess.Popen(
                [self.runtime, "wait", container],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=self.environment,
                start_new_session=True,
            )
        except OSError as error:
            raise self._not_run(error) from None

    async def port(self, container: str, inner: int) -> int | None:
        """Return the port of this machine that a container's port was published at; None if it is not."""
        result = await self.ask("port", container, f"{inner}/tcp")
        found = re.match(rb"\S*:(\d{1,5})\s", result.stdout)
        return int(found[1]) if result.code == 0 and found else None

    async def logs(self, container: str) -> str:
        """Return the end of a container's output, or why there is none."""
        try:
            result = await self.ask("logs", "--tail", str(_LOG_LINES), container, timeout=_LOG_SECONDS)
        except (TimeoutError, SwerexException) as error:
            return f"({error})"
        if result.code:
            return f"({result.message})"
        parts = (("stdout", result.stdout), ("stderr", result.stderr))
        return visible("\n".join(f"{name}:\n{text.decode(errors='replace')[-4000:]}" for name, text in parts))

    @property
    def _removal(self) -> list[str]:
        return ["rm", "-f", "-v", *(["-t", "0"] if self.runtime == "podman" else [])]

    async def end(self, container: str, *, keep: bool) -> str | None:
        """End a container, and remove it with its anonymous volumes unless `keep`, or if it never ran.

        Return None, or why that failed. A container that is already gone is no failure.
        """
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                if keep:
                    result = await self.ask("container", "inspect", "-f", "{{.State.Status}}", container)
                    keep = result.stdout.strip().lower() not in (b"created", b"configured", b"initialized")
                while (result := await self.ask(*(["kill"] if keep else self._removal), container)).code:
                    lower = result.message.lower()
                    if any(sign in lower for sign in _NOT_RUNNING):
                        return None
                    # podman waits five seconds for the processes that it has killed, which a busy machine may take to
                    # end. docker removes a container with --rm by itself when it has ended.
                    if "did not die within" not in lower and "already in progress" not in lower:
                        return result.message
                    await asyncio.sleep(0.05)
        except (TimeoutError, DeploymentStartupError) as error:
            return str(error) or f"{self.runtime} did not answer within {_ASK_SECONDS:g} seconds"
        return None

    async def owned(self) -> AsyncIterator[OwnedSandbox]:
        """Yield the containers that this package started and that run or are not kept.

        A single `ps` lists them, so that a container that hangs does not hide the others.

        Raises:
            DeploymentStartupError: if the engine cannot be reached.
            TimeoutError: if the engine does not respond.
        """
        # As JSON, because a label may contain the separators of fields and lines.
        of = '{{{{json (.Label "{}")}}}}' if self.runtime == "docker" else '{{{{json (index .Labels "{}")}}}}'
        fields = ["{{.ID}}", "{{.Names}}", "{{.Image}}", "{{.State}}", *map(of.format, ownership.OWNER_LABELS)]
        form = "\t".join(fields)
        result = await self.ask("ps", "-a", "--no-trunc", "--filter", f"label={ownership.LABEL}", "--format", form)
        if result.code:
            raise self._out_of_reach(result) or DeploymentStartupError(f"`{self.runtime} ps` failed: {result.message}")
        for line in result.stdout.decode(errors="replace").splitlines():
            id, name, image, state, *values = line.split("\t")
            all_labels = zip(ownership.OWNER_LABELS, map(json.loads, values), strict=True)
            labels = {label: value for label, value in all_labels if value}
            keep = ownership.KEEP in labels
            if ownership.has_own_labels(labels, name) and (state.lower().startswith(_RUNS) or not keep):
                end = functools.partial(self._end_owned, id, keep)
                yield OwnedSandbox(id, name, f"image {image}", labels, end, keep)

    async def _end_owned(self, container: str, keep: bool) -> None:
        if problem := await self.end(container, keep=keep):
            raise DeploymentStartupError(problem)

    def backend(self, container: str, shell: Sequence[str] = ()) -> DockerBackend:
        """Return a backend that runs commands in a container; the parameters are those of `DockerBackend`."""
        kind = PodmanBackend if self.runtime == "podman" else DockerBackend
        return kind(container, environment=self.environment, shell=shell)


# Cleanup at exit

_left: dict[str, tuple[Engine, bool]] = {}
"""This process's containers by name, with the engine, and whether to keep the container."""

os.register_at_fork(after_in_child=_left.clear)


def remember(name: str, engine: Engine, keep: bool) -> None:
    """Register a container to be ended when this process exits normally."""
    if not _left:
        atexit.unregister(_end_all)
        atexit.register(_end_all)
    _left[name] = (engine, keep)


def forget(name: str) -> None:
    """Unregister a container that was ended."""
    _left.pop(name, None)


def _end_all() -> None:
    """End all registered containers, with one command for each engine because the interpreter is waiting."""
    groups: dict[tuple[str, str, bool], tuple[Engine, list[str]]] = {}
    for name, (engine, keep) in _left.items():
        reached = json.dumps(engine.environment, sort_keys=True)
        groups.setdefault((engine.runtime, reached, keep), (engine, []))[1].append(name)
    _left.clear()
    for (_, _, keep), (engine, names) in groups.items():
        words = [engine.runtime, *(["kill"] if keep else engine._removal), *names]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(words, env=engine.environment, capture_output=True, timeout=_ASK_SECONDS, check=False)
