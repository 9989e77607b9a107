"""Deployment in a container of Docker or Podman."""

from __future__ import annotations

import contextlib
import logging
import re
import secrets
import shlex
import uuid
from typing import TYPE_CHECKING, Any, Unpack

from swerex_c._version import PACKAGE_NAME, REMOTE_EXECUTABLE_NAME
from swerex_c.exceptions import DeploymentStartupError, DockerPullError, SwerexException
from swerex_c.providers import ownership
from swerex_c.providers.docker.config import DockerDeploymentConfig, DockerKeywords
from swerex_c.providers.docker.engine import Engine, forget, remember
from swerex_c.providers.server_deployment import ServerDeployment
from swerex_c.sandbox.env_passing import quote_for_any_shell
from swerex_c.utils import background
from swerex_c.utils.load import ConfigSignature
from swerex_c.utils.shell_script import read_script
from swerex_c.utils.threads import in_thread, in_thread_to_its_end

if TYPE_CHECKING:
    from swerex_c.providers.docker.backend import DockerBackend
    from swerex_c.runtime.config import RemoteRuntimeConfig

__all__ = ["DockerDeployment", "DockerDeploymentConfig"]

_WAIT = read_script("providers/wait.bash")
"""Main script of the container while commands run in it. It can first report that bash runs."""

_OWN_STREAMS = re.compile("-[A-Za-z]*[adit]|--(attach|cidfile|detach|interactive|tty)(=.*)?")
"""Options of `docker run` that are incompatible with reading the container's output."""

_SETS = re.compile("-[A-Za-z]*e|--env")
_SETTING = re.compile("((?:-[A-Za-z]*e=?|--env=)[^=]+)=")
"""Options of `docker run` that set an environment variable, without and with the variable."""

