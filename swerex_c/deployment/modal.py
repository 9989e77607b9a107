"""A deployment in a sandbox of Modal.

It has been run with Modal's SDK 1.6.4 against a server of the tests that speaks Modal's protocol and runs the commands
for real (`tests/clouds/modal_server.py`); it has not been run in an account of Modal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Self, TypeVar

from swerex_c import PACKAGE_NAME, REMOTE_EXECUTABLE_NAME
from swerex_c.deployment import _modal_tags
from swerex_c.deployment._exec import Effort, EffortEnded
from swerex_c.deployment._modal_image import _ImageBuilder, sdk
from swerex_c.deployment._modal_tags import prune
from swerex_c.deployment._served import ServedDeployment
from swerex_c.deployment.config import ModalDeploymentConfig
from swerex_c.exceptions import DeploymentNotStartedError, DeploymentStartupError, PlaceLostError, SwerexException
from swerex_c.exec import loops
from swerex_c.exec.modal import ModalBackend, sentence, why_ended
from swerex_c.exec.threads import in_thread
from swerex_c.remote.key import VARIABLE

if TYPE_CHECKING:
    import modal

    from swerex_c.runtime.config import RemoteRuntimeConfig

__all__ = ["ModalDeployment", "ModalDeploymentConfig", "prune"]

T = TypeVar("T")

_WAIT = "trap 'exit 0' TERM INT HUP; while :; do sleep 3600 & wait $!; done"
"""What a sandbox does while commands run in it."""

_LOOKUP_SECONDS = 90.0
"""How long Modal may take to answer the first request. Its library gives up connecting after a minute."""

_SETTLE_SECONDS = 20.0
"""How long Modal may take to tell whether a sandbox that nobody wants any more was made."""

_TERMINATE_SECONDS = 20.0
"""How long ending a sandbox may take."""

_TUNNEL_SECONDS = 50
"""How long one request for a tunnel is held open by Modal."""

_OUTPUT_SECONDS = 3.0
"""How long the end of what a sandbox printed is waited for."""

_OUTPUT_LIMIT = 20_000
"""Characters of it that are told: the last."""


def _get_modal_user() -> str:
    """The profile of the library's configuration, which is the user's name unless it was called otherwise."""
    return str(sdk().config._profile)


class ModalDeployment(ServedDeployment):
    """Starts a sandbox, in which nothing is needed but bash: commands reach it by `Sandbox.exec`.

    With `server=True`, or where `_start_swerex_cmd` is replaced, the sandbox runs a server instead, and the runtime is
    its client, through a tunnel of Modal's.
    """

    _start_command = "_start_swerex_cmd"
    _ends_place = True

    def __init__(
        self,
        *,
        logger: logging.Logger | None = None,
        image: str | modal.Image | PurePath,
        startup_timeout: float = 180.0,
        runtime_timeout: float = 3600.0,
        modal_sandbox_kwargs: dict[str, Any] | None = None,
        install_pipx: bool = True,
        deployment_timeout: float = 3600.0,
        server: bool | None = None,
    ):
        """Nothing is asked of Modal before `start`.

        Args:
            image: a `modal.Image`; a Dockerfile's path; an image of a registry, or of ECR.
            startup_timeout: seconds that it may take from when the image is there until a command can run.
            runtime_timeout: how long a request to the server may take that names no timeout of its own.
            modal_sandbox_kwargs: more arguments for `modal.Sandbox.create`; they replace those that are given here.
            install_pipx: whether the image gets pipx, if there is a server in it.
            deployment_timeout: seconds after which Modal ends the sandbox, whatever has become of this process.
            server: whether there is a server in the sandbox; None is as described above.

        Raises:
            FileNotFoundError: if `image` is a path, and there is no such file.
        """
        super().__init__(logger=logger)
        if isinstance(image, PurePath) and not Path(image).is_file():
            raise FileNotFoundError(f"File {image} does not exist")
        self._config = ModalDeploymentConfig.model_construct(server=server, startup_timeout=startup_timeout)
        self._image_spec = image
        self._install_pipx = install_pipx
        self._startup_timeout = startup_timeout  # type: ignore[misc]  # callers look for it here
        self._runtime_timeout = runtime_timeout
        self._deployment_timeout = deployment_timeout
        self._modal_kwargs = dict(modal_sandbox_kwargs or {})
        self._port = 8880
        self._sandbox: Any = None
        self._backend: ModalBackend | None = None
        self._made_image: Any = None
        self._found_app: Any = None
        self._known_user: str | None = None
        self._unsure: dict[str, str] | None = None
        self._settled: threading.Event | None = None
        self._has_ended = False

    @classmethod
    def from_config(cls, config: ModalDeploymentConfig) -> Self:
        return cls(
            image=config.image,
            install_pipx=config.install_pipx,
            startup_timeout=config.startup_timeout,
            runtime_timeout=config.runtime_timeout,
            deployment_timeout=config.deployment_timeout,
            modal_sandbox_kwargs=config.modal_sandbox_kwargs,
            server=config.server,
        )

    # What callers of the original look at, each made when it is first looked at

    @property
    def _image(self) -> Any:
        """The `modal.Image`, which is built by `start`. It is as it was, but for pipx where a server is wanted."""
        if self._made_image is None:
            builder = _ImageBuilder(install_pipx=self._install_pipx and self._serves, logger=self.logger)
            self._made_image = builder.auto(self._image_spec)
        return self._made_image

    @_image.setter
    def _image(self, image: Any) -> None:
        self._made_image = image

    @property
    def _app(self) -> Any:
        """The `modal.App`. Looked for, which blocks, unless that was done."""
        if self._found_app is None:
            try:
                self._found_app = loops.call(_look_up(), _LOOKUP_SECONDS)
            except SwerexException:
                raise
            except Exception as error:
                raise DeploymentStartupError(sentence(error)) from error
        return self._found_app

    @_app.setter
    def _app(self, app: Any) -> None:
        self._found_app = app

    @property
    def _user(self) -> str:
        if self._known_user is None:
            self._known_user = _get_modal_user()
        return self._known_user

    @_user.setter
    def _user(self, user: str) -> None:
        self._known_user = user

    @property
    def app(self) -> modal.App:
        """The app that the sandbox belongs to.

        Raises:
            DeploymentStartupError: if it was not looked for before, and Modal cannot be asked.
        """
        return self._app

    @property
    def sandbox(self) -> modal.Sandbox:
        """The sandbox.

        Raises:
            DeploymentNotStartedError: if there is none.
        """
        if self._sandbox is None:
            raise DeploymentNotStartedError()
        return self._sandbox

    async def get_modal_log_url(self) -> str:
        """Where the sandbox's logs are shown.

        Raises:
            DeploymentNotStartedError: if there is no sandbox.
        """
        task = await self.sandbox._get_task_id.aio()
        return f"https://modal.com/apps/{self._user}/main/deployed/{self.app.name}?activeTab=logs&taskId={task}"

    def _start_swerex_cmd(self, token: str) -> str:
        """Text for bash that runs the server, to be overridden: that of the image, or one from the network."""
        return self._server_text(token)

    def _server_text(self, key: str) -> str:
        arguments = f"--port {self._port} --auth-token {key}"
        return f"{REMOTE_EXECUTABLE_NAME} {arguments} || pipx run {PACKAGE_NAME} {arguments}"

    # What is done

    async def start(self, *args: Any, **kwargs: Any) -> None:
        """Start a sandbox, and wait until a command can run in it. One that is started stays as it is.

        When it fails or is cancelled, whatever was begun is ended before that is raised.

        Raises:
            DeploymentStartupError: if that cannot be done: no account, no image, no room, no connection.
            StartupTimeoutError: if it takes longer than `startup_timeout`; this is a TimeoutError too.
        """
        if self._runtime is not None and self._sandbox is not None and self._ready:
            self.logger.warning("Deployment is already started. Ignoring duplicate start() call.")
            return
        await super().start(*args, **kwargs)

    async def _start(self, effort: Effort) -> None:
        try:
            await super()._start(effort)
        except PlaceLostError as error:
            if self._serves:  # it is told already
                raise
            output = await in_thread(self._server_output, _TERMINATE_SECONDS)
            raise PlaceLostError(f"{error}\n{output}") from error

    def _begin(self, effort: Effort) -> ModalBackend:
        sandbox = self._create(effort, _WAIT, {})
        self._backend = ModalBackend(sandbox)
        return self._backend

    def _begin_server(self, effort: Effort) -> RemoteRuntimeConfig:
        from swerex_c.runtime.config import RemoteRuntimeConfig

        token = self._get_token()
        more: dict[str, Any] = {}
        if self._overrides("_start_swerex_cmd"):
            text = self._start_swerex_cmd(token)
        else:
            # The key is in no list of what Modal was asked to run.
            text = f"key=${VARIABLE}; unset {VARIABLE}; " + self._server_text('"$key"')
            more["secrets"] = [sdk().Secret.from_dict({VARIABLE: token})]
        asked = [self._modal_kwargs.get(f"{kind}_ports") or () for kind in ("encrypted", "unencrypted")]
        if not any(self._port in ports for ports in asked):
            more["encrypted_ports"] = [self._port]
        sandbox = self._create(effort, text, more)
        host, port = self._tunnel(effort, sandbox)
        return RemoteRuntimeConfig(host=host, port=port, timeout=self._runtime_timeout, auth_token=token)

    def _create(self, effort: Effort, text: str, more: dict[str, Any]) -> Any:
        """A new sandbox that runs a text of bash."""
        self.logger.info("Starting modal sandbox")
        self._hooks.on_custom_step("Starting modal sandbox")
        modal = sdk()
        effort.limit(self._startup_timeout)
        if self._found_app is None:
            self._found_app = self._asked(effort, _look_up, timeout=_LOOKUP_SECONDS)
        effort.limit(None)  # an image takes as long as it takes
        image = self._described_image()
        if "image" not in self._modal_kwargs:
            self._asked(effort, lambda: _awaited(image.build.aio(self._found_app)))
        began = time.monotonic()
        effort.limit(self._startup_timeout)
        tags = _modal_tags.new_tags()
        arguments = {
            "image": image,
            "timeout": math.ceil(self._deployment_timeout),
            "app": self._found_app,
            **more,
            **self._modal_kwargs,
            "tags": {**(self._modal_kwargs.get("tags") or {}), **tags},
        }
        for name, value in more.items():
            arguments[name] = [*(self._modal_kwargs.get(name) or ()), *value]
        # Whether there is one is not known from when it is asked for until the answer is there.
        self._unsure, self._has_ended = tags, False
        self._settled = settled = threading.Event()
        try:
            self._sandbox = self._asked(
                effort,
                lambda: _awaited(modal.Sandbox.create.aio("/usr/bin/env", "bash", "-c", text, **arguments)),
                patience=_SETTLE_SECONDS,
            )
            self._unsure = None
        finally:
            settled.set()
        effort.check()
        self.logger.info(f"Sandbox ({self._sandbox.object_id}) created in {time.monotonic() - began:.2f}s")
        try:
            self.logger.info(f"Check sandbox logs at {effort.run(self.get_modal_log_url())}")
        except (EffortEnded, TimeoutError):
            raise
        except Exception as error:
            self.logger.debug("Where the sandbox's logs are is not known: %s", error)
        self.logger.info(f"Sandbox created with id {self._sandbox.object_id}")
        return self._sandbox

    def _described_image(self) -> Any:
        try:
            return self._image
        except (OSError, SwerexException):
            raise
        except Exception as error:
            if not type(error).__module__.startswith("modal"):
                raise
            raise DeploymentStartupError(sentence(error)) from error

    def _tunnel(self, effort: Effort, sandbox: Any) -> tuple[str, int]:
        """The address of the server, with its scheme, and its port."""
        tunnels = self._asked(effort, lambda: _awaited(sandbox.tunnels.aio(_TUNNEL_SECONDS)))
        tunnel = tunnels.get(self._port)
        if tunnel is None:
            raise DeploymentStartupError(f"Modal has made no tunnel to the port {self._port} of the sandbox")
        if tunnel.unencrypted_host:
            host, port = tunnel.tcp_socket
            return f"http://{host}", port
        host, port = tunnel.tls_socket
        return f"https://{host}", port

    def _asked(
        self,
        effort: Effort,
        work: Callable[[], Coroutine[Any, Any, T]],
        *,
        timeout: float | None = None,
        patience: float = 0.0,
    ) -> T:
        """What a request to Modal gives, as `Effort.run` does; what its library raises is told in one sentence."""
        try:
            return effort.run(work(), timeout=timeout, patience=patience)
        except (EffortEnded, SwerexException, TimeoutError):
            raise
        except Exception as error:
            if type(error).__name__ in _REFUSALS:
                self._unsure = None
            why = None
            if self._sandbox is not None:
                with contextlib.suppress(Exception):
                    why = self._why_ended(_TERMINATE_SECONDS)
            raise DeploymentStartupError(f"The sandbox has ended: {why}" if why else sentence(error)) from error

    def _close_seconds(self) -> float:
        return 1.0 if self._has_ended else super()._close_seconds()

    def _end(self) -> None:
        if self._settled is not None:  # the start that was given up may be about to have its sandbox
            self._settled.wait(_SETTLE_SECONDS + 5)
            self._settled = None
        sandbox, self._sandbox = self._sandbox, None
        backend, self._backend = self._backend, None
        tags, self._unsure = self._unsure, None
        if backend is not None:
            backend.close()
        try:
            if sandbox is not None:
                loops.call(_finish(sandbox), _TERMINATE_SECONDS)
            elif tags is not None:
                app = self._modal_kwargs.get("app") or self._found_app
                loops.call(_modal_tags.terminate_new(app, tags), _TERMINATE_SECONDS)
        except Exception as error:
            which = "that was asked for" if sandbox is None else sandbox.object_id
            self.logger.error(
                f"The sandbox {which} could not be terminated; Modal ends it after "
                f"{int(self._deployment_timeout)} s. {sentence(error)}"
            )

    def _why_ended(self, timeout: float) -> str | None:
        sandbox = self._sandbox
        if sandbox is None:
            return None
        try:
            reason = loops.call(why_ended(sandbox), timeout)
        except TimeoutError:
            raise
        except Exception as error:
            raise TimeoutError(sentence(error)) from error
        if reason is None:
            return None
        self._has_ended = True
        return f"The sandbox {sandbox.object_id} {reason}\n{self._server_output(timeout)}"

    def _server_output(self, timeout: float) -> str:
        if self._sandbox is None:
            return ""
        return loops.call(_printed(self._sandbox, min(timeout / 2, _OUTPUT_SECONDS)), timeout)


_REFUSALS = (
    "AlreadyExistsError",
    "AuthError",
    "InvalidError",
    "NotFoundError",
    "PermissionDeniedError",
    "ResourceExhaustedError",
    "TypeError",
    "ValueError",
)
"""Errors after which it is sure that no sandbox was made."""


async def _look_up() -> Any:
    return await sdk().App.lookup.aio(_modal_tags.APP, create_if_missing=True)


async def _awaited(work: Any) -> Any:
    return await work


async def _finish(sandbox: Any) -> None:
    """End a sandbox, and the connections to it."""
    await _modal_tags.terminate(sandbox)
    with contextlib.suppress(Exception):
        await sandbox.detach.aio()


async def _printed(sandbox: Any, seconds: float) -> str:
    """What a sandbox has printed, as far as it is told within so many seconds."""
    parts: dict[str, str] = {"stdout": "", "stderr": ""}

    async def read(name: str) -> None:
        with contextlib.suppress(Exception):
            async for text in getattr(sandbox, name):
                parts[name] = (parts[name] + text)[-_OUTPUT_LIMIT:]

    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.gather(*map(read, parts)), seconds)
    return "\n".join(f"{name}:\n{text}" for name, text in parts.items())
