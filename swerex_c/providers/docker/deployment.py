"""Deployment in a container of Docker or Podman."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import secrets
import shlex
import subprocess
import time
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Self, Unpack

from swerex_c._version import PACKAGE_NAME, REMOTE_EXECUTABLE_NAME
from swerex_c.exceptions import (
    DeploymentStartupError,
    DockerPullError,
    SandboxLostError,
    StartupTimeoutError,
    SwerexException,
)
from swerex_c.models import IsAliveResponse
from swerex_c.providers import ownership
from swerex_c.providers.docker.config import DockerDeploymentConfig, DockerKeywords
from swerex_c.providers.docker.engine import Engine, forget, remember
from swerex_c.providers.docker.images import (
    _is_image_available,
    _pull_image,
    _remove_image,
    error_output,
    image_platform,
    standalone_dockerfile,
)
from swerex_c.providers.server_deployment import ServerDeployment
from swerex_c.sandbox.env_passing import quote_for_any_shell
from swerex_c.utils import background
from swerex_c.utils.load import ConfigSignature
from swerex_c.utils.shell_script import read_script
from swerex_c.utils.threads import in_thread
from swerex_c.utils.visible import visible
from swerex_c.utils.wait import _wait_until_alive

if TYPE_CHECKING:
    from swerex_c.providers.docker.backend import DockerBackend

__all__ = ["DockerDeployment", "DockerDeploymentConfig"]

_WAIT = "trap 'exit 0' TERM INT HUP; while :; do read -r -t 5; (:); done"
"""Main script of the container while commands run in it. It reads standard input, which never comes, and exits when
signalled. When a child of its own exits, bash also reaps the processes that it inherited."""

_GREETING_SCRIPT = read_script("providers/docker/greet.bash")
"""Main script that first reports that bash runs, for engines that show the container's output."""

_OWN_STREAMS = re.compile("-[A-Za-z]*[adit]|--(attach|cidfile|detach|interactive|tty)(=.*)?")
"""Options of `docker run` that are incompatible with reading the container's output."""

_SHELLS = ("", "sh", "bash", "dash", "ash")
"""Entry points that are only a shell: the waiting script replaces them."""

_UNSURE_SECONDS = 1.0
"""Seconds to wait for a container whose client had to be killed; after that a thread watches for it."""

_NOTICE_SECONDS = 2.0
"""Seconds for an engine to notice that a container has ended, when no program can run in it."""

_LOOK_SECONDS = 10.0
"""Seconds to wait for the engine to report the state of a container."""

_OUTPUT_SECONDS = 5.0
"""Seconds to wait for the end of a container's output after it has ended."""

_PORT_TRIES = 5
"""Maximum number of ports to try, because another process may take a port that was free."""

_PORT_TAKEN = ("port is already allocated", "address already in use")


