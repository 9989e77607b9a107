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
from typing import TYPE_CHECKING, Any

from swerex_c.exceptions import (
    ConnectionLostError,
    DeploymentNotStartedError,
    DeploymentStartupError,
    InvalidInputError,
    NotSupportedError,
    SandboxLostError,
)
from swerex_c.providers.base import explained
from swerex_c.providers.modal import tags as _modal_tags
from swerex_c.providers.modal.backend import ModalBackend, sentence
from swerex_c.providers.modal.config import ModalDeploymentConfig
from swerex_c.providers.modal.image import _ImageBuilder, sdk
from swerex_c.providers.modal.tags import find_owned
from swerex_c.providers.sandbox_deployment import SandboxDeployment, State
from swerex_c.utils.shell_script import read_script
from swerex_c.utils.threads import in_thread, in_thread_to_its_end
from swerex_c.utils.wait import settle

if TYPE_CHECKING:
    import modal

__all__ = ["ModalDeployment", "ModalDeploymentConfig", "find_owned"]

_WAIT = read_script("providers/wait.bash")
"""Script of the sandbox's main process, which waits while commands run in the sandbox."""

_SETTLE_SECONDS = 20.0
"""Seconds to wait for Modal's answer whether an abandoned sandbox was created."""

_TERMINATE_SECONDS = 20.0
"""Seconds to wait for the end of a sandbox."""

_OUTPUT_SECONDS = 3.0
"""Seconds to wait for the end of a sandbox's output."""

_OUTPUT_LIMIT = 20_000
"""Maximum number of characters of each output that are reported, from its end."""


def _get_modal_user() -> str:
    """Return the SDK's profile, which is named after the user by default."""
    return str(sdk().config._profile)


