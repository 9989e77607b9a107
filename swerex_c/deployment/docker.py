"""A deployment in a container of Docker or podman."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
import shlex
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self

from swerex_c import PACKAGE_NAME, REMOTE_EXECUTABLE_NAME
from swerex_c.deployment import _owners
from swerex_c.deployment._engine import Engine, forget, remember
from swerex_c.deployment._exec import Effort
from swerex_c.deployment._images import (
    _is_image_available,
    _pull_image,
    _remove_image,
    heeding,
    standalone_dockerfile,
    words_of,
)
from swerex_c.deployment._served import ServedDeployment
from swerex_c.deployment.config import DockerDeploymentConfig
from swerex_c.exceptions import (
    DeploymentStartupError,
    DockerPullError,
    PlaceLostError,
    StartupTimeoutError,
    SwerexException,
)
from swerex_c.exec.threads import in_thread
from swerex_c.runtime.abstract import IsAliveResponse
from swerex_c.utils.wait import _wait_until_alive

if TYPE_CHECKING:
    from swerex_c.exec.docker import DockerBackend

__all__ = ["DockerDeployment", "DockerDeploymentConfig"]

_WAIT = "trap 'exit 0' TERM INT HUP; while :; do read -r -t 5; (:); done"
"""What a container does while commands run in it: it waits for its standard input, which never comes. It ends when it
is asked to; and whenever a child of its own ends, bash also reaps those that it inherited from others."""

_GREET = r"""
trap 'exit 0' TERM INT HUP
{ exec {quiet}<> <(:); } 2>/dev/null || { coproc { read -r; }; quiet=${COPROC[0]}; } 2>/dev/null
stat= now=
{ IFS= read -r -d '' stat </proc/1/stat; read -r now _ </proc/uptime; } 2>/dev/null
set -- "$1" ${stat##*) }
echo "$1${BASH_VERSINFO[0]} ${BASH_VERSINFO[1]} ${21:--} ${now:--}"
while :; do read -r -t 5 -u "$quiet"; (:); done
"""
"""The same where it can say that a bash runs there, and what else a look into the container would show: behind its
first word the version of that bash, when the first process began, and what the clock shows. It has no standard input,
so it waits for a pipe of its own, or, where it cannot open one by its name, for a child that waits for it."""

_OWN_STREAMS = re.compile("-[A-Za-z]*[adit]|--(attach|cidfile|detach|interactive|tty)(=.*)?")
"""Options of `docker run` that do not go together with listening to the container."""

_SHELLS = ("", "sh", "bash", "dash", "ash")
"""Entry points that are none: the command that waits takes their place."""

_SETTLE_SECONDS = 10.0
"""How long the engine may take to tell whether a container that nobody wants any more was made."""

_UNSURE_SECONDS = 1.0
"""How long it is waited for when its client had to be killed. Then it is watched for, while others go on."""

_NOTICE_SECONDS = 2.0
"""How long an engine may take to notice that a container has ended, when nothing can be run in it."""

_LOOK_SECONDS = 10.0
"""How long the engine may take to tell what became of a container."""

_OUTPUT_SECONDS = 5.0
"""How long the end of a container's output is waited for when it has ended."""

_PORT_TRIES = 5
"""Another process may take the port that was free."""

_PORT_TAKEN = ("port is already allocated", "address already in use")


class DockerDeployment(ServedDeployment):
    """Starts a container, in which nothing is needed but bash: commands reach it by `docker exec` or `podman exec`.

    With `server=True`, or where a subclass overrides `_get_swerex_start_cmd`, the container runs a server instead, and
    the runtime is its client.
    """

    _config: DockerDeploymentConfig
    _ends_place = True
    _start_command = "_get_swerex_start_cmd"

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Any):
        """The keyword arguments are the fields of `DockerDeploymentConfig`."""
        super().__init__(logger=logger)
        self._config = DockerDeploymentConfig(**kwargs)
        self._container_process: Any = None
        self._container_name: str | None = None
        self._runtime_timeout = 0.15
        self._found_port: int | None = None
        self._backend: DockerBackend | None = None
        self._effort: Effort | None = None
        self._used: Engine | None = None
        self._unsure = False
        self._settled: threading.Event | None = None

    @classmethod
    def from_config(cls, config: DockerDeploymentConfig) -> Self:
        return cls(**config.model_dump())

    @property
    def container_name(self) -> str | None:
        """The container's name; None if there is none."""
        return self._container_name

    def _get_container_name(self) -> str:
        """A name that no other container has, with that of the image in it."""
        image = "".join(c for c in self._config.image if c.isalnum() or c in "-_.").lstrip("-_.")
        return f"{image or 'image'}-{uuid.uuid4()}"

    def _engine(self) -> Engine:
        return Engine(self._config.container_runtime)

    # Images

    def _pull_image(self) -> None:
        """Get the image as the configuration's `pull` says. Blocks.

        Raises:
            DockerPullError: if that fails.
        """
        policy, image = self._config.pull, self._config.image
        if policy == "never":
            return
        runtime, effort = self._config.container_runtime, self._effort or Effort(None)
        with heeding(effort, self._config.platform):
            if policy == "missing" and _is_image_available(image, runtime):
                return
            self.logger.info(f"Pulling image {image!r}")
            self._hooks.on_custom_step("Pulling container image")
            try:
                _pull_image(image, runtime)
                return
            except subprocess.CalledProcessError as refused:
                error = DockerPullError(f"Failed to pull image {image}. {words_of(refused)}")
                error.__cause__ = refused
        with heeding(effort):
            if policy == "always" or not _is_image_available(image, runtime):
                raise error
        # It is here for another platform, as far as can be told: the engine knows better when it starts it.
        self.logger.warning(f"{error}. The image of this machine is taken")

    @property
    def glibc_dockerfile(self) -> str:
        """What makes an image with a Python and a server in `python_standalone_dir`; for images with apt and glibc."""
        return standalone_dockerfile(f"{self._config.python_standalone_dir}/python3.11", self._config.platform)

    def _build_image(self) -> str:
        """Build the image with a Python of its own; its id. Blocks.

        Raises:
            DeploymentStartupError: if that fails.
        """
        image, where = self._config.image, self._config.python_standalone_dir
        self.logger.info(
            f"Building image {image} to install a standalone python to {where}. This may take some minutes, but only "
            "the first time. To do without, set `python_standalone_dir` to None."
        )
        on = ["--platform", self._config.platform] if self._config.platform else []
        words = [*on, "--build-arg", f"BASE_IMAGE={image}"]
        dockerfile = self.glibc_dockerfile.encode()
        return self._engine().build(words, dockerfile, self._effort or Effort(None), f"Building image {image}")

    def _image(self) -> str:
        """Get the image, and build upon it where that is wanted; what to start."""
        self._pull_image()
        if not self._config.python_standalone_dir:
            return self._config.image
        if self._serves or self._overrides("_build_image") or self._overrides("glibc_dockerfile"):
            return self._build_image()
        self.logger.debug("No standalone python is installed: without a server in the container nothing needs it")
        return self._config.image

    # Starting

    async def _start(self, effort: Effort) -> None:
        self._effort = effort
        try:
            await self._start_either(effort)
        finally:
            self._effort = None

    async def _start_either(self, effort: Effort) -> None:
        if not self._serves:
            try:
                await super()._start(effort)
            except SwerexException as error:
                if self._entry is None or isinstance(error, StartupTimeoutError):
                    raise
                raise await in_thread(self._failed, error) from error
            return
        image = await self._in_thread(effort, self._prepare, effort)
        for last in range(_PORT_TRIES, 0, -1):
            if await self._start_server(effort, image, last == 1):
                return

    @contextlib.contextmanager
    def _making(self, engine: Engine) -> Iterator[None]:
        """While a container is made: whoever ends it waits for that, and knows if its outcome is not known."""
        self._used, self._unsure = engine, True
        self._settled = settled = threading.Event()
        try:
            yield
            self._unsure = False
        except DeploymentStartupError as error:
            self._unsure = isinstance(error, StartupTimeoutError)  # the others are refusals
            raise
        finally:
            settled.set()

    def _prepare(self, effort: Effort) -> str:
        """The image to start. From here on the time counts."""
        effort.limit(None)
        image = self._image()
        effort.limit(self._config.startup_timeout)
        return image

    def _options(self, name: str) -> list[str]:
        """Options of `run` and `create` for every container, which come before the caller's."""
        config = self._config
        # One with an entry point of the caller's may end by itself, and what it said of that is to be had then.
        words = ["--rm"] if config.remove_container and (self._serves or self._entry is None) else []
        # The image was pulled before, if it was to be; --pull among the caller's own options goes last.
        words += ["--pull", "never"]
        for label, value in _owners.labels(name, keep=not config.remove_container).items():
            words += ["--label", f"{label}={value}"]
        if config.platform is not None:
            words += ["--platform", config.platform]
        return words

    @property
    def _entry(self) -> str | None:
        """The entry point that the caller wants; None if there is none but a shell."""
        entry = _option(self._config.docker_args, "--entrypoint")
        return None if entry is None or entry.rpartition("/")[2] in _SHELLS else entry

    def _failed(self, error: SwerexException) -> SwerexException:
        """The error of a start that failed in a container with an entry point, with what that said of it. Blocks."""
        engine, backend, name = self._used, self._backend, self._container_name
        deadline = time.monotonic() + _NOTICE_SECONDS  # an engine may notice an end some time after others do
        while engine is not None and backend is not None and name is not None:
            with contextlib.suppress(TimeoutError):
                why, for_good = backend.look(_LOOK_SECONDS)
                if for_good:
                    return PlaceLostError(f"{why}. Its entry point {self._entry!r} printed: {engine.logs(name)}")
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        return error

    def _begin(self, effort: Effort) -> DockerBackend:
        image = self._prepare(effort)
        engine = self._engine()
        name = self._container_name = self._get_container_name()
        words = [*self._options(name), *self._config.docker_args, "--name", name]
        self.logger.info(f"Starting container {name} with image {self._config.image}")
        remember(name, engine, not self._config.remove_container)
        effort.check()
        if self._entry is None and engine.is_docker() and not any(map(_OWN_STREAMS.fullmatch, words)):
            container = self._run_greeted(engine, [*words, "--entrypoint", "bash", image], effort)
        else:
            container = self._run(engine, ["-i", *words], image, effort)
        self._backend = engine.backend(container, name)
        return self._backend

    def _run_greeted(self, engine: Engine, words: list[str], effort: Effort) -> str:
        """Start the container and wait until a bash says that it runs there; what the container is called.

        Whatever an image sets for other shells (BASH_ENV) does not keep this one from it: it is started with -p.
        """
        from swerex_c.exec.session import Look
        from swerex_c.exec.shells import check_version

        token = f"swerex-c {secrets.token_hex(16)} "
        words = [*words, "-p", "-c", _GREET, "bash", token]
        self.logger.debug(f"Command: {shlex.join([engine.runtime, 'run', '-a', 'stdout', *words])!r}")
        with self._making(engine):
            said, container = engine.run_greeted(words, effort, token.encode())
        major, minor, rest = engine.greeting(said, token.encode(), self._config.image).split(b" ", 2)
        self._known = Look.of(True, rest)
        check_version((int(major), int(minor)), f"container {self._container_name}")
        return container or str(self._container_name)

    def _run(self, engine: Engine, words: list[str], image: str, effort: Effort) -> str:
        """Start the container; its id."""
        if self._entry is None:
            words += ["--entrypoint", "bash", image, "-c", _WAIT]
        else:  # an entry point of the caller's that ends in the command that it is given
            words += [image, "bash", "-c", _WAIT]
        self.logger.debug(f"Command: {shlex.join([engine.runtime, 'run', '-d', *words])!r}")
        with self._making(engine):
            said = engine.run(words, effort)
        return engine.made(said, self._config.image)

    # The server

    def _get_swerex_start_cmd(self, token: str) -> list[str]:
        """What the container runs, to be overridden: a server of the original's kind on port 8000, with this key."""
        return ["/bin/sh", "-c", self._server_text(f"--auth-token {shlex.quote(token)}")]

    def _server_text(self, arguments: str) -> str:
        """Text for `sh`: the server of the image, and if that fails one from the network."""
        if where := self._config.python_standalone_dir:
            return f"{where}/python3.11/bin/{REMOTE_EXECUTABLE_NAME} {arguments}"
        return f"{REMOTE_EXECUTABLE_NAME} {arguments} || ({_pipx(arguments)})"

    def _own_server_text(self) -> str:
        """The same for when nobody overrides it: the key comes in a variable, and this very server is carried along."""
        from swerex_c.deployment import _carried
        from swerex_c.remote.key import VARIABLE

        port = self._inner_port
        where = f"--port {port}" + (" --host 127.0.0.1" if self._on_host_network else "")
        arguments = f'--auth-token "$key" {where}'
        begin = f"key=${VARIABLE}; unset {VARIABLE}; "
        if self._config.python_standalone_dir:
            return begin + self._server_text(arguments)
        carried = f'{VARIABLE}="$key" && export {VARIABLE} && {_carried.command(where)}'
        return (
            f"{begin}if command -v {REMOTE_EXECUTABLE_NAME} >/dev/null; then {REMOTE_EXECUTABLE_NAME} {arguments}; "
            f"else ({carried}); swx=$?; [ $swx = {_carried.DOES_NOT_FIT} ] || exit $swx; "
            'echo "No server was carried here, or it finds no Python that fits: '
            'it is installed from the network" >&2; '
            f"{_pipx(arguments)}; fi"
        )

    @property
    def _on_host_network(self) -> bool:
        """Whether the container has this machine's network, so that no port is published."""
        arguments = self._config.docker_args
        return "host" in (_option(arguments, "--network"), _option(arguments, "--net"))

    @property
    def _inner_port(self) -> int:
        return (self._config.port or 8000) if self._on_host_network else 8000

    async def _start_server(self, effort: Effort, image: str, last: bool) -> bool:
        """Start the container with its server; False if its port was taken, and another can be tried."""
        from swerex_c.runtime.config import RemoteRuntimeConfig
        from swerex_c.runtime.remote import RemoteRuntime
        from swerex_c.utils.free_port import find_free_port

        found = self._config.port in (None, self._found_port)
        if found:  # also if it was found by an earlier start, which does not own it any more
            self._config.port = self._found_port = await in_thread(find_free_port)
        token = self._get_token()
        await self._in_thread(effort, self._make_server, effort, image, token)
        self._hooks.on_custom_step("Starting runtime")
        self.logger.info(f"Starting runtime at {self._config.port}")
        self._runtime = RemoteRuntime.from_config(
            RemoteRuntimeConfig(
                host=self._config.docker_internal_host,
                port=self._config.port,
                timeout=self._runtime_timeout,
                auth_token=token,
            )
        )
        began = time.monotonic()
        try:
            await self._wait_until_alive(timeout=round(effort.check(), 2))
        except PlaceLostError as error:
            if last or not found or not any(sign in str(error) for sign in _PORT_TAKEN):
                raise
            self.logger.debug("The port %s is taken: %s", self._config.port, error)
            self._runtime = None
            await in_thread(self._end_container)
            return False
        self.logger.info(f"Runtime started in {time.monotonic() - began:.2f}s")
        return True

    def _make_server(self, effort: Effort, image: str, token: str) -> None:
        """Make the container, carry the server into it if it is ours, and start it. Blocks."""
        from swerex_c.remote.key import VARIABLE

        engine = self._engine()
        own = not self._overrides("_get_swerex_start_cmd")
        command = ["/bin/sh", "-c", self._own_server_text()] if own else self._get_swerex_start_cmd(token)
        name = self._container_name = self._get_container_name()
        words = self._options(name)
        if not self._on_host_network:
            words += ["-p", f"{self._config.port}:8000"]
        if own:
            engine.environment[VARIABLE] = token
            words += ["-e", VARIABLE]
        words += [*self._config.docker_args, "--name", name, image, *command]
        self.logger.info(
            f"Starting container {name} with image {self._config.image} serving on port {self._config.port}"
        )
        self.logger.debug(f"Command: {shlex.join([engine.runtime, 'create', *words])!r}")
        remember(name, engine, not self._config.remove_container)
        effort.check()
        with self._making(engine):
            said = engine.create(words, effort)
        engine.made(said, self._config.image)
        if own and not self._config.python_standalone_dir:
            self._carry(engine, name, effort)
        self._container_process = engine.attached(name)

    def _carry(self, engine: Engine, name: str, effort: Effort) -> None:
        """Put this installation into the container, for an image that has no server. It can do without."""
        from swerex_c.deployment import _carried

        try:
            said = engine.ask("cp", "-", f"{name}:/", effort=effort, timeout=None, input=_carried.archive())
            problem = said.words if said.code else None
        except LookupError as error:
            problem = str(error)
        if problem:
            self.logger.warning(
                f"The server cannot be carried into the container ({problem}); if the image has none, it is "
                "installed from the network"
            )

    async def _wait_until_alive(self, timeout: float = 10.0) -> None:
        """Wait until the runtime answers. If it does not in time the container is ended.

        Raises:
            TimeoutError: then.
            RuntimeError: if the container has ended.
        """
        try:
            await _wait_until_alive(self.is_alive, timeout=timeout, function_timeout=self._runtime_timeout)
        except TimeoutError:
            self.logger.error("Runtime did not start within timeout. Here's the output from the container process.")
            process = self._container_process
            await self.stop()  # before the output is read: its end comes with the container's
            if process is not None:
                self.logger.error(await _output(process))
            raise

    # Running and ending

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Whether the runtime answers, within `timeout` seconds.

        Raises:
            DeploymentNotStartedError: if the deployment was not started, or was stopped.
            PlaceLostError: if the container has ended, with what it said.
        """
        runtime, process, backend = self.runtime, self._container_process, self._backend
        if process is not None and process.poll() is not None:
            raise PlaceLostError("Container process terminated.\n" + await _output(process))
        began = time.monotonic()
        answer = await runtime.is_alive(timeout=timeout)
        if answer or backend is None:
            return answer
        left = _LOOK_SECONDS if timeout is None else max(0.1, timeout - (time.monotonic() - began))
        with contextlib.suppress(TimeoutError):
            why, for_good = await in_thread(backend.look, left)
            if for_good:
                raise PlaceLostError(f"Container process terminated. {why}")
        return answer

    def _close_seconds(self) -> float:
        process = self._container_process
        return 0.5 if process is not None and process.poll() is not None else super()._close_seconds()

    def _has_begun(self) -> bool:
        # A subclass with a `start` of its own sets these.
        return self._began or self._container_name is not None or self._container_process is not None

    def _end(self) -> None:
        if self._settled is not None:
            self._settled.wait(_SETTLE_SECONDS)
        self._end_container()
        if self._config.remove_images:
            self._remove_image()

    def _end_container(self) -> None:
        """End the container, and what shows its output. Blocks."""
        name, process = self._container_name, self._container_process
        if name is not None:
            self._end_named(self._used or self._engine(), name)
        if process is not None:
            with contextlib.suppress(OSError):
                process.kill()
            with contextlib.suppress(Exception):
                process.wait(timeout=5)
        if self._container_name == name:
            self._container_name = self._container_process = self._backend = self._used = self._settled = None

    def _end_named(self, engine: Engine, name: str) -> None:
        if self._unsure and not self._came(engine, name):
            self.logger.debug("Container %s was asked for, and may come yet: it is removed then", name)
            engine.remove_late(name)
            return
        process = self._container_process
        never_ran = self._backend is None and process is None
        if not self._config.remove_container and process is not None and process.poll() is not None:
            never_ran = engine.never_ran(name)
        problem = (engine.remove if self._config.remove_container or never_ran else engine.kill)(name)
        if problem is None or (never_ran and not self._unsure):  # the engine has said that it is not there
            forget(name)
            return
        self._tell_left(engine, name, problem)

    def _came(self, engine: Engine, name: str) -> bool:
        """Whether a container is there now that an engine was asked for, whose client was not waited for."""
        deadline = time.monotonic() + _UNSURE_SECONDS
        while not (there := engine.has(name, 2 * _UNSURE_SECONDS)):
            if time.monotonic() > deadline:
                if there is None:
                    self._tell_left(engine, name, "the engine does not answer")
                return False
            time.sleep(0.2)
        return True

    def _tell_left(self, engine: Engine, name: str, problem: str | None) -> None:
        self.logger.warning(
            f"Failed to kill container {name}: {problem}. When the engine works again and this process has ended, "
            f"`swerex-c prune --container-runtime {engine.runtime}` removes it."
        )

    def _remove_image(self) -> None:
        image, runtime = self._config.image, self._config.container_runtime
        with contextlib.suppress(Exception), heeding(Effort(_LOOK_SECONDS)):
            if not _is_image_available(image, runtime):
                return
        self.logger.info(f"Removing image {image}")
        try:
            _remove_image(image, runtime)
        except subprocess.CalledProcessError as refused:
            self.logger.error(f"Failed to remove image {image}: {words_of(refused)}")
        except (TimeoutError, DeploymentStartupError) as error:
            self.logger.error(f"Failed to remove image {image}: {error}")


def _pipx(arguments: str) -> str:
    """Text for `sh` that installs the server from the network and runs it."""
    install = "python3 -m pip install pipx && python3 -m pipx ensurepath"
    return f"{install} && python3 -m pipx run {PACKAGE_NAME} {arguments}"


def _option(words: list[str], name: str) -> str | None:
    """The value of an option among the words of a command line; the last if there are several."""
    value = None
    for i, word in enumerate(words):
        if word == name and i + 1 < len(words):
            value = words[i + 1]
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
    return value


async def _output(process: Any) -> str:
    """What a container that has ended has printed."""
    text = []
    for name in ("stdout", "stderr"):
        said: Any = b""
        if (stream := getattr(process, name, None)) is not None:
            with contextlib.suppress(TimeoutError, OSError, ValueError):
                said = await asyncio.wait_for(in_thread(stream.read), _OUTPUT_SECONDS)
        text.append(f"{name}:\n" + (said if isinstance(said, str) else said.decode(errors="replace")))
    return "\n".join(text)