class DockerDeployment(ServerDeployment):
    """Deployment in a container that needs only bash.

    Commands run by `docker exec` or `podman exec`. With `server=True`, or if a subclass overrides
    `_get_swerex_start_cmd`, the container runs a server instead, and the runtime is its client.
    """

    _config: DockerDeploymentConfig
    _ends_sandbox = True
    _start_command = "_get_swerex_start_cmd"

    __signature__ = ConfigSignature("swerex_c.providers.docker.config:DockerDeploymentConfig")

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Unpack[DockerKeywords]):
        """Create a deployment from the fields of a `DockerDeploymentConfig`."""
        super().__init__(logger=logger)
        self._config = DockerDeploymentConfig(**kwargs)
        self._container_process: Any = None
        self._container_name: str | None = None
        self._runtime_timeout = 0.15
        self._found_port: int | None = None
        self._backend: DockerBackend | None = None
        self._used: Engine | None = None
        self._unsure = False

    @classmethod
    def from_config(cls, config: DockerDeploymentConfig) -> Self:
        return cls(**config.model_dump())

    @property
    def container_name(self) -> str | None:
        """The container's name; None if there is no container."""
        return self._container_name

    def _get_container_name(self) -> str:
        """Return a unique container name that includes the image's name."""
        image = "".join(c for c in self._config.image if c.isalnum() or c in "-_.").lstrip("-_.")
        return f"{image or 'image'}-{uuid.uuid4()}"

    def _engine(self) -> Engine:
        return Engine(self._config.container_runtime)

    # Images

    def _pull_image(self) -> None:
        """Pull the image according to the configuration's `pull`. Blocks.

        Raises:
            DockerPullError: if the pull fails.
        """
        policy, image = self._config.pull, self._config.image
        if policy == "never":
            return
        runtime = self._config.container_runtime
        with image_platform(self._config.platform):
            if policy == "missing" and _is_image_available(image, runtime):
                return
            self.logger.info(f"Pulling image {image!r}")
            self._hooks.on_custom_step("Pulling container image")
            try:
                _pull_image(image, runtime)
                return
            except subprocess.CalledProcessError as refused:
                error = DockerPullError(f"Failed to pull image {image}. {error_output(refused)}")
                error.__cause__ = refused
        if policy == "always" or not _is_image_available(image, runtime):
            raise error
        # The image seems to be for another platform; the engine decides when it starts the image.
        self.logger.warning(f"{error}. Using the image of this machine")

    @property
    def glibc_dockerfile(self) -> str:
        """Dockerfile that adds a Python and a server to an image with glibc.

        They are installed in `python_standalone_dir`.
        """
        return standalone_dockerfile(f"{self._config.python_standalone_dir}/python3.11", self._config.platform)

    def _build_image(self) -> str:
        """Build the image with a Python of its own, and return its id. Blocks.

        Raises:
            DeploymentStartupError: if the build fails.
        """
        image, where = self._config.image, self._config.python_standalone_dir
        self.logger.info(
            f"Building image {image} to install a standalone python to {where}. This may take some minutes, but only "
            "the first time. To do without, set `python_standalone_dir` to None."
        )
        on = ["--platform", self._config.platform] if self._config.platform else []
        words = [*on, "--build-arg", f"BASE_IMAGE={image}"]
        return self._engine().build(words, self.glibc_dockerfile.encode(), f"Building image {image}")

    def _image(self) -> str:
        """Pull the image, build on it if required, and return the image to start."""
        self._pull_image()
        if not self._config.python_standalone_dir:
            return self._config.image
        if self._serves or self._overrides("_build_image") or self._overrides("glibc_dockerfile"):
            return self._build_image()
        self.logger.debug("Ignoring python_standalone_dir: only a server in the container needs a standalone python")
        return self._config.image

    # Starting

    async def _start(self) -> None:
        if not self._serves:
            try:
                await super()._start()
            except SwerexException as error:
                if self._entry is None or isinstance(error, StartupTimeoutError):
                    raise
                raise await in_thread(self._failed, error) from error
            return
        image = await self._in_thread(self._prepare)
        for last in range(_PORT_TRIES, 0, -1):
            if await self._start_server(image, last == 1):
                return

    @contextlib.contextmanager
    def _recorded_creation(self, engine: Engine) -> Iterator[None]:
        """Record a container's creation, so that the cleanup knows whether its outcome is unknown."""
        self._used, self._unsure = engine, True
        try:
            yield
            self._unsure = False
        except DeploymentStartupError:  # the engine refused
            self._unsure = False
            raise

    def _prepare(self) -> str:
        """Return the image to start. The startup timeout begins when this returns."""
        self._limit_start(None)
        image = self._image()
        self._limit_start(self._config.startup_timeout)
        return image

    def _options(self, name: str) -> list[str]:
        """Return the options of `run` and `create` that precede the caller's."""
        config = self._config
        # A container with the caller's entry point may exit by itself; its output must be available then.
        words = ["--rm"] if config.remove_container and (self._serves or self._entry is None) else []
        # The image was pulled before, if required; a --pull of the caller comes later and takes precedence.
        words += ["--pull", "never"]
        for label, value in ownership.labels(name, keep=not config.remove_container).items():
            words += ["--label", f"{label}={value}"]
        if config.platform is not None:
            words += ["--platform", config.platform]
        return words

    @property
    def _entry(self) -> str | None:
        """The caller's entry point; None if there is none or it is only a shell."""
        entry = _option(self._config.docker_args, "--entrypoint")
        return None if entry is None or entry.rpartition("/")[2] in _SHELLS else entry

    @property
    def _shell(self) -> list[str]:
        """The caller's shell; [] for the default, whose effect bash has without a shell."""
        shell = self._config.exec_shell
        return [] if shell == DockerDeploymentConfig.model_fields["exec_shell"].default else shell

    def _by_shell(self, argv: list[str]) -> list[str]:
        return [*self._shell, quote_for_any_shell(argv)] if self._shell else argv

    def _failed(self, error: SwerexException) -> SwerexException:
        """Return the error of a failed start in a container with an entry point, with its output. Blocks."""
        engine, backend, name = self._used, self._backend, self._container_name
        deadline = time.monotonic() + _NOTICE_SECONDS  # an engine may notice an end some time after others do
        while engine is not None and backend is not None and name is not None:
            with contextlib.suppress(TimeoutError):
                why, for_good = background.run_blocking(backend.look(), _LOOK_SECONDS)
                if for_good:
                    return SandboxLostError(f"{why}. Its entry point {self._entry!r} printed: {engine.logs(name)}")
            if time.monotonic() > deadline:
                break
            time.sleep(0.1)
        return error

    def _begin(self) -> DockerBackend:
        image = self._prepare()
        engine = self._engine()
        name = self._container_name = self._get_container_name()
        words = [*self._options(name), *self._config.docker_args, "--name", name]
        self.logger.info(f"Starting container {name} with image {self._config.image}")
        remember(name, engine, not self._config.remove_container)
        if self._entry is None and engine.is_docker() and not any(map(_OWN_STREAMS.fullmatch, words)):
            container = self._run_greeted(engine, words, image)
        else:
            container = self._run(engine, ["-i", *words], image)
        self._backend = engine.backend(container, name, self._shell)
        return self._backend

    def _run_greeted(self, engine: Engine, words: list[str], image: str) -> str:
        """Start the container, wait until bash reports that it runs, and return the container's id or name.

        Bash runs with -p, so that settings of the image for other shells (BASH_ENV) do not prevent the report.
        """
        from swerex_c.sandbox.loader_pool import check_version
        from swerex_c.sandbox.session import ProbeResult

        token = f"swerex-c {secrets.token_hex(16)} "
        command = self._by_shell(["bash", "-p", "-c", _GREETING_SCRIPT, "bash", token])
        words = [*words, "--entrypoint", command[0], image, *command[1:]]
        self.logger.debug(f"Command: {shlex.join([engine.runtime, 'run', '-a', 'stdout', *words])!r}")
        with self._recorded_creation(engine):
            said, container = engine.run_greeted(words, token.encode())
        major, minor, born, clock = engine.greeting(said, token.encode(), self._config.image).split(b" ")
        self._known, self._born = ProbeResult.of(True, clock), born.decode().strip("-")
        check_version((int(major), int(minor)), f"container {self._container_name}")
        return container or str(self._container_name)

    def _run(self, engine: Engine, words: list[str], image: str) -> str:
        """Start the container and return its id."""
        command = self._by_shell(["bash", "-c", _WAIT])
        if self._entry is None:
            words += ["--entrypoint", command[0], image, *command[1:]]
        else:  # the caller's entry point must end by running the command that it gets
            words += [image, *command]
        self.logger.debug(f"Command: {shlex.join([engine.runtime, 'run', '-d', *words])!r}")
        with self._recorded_creation(engine):
            said = engine.run(words)
        return engine.made(said, self._config.image)

    # The server

    def _get_swerex_start_cmd(self, token: str) -> list[str]:
        """Return the container's command, for overriding: a SWE-ReX server on port 8000 with this token."""
        return [*self._config.exec_shell, self._server_text(f"--auth-token {shlex.quote(token)}")]

    def _server_text(self, arguments: str) -> str:
        """Return a command for `sh` that runs the image's server, or else installs one from the network."""
        if where := self._config.python_standalone_dir:
            return f"{where}/python3.11/bin/{REMOTE_EXECUTABLE_NAME} {arguments}"
        return f"{REMOTE_EXECUTABLE_NAME} {arguments} || ({_pipx(arguments)})"

    def _own_server_text(self) -> str:
        """Return the default start command: it reads the token from a variable, and can run the bundled server."""
        from swerex_c.providers import server_bundle
        from swerex_c.remote.server.auth import VARIABLE

        port = self._inner_port
        where = f"--port {port}" + (" --host 127.0.0.1" if self._on_host_network else "")
        arguments = f'--auth-token "$key" {where}'
        begin = f"key=${VARIABLE}; unset {VARIABLE}; "
        if self._config.python_standalone_dir:
            return begin + self._server_text(arguments)
        carried = f'{VARIABLE}="$key" && export {VARIABLE} && {server_bundle.command(where)}'
        return (
            f"{begin}if command -v {REMOTE_EXECUTABLE_NAME} >/dev/null; then {REMOTE_EXECUTABLE_NAME} {arguments}; "
            f"else ({carried}); swx=$?; [ $swx = {server_bundle.DOES_NOT_FIT} ] || exit $swx; "
            'echo "The copied server is missing, or finds no suitable Python: '
            'installing one from the network" >&2; '
            f"{_pipx(arguments)}; fi"
        )

    @property
    def _on_host_network(self) -> bool:
        """True if the container uses this machine's network and publishes no port."""
        arguments = self._config.docker_args
        return "host" in (_option(arguments, "--network"), _option(arguments, "--net"))

    @property
    def _inner_port(self) -> int:
        return (self._config.port or 8000) if self._on_host_network else 8000

    async def _start_server(self, image: str, last: bool) -> bool:
        """Start the container with its server; return False if its port was taken and another can be tried."""
        from swerex_c.runtime.config import RemoteRuntimeConfig
        from swerex_c.runtime.remote import RemoteRuntime
        from swerex_c.utils.free_port import find_free_port

        found = self._config.port in (None, self._found_port)
        if found:  # also if an earlier start found it, which no longer owns it
            self._config.port = self._found_port = await in_thread(find_free_port)
        token = self._get_token()
        began = time.monotonic()
        await self._in_thread(self._make_server, image, token)
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
        try:
            await self._wait_until_alive(timeout=round(self._leave_limit(), 2))
        except SandboxLostError as error:
            if last or not found or not any(sign in str(error) for sign in _PORT_TAKEN):
                raise
            self.logger.debug("The port %s is taken: %s", self._config.port, error)
            self._runtime = None
            await in_thread(self._end_container)
            return False
        self.logger.info(f"Runtime started in {time.monotonic() - began:.2f}s")
        return True

    def _make_server(self, image: str, token: str) -> None:
        """Create the container, copy the bundled server into it if it is used, and start it. Blocks."""
        from swerex_c.remote.server.auth import VARIABLE

        engine = self._engine()
        own = not self._overrides("_get_swerex_start_cmd")
        command = [*self._config.exec_shell, self._own_server_text()] if own else self._get_swerex_start_cmd(token)
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
        with self._recorded_creation(engine):
            said = engine.create(words)
        engine.made(said, self._config.image)
        if own and not self._config.python_standalone_dir:
            self._copy_server_bundle(engine, name)
        self._container_process = engine.attached(name)

    def _copy_server_bundle(self, engine: Engine, name: str) -> None:
        """Copy this installation into the container, in case the image has no server. A failure is only logged."""
        from swerex_c.providers import server_bundle

        try:
            said = engine.ask("cp", "-", f"{name}:/", timeout=None, input=server_bundle.archive())
            problem = said.words if said.code else None
        except LookupError as error:
            problem = str(error)
        if problem:
            self.logger.warning(
                f"Cannot copy the server into the container ({problem}); if the image has none, it is "
                "installed from the network"
            )

    async def _wait_until_alive(self, timeout: float = 10.0) -> None:
        """Wait until the runtime responds. If it does not in time, the container is ended.

        Raises:
            TimeoutError: if it does not respond within `timeout` seconds.
            RuntimeError: if the container has ended.
        """
        try:
            await _wait_until_alive(self.is_alive, timeout=timeout, function_timeout=self._runtime_timeout)
        except TimeoutError:
            self.logger.error("Runtime did not start within timeout. Here's the output from the container process.")
            process = self._container_process
            await self.stop()  # before reading the output, which ends when the container ends
            if process is not None:
                self.logger.error(visible(await _output(process)))
            raise

    # Running and ending

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Check whether the runtime responds within `timeout` seconds.

        Raises:
            DeploymentNotStartedError: if the deployment was not started, or was stopped.
            SandboxLostError: if the container has ended, with its output or the reason.
        """
        runtime, process, backend = self.runtime, self._container_process, self._backend
        if process is not None and process.poll() is not None:
            raise SandboxLostError("Container process terminated.\n" + await _output(process))
        began = time.monotonic()
        answer = await runtime.is_alive(timeout=timeout)
        if answer or backend is None:
            return answer
        left = _LOOK_SECONDS if timeout is None else max(0.1, timeout - (time.monotonic() - began))
        with contextlib.suppress(TimeoutError):
            why, for_good = await asyncio.wait_for(background.run(backend.look()), left)
            if for_good:
                raise SandboxLostError(f"Container process terminated. {why}")
        return answer

    def _close_seconds(self) -> float:
        process = self._container_process
        return 0.5 if process is not None and process.poll() is not None else super()._close_seconds()

    def _has_begun(self) -> bool:
        # A subclass with its own `start` sets these.
        return self._began or self._container_name is not None or self._container_process is not None

    def _end(self) -> None:
        self._end_container()
        if self._config.remove_images:
            self._remove_image()

    def _end_container(self) -> None:
        """End the container and the client process that reads its output. Blocks."""
        name, process = self._container_name, self._container_process
        if name is not None:
            self._end_named(self._used or self._engine(), name)
        if process is not None:
            with contextlib.suppress(OSError):
                process.kill()
            with contextlib.suppress(Exception):
                process.wait(timeout=5)
        if self._container_name == name:
            self._container_name = self._container_process = self._backend = self._used = None

    def _end_named(self, engine: Engine, name: str) -> None:
        if self._unsure and not self._was_created(engine, name):
            self.logger.debug("Container %s may still be created: removing it when it appears", name)
            engine.remove_late(name)
            return
        process = self._container_process
        never_ran = self._backend is None and process is None
        if not self._config.remove_container and process is not None and process.poll() is not None:
            never_ran = engine.never_ran(name)
        problem = (engine.remove if self._config.remove_container or never_ran else engine.kill)(name)
        if problem is None or (never_ran and not self._unsure):  # the engine reported that the container does not exist
            forget(name)
            return
        self._warn_left_behind(engine, name, problem)

    def _was_created(self, engine: Engine, name: str) -> bool:
        """Check whether a container now exists whose creation the killed client did not confirm."""
        deadline = time.monotonic() + _UNSURE_SECONDS
        while not (there := engine.has(name, 2 * _UNSURE_SECONDS)):
            if time.monotonic() > deadline:
                if there is None:
                    self._warn_left_behind(engine, name, "the engine does not answer")
                return False
            time.sleep(0.2)
        return True

    def _warn_left_behind(self, engine: Engine, name: str, problem: str | None) -> None:
        self.logger.warning(
            f"Failed to kill container {name}: {problem}. When the engine works again and this process has ended, "
            f"remove it with `swerex-c prune --container-runtime {engine.runtime}`."
        )

    def _remove_image(self) -> None:
        image, runtime = self._config.image, self._config.container_runtime
        with contextlib.suppress(Exception):
            if not _is_image_available(image, runtime):
                return
        self.logger.info(f"Removing image {image}")
        try:
            _remove_image(image, runtime)
        except subprocess.CalledProcessError as refused:
            self.logger.error(f"Failed to remove image {image}: {error_output(refused)}")
        except (TimeoutError, DeploymentStartupError) as error:
            self.logger.error(f"Failed to remove image {image}: {error}")


def _pipx(arguments: str) -> str:
    """Return a command for `sh` that installs the server from the network and runs it."""
    install = "python3 -m pip install pipx && python3 -m pipx ensurepath"
    return f"{install} && python3 -m pipx run {PACKAGE_NAME} {arguments}"


def _option(words: list[str], name: str) -> str | None:
    """Return the last value of an option on a command line; None if it is absent."""
    value = None
    for i, word in enumerate(words):
        if word == name and i + 1 < len(words):
            value = words[i + 1]
        elif word.startswith(f"{name}="):
            value = word.partition("=")[2]
    return value


async def _output(process: Any) -> str:
    """Return the output of a container that has ended."""
    text = []
    for name in ("stdout", "stderr"):
        said: Any = b""
        if (stream := getattr(process, name, None)) is not None:
            with contextlib.suppress(TimeoutError, OSError, ValueError):
                said = await asyncio.wait_for(in_thread(stream.read), _OUTPUT_SECONDS)
        text.append(f"{name}:\n" + (said if isinstance(said, str) else said.decode(errors="replace")))
    return "\n".join(text)