class ModalDeployment(SandboxDeployment):
    """A deployment that starts a Modal sandbox.

    Commands run over `Sandbox.exec`, for which the image needs only bash. There is no server in the sandbox.
    """

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
            runtime_timeout: not used, as `install_pipx`: in SWE-ReX they are for the server.
            modal_sandbox_kwargs: additional arguments for `modal.Sandbox.create`; they override those given here.
            deployment_timeout: seconds after which Modal ends the sandbox, even if this process is gone.
            server: True makes `start` raise a `NotSupportedError`.

        Raises:
            FileNotFoundError: if `image` is a path, and there is no such file.
            InvalidInputError: if `deployment_timeout` is not finite.
        """
        super().__init__(logger=logger)
        if not math.isfinite(deployment_timeout):
            raise InvalidInputError(f"deployment_timeout has to be a number of seconds: {deployment_timeout!r}")
        if isinstance(image, PurePath) and not Path(image).is_file():
            raise FileNotFoundError(f"File {image} does not exist")
        self._config = ModalDeploymentConfig.model_construct(server=server, startup_timeout=startup_timeout)
        self._image_spec = image
        self._startup_timeout = startup_timeout  # type: ignore[misc]  # callers look for it here
        self._runtime_timeout = runtime_timeout
        self._deployment_timeout = deployment_timeout
        self._modal_kwargs = dict(modal_sandbox_kwargs or {})
        self._app: Any = None
        self._sandbox: Any = None
        self._tags: dict[str, str] | None = None  # of the sandbox that was requested

    # Attributes that callers of SWE-ReX read, or assign

    @functools.cached_property
    def _image(self) -> Any:
        try:
            return _ImageBuilder(install_pipx=False, logger=self.logger).auto(self._image_spec)
        except (sdk().exception.Error, ValueError) as error:
            raise DeploymentStartupError(sentence(error)) from error

    @functools.cached_property
    def _user(self) -> str:
        return _get_modal_user()

    @property
    def app(self) -> modal.App:
        """The app that the sandbox belongs to.

        Raises:
            DeploymentNotStartedError: if the deployment was never started.
        """
        if self._app is None:
            raise DeploymentNotStartedError()
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
            ConnectionLostError: if Modal does not tell it.
        """
        sandbox = self.sandbox
        try:
            task = await sandbox._get_task_id.aio()
        except Exception as error:
            raise ConnectionLostError(f"Cannot get the URL of the logs. {sentence(error)}") from error
        return f"https://modal.com/apps/{self._user}/main/deployed/{self.app.name}?activeTab=logs&taskId={task}"

    # Starting and ending

    async def start(self, *args: Any, **kwargs: Any) -> None:
        """Start the sandbox; see `ProviderDeployment.start`. Do nothing if the deployment is already started.

        Raises:
            NotSupportedError: if the sandbox is to run a server: `server` is True, or a subclass of SWE-ReX's class has
                a `_start_swerex_cmd`.
        """
        if self._config.server or hasattr(self, "_start_swerex_cmd"):
            raise NotSupportedError("A Modal sandbox runs no server: its commands run over Sandbox.exec")
        if self._state is State.STARTED:
            self.logger.warning("Deployment is already started. Ignoring duplicate start() call.")
            return
        await super().start(*args, **kwargs)

    async def _start(self) -> None:
        try:
            await super()._start()
        except SandboxLostError as error:
            raise SandboxLostError(f"{error}\n{await _printed(self._sandbox)}") from error

    async def _start_sandbox(self) -> ModalBackend:
        self.logger.info("Starting modal sandbox")
        await self._step("Starting modal sandbox")
        modal = await in_thread(sdk)  # the import takes a second, which must not block the event loop
        if self._app is None:
            with explained(sentence):
                self._app = await modal.App.lookup.aio(_modal_tags.APP, create_if_missing=True)
        self._limit_start(None)  # building an image has no time limit
        image = await in_thread_to_its_end(getattr, self, "_image")
        if "image" not in self._modal_kwargs:
            with explained(sentence):
                await image.build.aio(self._app)
        began = time.monotonic()
        self._limit_start(self._startup_timeout)
        self._tags = _modal_tags.new_tags()
        arguments = {
            "image": image,
            "timeout": math.ceil(self._deployment_timeout),
            "app": self._app,
            **self._modal_kwargs,
            "tags": {**(self._modal_kwargs.get("tags") or {}), **self._tags},
        }
        with explained(sentence):
            request = modal.Sandbox.create.aio("/usr/bin/env", "bash", "-c", _WAIT, **arguments)
            await settle(self._create(request), _SETTLE_SECONDS)
        self.logger.info(f"Sandbox ({self._sandbox.object_id}) created in {time.monotonic() - began:.2f}s")
        try:
            self.logger.info(f"Check sandbox logs at {await self.get_modal_log_url()}")
        except Exception as error:
            self.logger.debug("Cannot get the URL of the sandbox's logs: %s", error)
        self.logger.info(f"Sandbox created with id {self._sandbox.object_id}")
        return ModalBackend(self._sandbox)

    async def _create(self, request: Awaitable[Any]) -> None:
        self._sandbox = await request

    async def _why_ended(self) -> str | None:
        with contextlib.suppress(ConnectionLostError):
            if self._backend is not None and (why := await self._backend.why_lost()):
                return f"{why}\n{await _printed(self._sandbox)}"
        return None

    async def _end_sandbox(self) -> None:
        sandbox, self._sandbox = self._sandbox, None
        tags, self._tags = self._tags, None
        try:
            async with asyncio.timeout(_TERMINATE_SECONDS):
                if sandbox is not None:
                    await _modal_tags.terminate(sandbox)
                    with contextlib.suppress(Exception):  # what is left are connections
                        await sandbox.detach.aio()
                elif tags is not None:  # without a response it is unknown whether the sandbox exists
                    await _modal_tags.terminate_new(self._modal_kwargs.get("app") or self._app, tags)
        except Exception as error:
            which = "that was requested" if sandbox is None else sandbox.object_id
            self.logger.error(
                f"Cannot terminate the sandbox {which}; Modal ends it after "
                f"{int(self._deployment_timeout)} s. {sentence(error)}"
            )


async def _printed(sandbox: Any) -> str:
    """Return the output of a sandbox, as far as it arrives in time."""

    async def read(name: str) -> str:
        text = ""
        with contextlib.suppress(Exception):  # TimeoutError is one
            text = await asyncio.wait_for(getattr(sandbox, name).read.aio(), _OUTPUT_SECONDS)
        return f"{name}:\n{text[-_OUTPUT_LIMIT:]}"

    return "\n".join(await asyncio.gather(read("stdout"), read("stderr")))