_SHELLS = ("", "sh", "bash", "dash", "ash")
"""Entry points that are only a shell: the waiting script replaces them."""


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
        self._used: Engine | None = None
        self._refused = False

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
        image, policy, engine = self._config.image, self._config.pull, self._engine()
        if policy == "always" or (policy == "missing" and not background.run_blocking(engine.has_image(image))):
            background.run_blocking(self._pull(engine))

    async def _pull(self, engine: Engine) -> None:
        self.logger.info(f"Pulling image {self._config.image!r}")
        await self._step("Pulling container image")
        await engine.pull(self._config.image, self._config.platform)

    @property
    def glibc_dockerfile(self) -> str:
        """Dockerfile that adds a Python and a server to an image with glibc.

        They are installed in `python_standalone_dir`.
        """
        where, platform = f"{self._config.python_standalone_dir}/python3.11", self._config.platform
        on = f"--platform={platform} " if platform else ""
        apt = "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends"
        source = "https://www.python.org/ftp/python/3.11.9/Python-3.11.9.tgz"
        lines = [
            "ARG BASE_IMAGE",
            "",
            f"FROM {on}python:3.11-slim-bookworm AS builder",
            f"RUN {apt} gcc libc6-dev libffi-dev libssl-dev make wget zlib1g-dev",
            f"RUN wget -qO- {source} | tar -xz -C /usr/src",
            "WORKDIR /usr/src/Python-3.11.9",
            f"RUN ./configure --prefix={where} --enable-shared LDFLAGS=-Wl,-rpath={where}/lib \\",
            '    && make -j"$(nproc)" && make install',
            f"RUN {where}/bin/pip3 install --no-cache-dir {PACKAGE_NAME} aiohttp",
            "",
            f"FROM {on}$BASE_IMAGE",
            f"COPY --from=builder {where} {where}",
            f"RUN {where}/bin/python3 --version && {where}/bin/{REMOTE_EXECUTABLE_NAME} --version",
        ]
        return "\n".join(lines) + "\n"

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
        building = self._engine().build(words, self.glibc_dockerfile.encode(), f"Building image {image}")
        return background.run_blocking(building)

    async def _prepare(self) -> str:
        """Return the image to start. The startup timeout begins when this returns."""
        config = self._config
        builds = bool(config.python_standalone_dir) and (
            self._serves or self._overrides("_build_image") or self._overrides("glibc_dockerfile")
        )
        self._limit_start(None)
        if builds or config.pull == "always" or self._overrides("_pull_image"):
            await in_thread_to_its_end(self._pull_image)
        image = await in_thread_to_its_end(self._build_image) if builds else config.image
        self._limit_start(config.startup_timeout)
        return image

    async def _launch(self, engine: Engine, words: list[str], greeting: bytes = b"") -> bytes:
        """Launch a container as `Engine.launch` does. Pull an image that is missing, if the configuration says so."""
        image, self._refused = self._config.image, False
        try:
            try:
                return await engine.launch(words, image, greeting)
            except DockerPullError:
                if self._config.pull != "missing" or self._overrides("_pull_image"):
                    raise
            self._limit_start(None)
            await self._pull(engine)
            self._limit_start(self._config.startup_timeout)
            return await engine.launch(words, image, greeting)
        except DeploymentStartupError:
            self._refused = True
            raise

    # Starting

    def _name_container(self, engine: Engine) -> list[str]:
        """Choose a name, and return the options of `run` and `create` beside the name that precede the caller's."""
        config = self._config
        name = self._container_name = self._get_container_name()
        self._used = engine
        remember(name, engine, not config.remove_container)
        # The image was pulled before, if required; a --pull of the caller comes later and takes precedence.
        words = ["--pull", "never"]
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

    async def _start(self) -> None:
        try:
            await super()._start()
        except SwerexException as error:
            if self._entry is None or self._serves or self._backend is None or isinstance(error, TimeoutError):
                raise
            output = await self._server_output()
            raise DeploymentStartupError(f"{error}. Its entry point {self._entry!r} printed: {output}") from error

    async def _start_sandbox(self) -> DockerBackend:
        image, engine = await self._prepare(), self._engine()
        words = [*await in_thread_to_its_end(self._name_container, engine), *self._config.docker_args]
        name = str(self._container_name)
        words += ["--name", name]  # after a name among the caller's arguments, whose container nobody would find
        self.logger.info(f"Starting container {name} with image {self._config.image}")
        greets = self._entry is None and engine.is_docker() and not any(map(_OWN_STREAMS.fullmatch, words))
        token = f"swerex-c {secrets.token_hex(16)} " if greets else ""
        # With -p, so that settings of the image for other shells (BASH_ENV) do not prevent the greeting.
        command = ["bash", "-p", "-c", _WAIT, "bash", token]
        if self._shell:
            command = [*self._shell, quote_for_any_shell(command)]
        if self._entry is None:
            words += ["--entrypoint", command[0], image, *command[1:]]
        else:  # the caller's entry point must end by running the command that it gets
            words += [image, *command]
        words = ["run", *(["-a", "stdout"] if greets else ["-d"]), *words]
        self.logger.debug(f"Command: {_shown([engine.runtime, *words])!r}")
        greeting = await self._launch(engine, words, token.encode())
        if greets:
            self._check_greeting(greeting)
        return engine.backend(name, self._shell)

    def _check_greeting(self, greeting: bytes) -> None:
        from swerex_c.sandbox.loader_pool import check_version

        version = re.fullmatch(rb"(\d{1,4}) (\d{1,4})", greeting)
        if version is None:
            msg = f"The program bash of the image {self._config.image!r} is not GNU bash, which sessions need"
            raise DeploymentStartupError(f"{msg}: asked for its version, it said {greeting[:80]!r}")
        check_version((int(version[1]), int(version[2])), f"container {self._container_name}")
        self._runs_bash = True

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

    async def _start_server(self) -> RemoteRuntimeConfig:
        """Create the container, copy the bundled server into it if it is used, and start it."""
        from swerex_c.remote.server.auth import VARIABLE
        from swerex_c.runtime.config import RemoteRuntimeConfig
        from swerex_c.utils.free_port import find_free_port

        config, image, engine = self._config, await self._prepare(), self._engine()
        finds_port = config.port in (None, self._found_port)  # an earlier start's is another process's by now
        if finds_port and self._on_host_network:
            config.port = self._found_port = await in_thread(find_free_port)
        token = await in_thread_to_its_end(self._get_token)
        own = not self._overrides("_get_swerex_start_cmd")
        words = ["create", *await in_thread_to_its_end(self._name_container, engine)]
        name = str(self._container_name)
        if not self._on_host_network:
            words += ["-p", "8000" if finds_port else f"{config.port}:8000"]
        if own:
            engine.environment[VARIABLE] = token
            words += ["-e", VARIABLE]
            command = [*config.exec_shell, self._own_server_text()]
        else:
            command = await in_thread_to_its_end(self._get_swerex_start_cmd, token)
        words += [*config.docker_args, "--name", name, image, *command]
        self.logger.info(f"Starting container {name} with image {config.image} and a server")
        self.logger.debug(f"Command: {_shown([engine.runtime, *words])!r}")
        await self._launch(engine, words)
        if own and not config.python_standalone_dir:
            await self._copy_server_bundle(engine, name)
        await engine.launch(["start", name], config.image)
        await in_thread_to_its_end(self._wait_for, engine, name)
        if finds_port and not self._on_host_network:
            config.port = self._found_port = await engine.port(name, 8000)
        return RemoteRuntimeConfig(
            host=config.docker_internal_host, port=config.port, timeout=self._runtime_timeout, auth_token=token
        )

    def _wait_for(self, engine: Engine, name: str) -> None:
        self._container_process = engine.waiter(name)

    async def _copy_server_bundle(self, engine: Engine, name: str) -> None:
        """Copy this installation into the container, in case the image has no server. A failure is only logged."""
        from swerex_c.providers import server_bundle

        try:
            bundle = await in_thread(server_bundle.archive)
            result = await engine.ask("cp", "-", f"{name}:/", timeout=None, input=bundle)
            problem = result.message if result.code else None
        except (LookupError, OSError) as error:
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
            await super()._wait_until_alive(timeout)
        except TimeoutError:
            await self.stop()
            raise

    # Running and ending

    async def _server_output(self) -> str:
        return await (self._used or self._engine()).logs(str(self._container_name))

    async def _why_ended(self) -> str | None:
        process, backend = self._container_process, self._backend
        if process is not None and process.poll() is not None:
            return await self._server_output()
        if backend is None:
            return None
        reason, is_final = await backend.inspect()
        return reason if is_final else None

    def _has_begun(self) -> bool:
        # A subclass with its own `start` sets these.
        return super()._has_begun() or self._container_name is not None or self._container_process is not None

    async def _end_sandbox(self) -> None:
        name, process, engine = self._container_name, self._container_process, self._used or self._engine()
        self._container_name = self._container_process = self._used = None
        if name is not None:
            await self._end_container(engine, name)
        if process is not None:
            await in_thread(_reap, process)
        if self._config.remove_images:
            await self._remove_image()

    async def _end_container(self, engine: Engine, name: str) -> None:
        problem = await engine.end(name, keep=not self._config.remove_container)
        if problem is None:
            forget(name)
        elif not self._refused:  # else probably none was made
            self.logger.warning(
                f"Failed to kill container {name} ({problem}). When the engine works again and this process has ended, "
                f"remove it with `swerex-c prune --container-runtime {engine.runtime}`."
            )

    async def _remove_image(self) -> None:
        self.logger.info(f"Removing image {self._config.image}")
        if problem := await self._engine().remove_image(self._config.image):
            self.logger.error(f"Failed to remove image {self._config.image}: {problem}")


def _reap(process: Any) -> None:
    """End a client process; a subclass may have started another kind of process."""
    with contextlib.suppress(Exception):
        process.kill()
        process.wait(timeout=5)


def _shown(words: list[str]) -> str:
    """Return a command line for the log, without the values of environment variables: they may be secrets."""
    shown = list(words)
    for i, word in enumerate(words):
        if i and _SETS.fullmatch(words[i - 1]):
            shown[i] = word.partition("=")[0]
        elif setting := _SETTING.match(word):
            shown[i] = setting[1]
    return shlex.join(shown)


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
