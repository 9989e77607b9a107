"""Deployment in a new Modal sandbox.

Tested with Modal's SDK 1.6.4 against a test server that speaks Modal's protocol and really runs the commands
(`tests/support/modal_server.py`); not tested with an account of Modal.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import time
from collections.abc import Awaitable
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Self, TypeVar

from swerex_c._version import PACKAGE_NAME, REMOTE_EXECUTABLE_NAME
from swerex_c.exceptions import DeploymentNotStartedError, DeploymentStartupError, SandboxLostError, SwerexException
from swerex_c.providers.modal import tags as _modal_tags
from swerex_c.providers.modal.backend import ModalBackend, sentence, why_ended
from swerex_c.providers.modal.config import ModalDeploymentConfig
from swerex_c.providers.modal.image import _ImageBuilder, sdk
from swerex_c.providers.modal.tags import prune
from swerex_c.providers.sandbox_deployment import State
from swerex_c.providers.server_deployment import ServerDeployment
from swerex_c.remote.server.auth import VARIABLE
from swerex_c.utils import background
from swerex_c.utils.threads import in_thread

if TYPE_CHECKING:
    import modal

    from swerex_c.runtime.config import RemoteRuntimeConfig

__all__ = ["ModalDeployment", "ModalDeploymentConfig", "prune"]

T = TypeVar("T")

_WAIT = "trap 'exit 0' TERM INT HUP; while :; do sleep 3600 & wait $!; done"
"""Script of the sandbox's main process, which waits while commands run in the sandbox."""

_LOOKUP_SECONDS = 90.0
"""Seconds to wait for the response to the first request. The SDK gives up connecting after a minute."""

_SETTLE_SECONDS = 20.0
"""Seconds to wait for Modal's answer whether an abandoned sandbox was created."""

_TERMINATE_SECONDS = 20.0
"""Seconds to wait for the end of a sandbox."""

_TUNNEL_SECONDS = 50
"""Seconds for which Modal holds one request for a tunnel open."""

_OUTPUT_SECONDS = 3.0
"""Seconds to wait for the end of a sandbox's output."""

_OUTPUT_LIMIT = 20_000
"""Maximum number of characters of each output that are reported, from its end."""


def _get_modal_user() -> str:
    """Return the SDK's profile, which is named after the user by default."""
    return str(sdk().config._profile)


class ModalDeployment(ServerDeployment):
    """A deployment that starts a Modal sandbox.

    Commands run over `Sandbox.exec`, for which the image needs only bash.

    With `server=True`, or if `_start_swerex_cmd` is overridden, the sandbox runs a server instead, and the runtime is
    its client through a tunnel of Modal.
    """

    _start_command = "_start_swerex_cmd"
    _ends_sandbox = True

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
        """Prepare a deployment. No request is sent to Modal before `start`.

        Args:
            image: a `modal.Image`, the path of a Dockerfile, or the name of an image in a registry or in ECR.
            startup_timeout: seconds from the end of the image build until a command can run.
            runtime_timeout: seconds for a request to the server that sets no timeout of its own.
            modal_sandbox_kwargs: additional arguments for `modal.Sandbox.create`; they override those given here.
            install_pipx: True to add pipx to the image, if the sandbox runs a server.
            deployment_timeout: seconds after which Modal ends the sandbox, even if this process is gone.
            server: True if the sandbox runs a server; None is as described for the class.

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
        self._unsure: dict[str, str] | None = None
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

    # Attributes that callers of SWE-ReX read, or assign, each created on its first use

    @functools.cached_property
    def _image(self) -> Any:
        """The `modal.Image` that `start` builds: the given image, with pipx added where a server needs it."""
        builder = _ImageBuilder(install_pipx=self._install_pipx and self._serves, logger=self.logger)
        return builder.auto(self._image_spec)

    @functools.cached_property
    def _app(self) -> Any:
        """The `modal.App`. The first use looks it up, which blocks."""
        try:
            return background.run_blocking(_look_up(), _LOOKUP_SECONDS)
        except SwerexException:
            raise
        except Exception as error:
            raise DeploymentStartupError(sentence(error)) from error

    @functools.cached_property
    def _user(self) -> str:
        return _get_modal_user()

    @property
    def app(self) -> modal.App:
        """The app that the sandbox belongs to.

        Raises:
            DeploymentStartupError: if the app was not looked up before, and Modal cannot be reached.
        """
        return self._app

    @property
    def sandbox(self) -> modal.Sandbox:
        """The sandbox.

        Raises:
            DeploymentNotStartedError: if there is no sandbox.
        """
        if self._sandbox is None:
            raise DeploymentNotStartedError()
        return self._sandbox

    async def get_modal_log_url(self) -> str:
        """Return the URL of the sandbox's logs.

        Raises:
            DeploymentNotStartedError: if there is no sandbox.
        """
        task = await self.sandbox._get_task_id.aio()
        return f"https://modal.com/apps/{self._user}/main/deployed/{self.app.name}?activeTab=logs&taskId={task}"

    def _start_swerex_cmd(self, token: str) -> str:
        """Return a bash script that runs the server of the image, or one from the network. Can be overridden."""
        return self._server_text(token)

    def _server_text(self, key: str) -> str:
        arguments = f"--port {self._port} --auth-token {key}"
        return f"{REMOTE_EXECUTABLE_NAME} {arguments} || pipx run {PACKAGE_NAME} {arguments}"

    # Starting and ending

    async def start(self, *args: Any, **kwargs: Any) -> None:
        """Start a sandbox, and wait until a command can run in it.

        Do nothing if the deployment is already started. A start that fails or is cancelled ends everything that it
        began before it raises.

        Raises:
            DeploymentStartupError: if the start fails: no account, no image, no capacity, no connection.
            StartupTimeoutError: if it takes longer than `startup_timeout`; this is also a TimeoutError.
        """
        if self._runtime is not None and self._sandbox is not None and self._state is State.STARTED:
            self.logger.warning("Deployment is already started. Ignoring duplicate start() call.")
            return
        await super().start(*args, **kwargs)

    async def _start(self) -> None:
        try:
            await super()._start()
        except SandboxLostError as error:
            if self._serves:  # the error already has the output
                raise
            output = await in_thread(self._server_output, _TERMINATE_SECONDS)
            raise SandboxLostError(f"{error}\n{output}") from error

    async def _start_sandbox(self) -> ModalBackend:
        sandbox = await self._create(_WAIT, {})
        self._backend = ModalBackend(sandbox)
        return self._backend

    async def _start_server(self) -> RemoteRuntimeConfig:
        from swerex_c.runtime.config import RemoteRuntimeConfig

        token = self._get_token()
        more: dict[str, Any] = {}
        if self._overrides("_start_swerex_cmd"):
            text = await self._in_thread(self._start_swerex_cmd, token)
        else:
            # A secret keeps the key out of the command that Modal stores and lists.
            text = f"key=${VARIABLE}; unset {VARIABLE}; " + self._server_text('"$key"')
            more["secrets"] = [(await in_thread(sdk)).Secret.from_dict({VARIABLE: token})]
        asked = [self._modal_kwargs.get(f"{kind}_ports") or () for kind in ("encrypted", "unencrypted")]
        if not any(self._port in ports for ports in asked):
            more["encrypted_ports"] = [self._port]
        sandbox = await self._create(text, more)
        host, port = await self._tunnel(sandbox)
        return RemoteRuntimeConfig(host=host, port=port, timeout=self._runtime_timeout, auth_token=token)

    async def _create(self, text: str, more: dict[str, Any]) -> Any:
        """Create a sandbox that runs the bash script `text`. `more` has further arguments for its creation."""
        self.logger.info("Starting modal sandbox")
        await self._step("Starting modal sandbox")
        modal = await in_thread(sdk)
        self._limit_start(self._startup_timeout)
        if "_app" not in vars(self):
            self._app = await self._asked(_look_up(), _LOOKUP_SECONDS)
        self._limit_start(None)  # building an image has no time limit
        image = await self._in_thread(self._described_image)
        if "image" not in self._modal_kwargs:
            await self._asked(image.build.aio(self._app))
        began = time.monotonic()
        self._limit_start(self._startup_timeout)
        tags = _modal_tags.new_tags()
        arguments = {
            "image": image,
            "timeout": math.ceil(self._deployment_timeout),
            "app": self._app,
            **more,
            **self._modal_kwargs,
            "tags": {**(self._modal_kwargs.get("tags") or {}), **tags},
        }
        for name, value in more.items():
            arguments[name] = [*(self._modal_kwargs.get(name) or ()), *value]
        # From the request until the response it is unknown whether the sandbox exists.
        self._unsure, self._has_ended = tags, False
        await self._asked(self._made(modal.Sandbox.create.aio("/usr/bin/env", "bash", "-c", text, **arguments)))
        self.logger.info(f"Sandbox ({self._sandbox.object_id}) created in {time.monotonic() - began:.2f}s")
        try:
            self.logger.info(f"Check sandbox logs at {await self.get_modal_log_url()}")
        except Exception as error:
            self.logger.debug("Cannot get the URL of the sandbox's logs: %s", error)
        self.logger.info(f"Sandbox created with id {self._sandbox.object_id}")
        return self._sandbox

    async def _made(self, work: Awaitable[Any]) -> None:
        """Store the sandbox that a request creates. If it is cancelled, the response is waited for nevertheless."""
        creating = asyncio.ensure_future(_awaited(work))
        try:
            self._sandbox = await asyncio.shield(creating)
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                self._sandbox = await asyncio.wait_for(creating, _SETTLE_SECONDS)
                self._unsure = None
            raise
        self._unsure = None

    def _described_image(self) -> Any:
        try:
            return self._image
        except (OSError, SwerexException):
            raise
        except Exception as error:
            if not type(error).__module__.startswith("modal"):
                raise
            raise DeploymentStartupError(sentence(error)) from error

    async def _tunnel(self, sandbox: Any) -> tuple[str, int]:
        """Return the URL of the server without its port, and the port."""
        tunnels = await self._asked(sandbox.tunnels.aio(_TUNNEL_SECONDS))
        tunnel = tunnels.get(self._port)
        if tunnel is None:
            raise DeploymentStartupError(f"Modal created no tunnel to the port {self._port} of the sandbox")
        if tunnel.unencrypted_host:
            host, port = tunnel.tcp_socket
            return f"http://{host}", port
        host, port = tunnel.tls_socket
        return f"https://{host}", port

    async def _asked(self, work: Awaitable[T], timeout: float | None = None) -> T:
        """Return the result of a request to Modal. Convert an SDK error to a `DeploymentStartupError`."""
        try:
            async with asyncio.timeout(timeout):
                return await work
        except (SwerexException, TimeoutError):
            raise
        except Exception as error:
            if type(error).__name__ in _REFUSALS:
                self._unsure = None
            why = None
            if self._sandbox is not None:
                with contextlib.suppress(Exception):
                    why = await in_thread(self._why_ended, _TERMINATE_SECONDS)
            raise DeploymentStartupError(f"The sandbox has ended: {why}" if why else sentence(error)) from error

    def _close_seconds(self) -> float:
        return 1.0 if self._has_ended else super()._close_seconds()

    async def _end_sandbox(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        backend, self._backend = self._backend, None
        tags, self._unsure = self._unsure, None
        if backend is not None:
            await backend.close()
        try:
            async with asyncio.timeout(_TERMINATE_SECONDS):
                if sandbox is not None:
                    await _finish(sandbox)
                elif tags is not None:
                    await _modal_tags.terminate_new(self._modal_kwargs.get("app") or self._app, tags)
        except Exception as error:
            which = "that was requested" if sandbox is None else sandbox.object_id
            self.logger.error(
                f"Cannot terminate the sandbox {which}; Modal ends it after "
                f"{int(self._deployment_timeout)} s. {sentence(error)}"
            )

    def _why_ended(self, timeout: float) -> str | None:
        sandbox = self._sandbox
        if sandbox is None:
            return None
        try:
            reason = background.run_blocking(why_ended(sandbox), timeout)
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
        return background.run_blocking(_printed(self._sandbox, min(timeout / 2, _OUTPUT_SECONDS)), timeout)


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
"""Names of the errors after which it is certain that no sandbox was created."""


async def _look_up() -> Any:
    return await sdk().App.lookup.aio(_modal_tags.APP, create_if_missing=True)


async def _awaited(work: Awaitable[T]) -> T:
    return await work


async def _finish(sandbox: Any) -> None:
    """End a sandbox, and close the connections to it."""
    await _modal_tags.terminate(sandbox)
    with contextlib.suppress(Exception):
        await sandbox.detach.aio()


async def _printed(sandbox: Any, seconds: float) -> str:
    """Return the output of a sandbox, as far as it arrives within `seconds`."""
    parts: dict[str, str] = {"stdout": "", "stderr": ""}

    async def read(name: str) -> None:
        with contextlib.suppress(Exception):
            async for text in getattr(sandbox, name):
                parts[name] = (parts[name] + text)[-_OUTPUT_LIMIT:]

    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.gather(*map(read, parts)), seconds)
    return "\n".join(f"{name}:\n{text}" for name, text in parts.items())
