"""Deployment in a new Daytona sandbox.

Tested with Daytona's SDK 0.226.1 against a test server that speaks Daytona's protocols and really runs the commands
(`tests/support/daytona_server.py`); not tested with an account of Daytona.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import math
import time
import uuid
from collections.abc import AsyncIterator
from typing import Any, Unpack

from swerex_c.exceptions import NotSupportedError
from swerex_c.providers import ownership
from swerex_c.providers.base import explained
from swerex_c.providers.daytona.backend import DaytonaBackend, sentence
from swerex_c.providers.daytona.config import DaytonaDeploymentConfig, DaytonaKeywords
from swerex_c.providers.orphans import OwnedSandbox
from swerex_c.providers.sandbox_deployment import SandboxDeployment
from swerex_c.utils.load import ConfigSignature, load_library
from swerex_c.utils.threads import in_thread
from swerex_c.utils.wait import end_tasks

__all__ = ["DaytonaDeployment", "DaytonaDeploymentConfig", "find_owned"]

_OURS = {"swerex_c.sandbox": "1"}
"""Label by which the sandboxes of this package are found."""

_END_SECONDS = 45.0
"""Seconds to wait for the end of a sandbox, which may have to be found first."""

_CLOSE_SECONDS = 5.0
"""Seconds to wait for the connections to close."""

_TRY_SECONDS = 20.0
"""Seconds to try to delete a sandbox, and before that to find out whether an abandoned one was created."""

_AGAIN_SECONDS = 0.5
"""Seconds between these attempts. A deletion is refused while the sandbox changes from one state to another."""

sdk = functools.partial(load_library, "daytona", "daytona")
"""Function that imports and returns the module `daytona`, or raises a NotAvailableError."""


class DaytonaDeployment(SandboxDeployment):
    """A deployment that starts a Daytona sandbox.

    Commands run over Daytona's terminals, for which the image needs bash and coreutils.
    """

    _ends_sandbox = True

    __signature__ = ConfigSignature("swerex_c.providers.daytona.config:DaytonaDeploymentConfig")

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Unpack[DaytonaKeywords]):
        """Take the fields of `DaytonaDeploymentConfig` as keyword arguments. No request is sent before `start`."""
        super().__init__(logger=logger)
        self._config: DaytonaDeploymentConfig = DaytonaDeploymentConfig(**kwargs)
        self._sandbox: Any = None
        self._sandbox_id: str | None = None
        self._daytona: Any = None
        self._creating: asyncio.Future[Any] | None = None
        self._name = ""
        self._minutes = max(1, math.ceil(self._config.container_timeout / 60))

    # Starting

    async def start(self, *args: Any, **kwargs: Any) -> None:
        """Start the sandbox, and wait until it can run a command; see `ProviderDeployment.start`.

        Raises:
            NotSupportedError: if the sandbox is to run a server: `server` is True, or a subclass of SWE-ReX's class has
                a `_get_command`.
        """
        if self._config.server or hasattr(self, "_get_command"):
            raise NotSupportedError("A Daytona sandbox runs no server: its commands run over Daytona's terminals")
        await super().start(*args, **kwargs)

    async def _start_sandbox(self) -> DaytonaBackend:
        began = time.monotonic()
        self._daytona = await connect(self._config.api_key, self._config.target)
        self.logger.info("Creating Daytona sandbox...")
        await self._step("Creating sandbox")
        self._name = f"swerex-{uuid.uuid4()}"
        labels = _OURS | ownership.labels(self._name, keep=False)
        params = sdk().CreateSandboxFromImageParams(
            image=self._config.image, name=self._name, labels=labels,
            auto_stop_interval=self._minutes, ephemeral=True, ttl_minutes=self._minutes,
        )  # fmt: skip
        # Cancelling the start does not cancel the creation: `_end_sandbox` deletes a sandbox that results.
        self._creating = asyncio.ensure_future(self._daytona.create(params, timeout=0))
        with explained(sentence):
            self._sandbox = await asyncio.shield(self._creating)
        self._sandbox_id = self._sandbox.id
        self.logger.info(f"Created Daytona sandbox with ID: {self._sandbox_id} in {time.monotonic() - began:.2f}s")
        return DaytonaBackend(self._sandbox)

    # Running and ending

    async def _why_ended(self) -> str | None:
        return None if self._backend is None else await self._backend.why_lost()

    async def _end_sandbox(self) -> None:
        daytona, sandbox, creating = self._daytona, self._sandbox, self._creating
        name = self._sandbox_id or self._name
        self._daytona = self._sandbox = self._creating = self._sandbox_id = None
        if daytona is None:
            return
        try:
            async with asyncio.timeout(_END_SECONDS):
                if sandbox is None and creating is not None:
                    sandbox = await self._requested(daytona, creating)
                if sandbox is not None:
                    self.logger.info(f"Removing Daytona sandbox with ID: {sandbox.id}")
                    await delete(sandbox)
                    self.logger.info("Daytona sandbox removed successfully")
        except Exception as error:
            self.logger.error(
                f"Failed to remove Daytona sandbox: {sentence(error)}. Daytona deletes {name} after {self._minutes} "
                "idle minutes, and `swerex-c prune --cloud daytona` deletes it when this process has ended"
            )
        finally:
            if creating is not None:
                await end_tasks(creating)
            with contextlib.suppress(Exception):
                await asyncio.wait_for(daytona.close(), _CLOSE_SECONDS)

    async def _requested(self, daytona: Any, creating: asyncio.Future[Any]) -> Any:
        """Return the requested sandbox; None if it does not exist and will not be created.

        Raises:
            TimeoutError: if that cannot be found out in time.
        """
        deadline = time.monotonic() + _TRY_SECONDS
        while not _was_not_sent(creating):
            is_over = creating.done()
            try:
                return await daytona.get(self._name)
            except Exception as error:
                status = getattr(error, "status_code", None)
                if status in (401, 403) or (is_over and status == 404):
                    return None
                if time.monotonic() > deadline:
                    raise TimeoutError("Daytona did not confirm that the sandbox was created") from error
            await asyncio.sleep(_AGAIN_SECONDS)
        return None


def _was_not_sent(creating: asyncio.Future[Any]) -> bool:
    """Check whether a request has failed without a connection, so that it did not reach Daytona."""
    error = creating.exception() if creating.done() and not creating.cancelled() else None
    while error is not None and not type(error).__name__.startswith("ClientConnector"):
        error = error.__cause__ or error.__context__
    return error is not None


async def connect(api_key: str = "", target: str | None = None) -> Any:
    """Return a client for the event loop of `background`, to be closed there; the SDK reads the variables DAYTONA_*.

    Raises:
        NotAvailableError: if the SDK cannot be imported.
        DeploymentStartupError: if there is no key.
    """
    module = await in_thread(sdk)  # the import takes a second, which must not block the event loop
    with explained(sentence):
        return module.AsyncDaytona(module.DaytonaConfig(api_key=api_key or None, target=target or None))


async def delete(sandbox: Any) -> None:
    """Delete a sandbox. It is no error if the sandbox no longer exists.

    Raises:
        DeploymentStartupError: if access is refused or all attempts in `_TRY_SECONDS` fail.
    """
    deadline = time.monotonic() + _TRY_SECONDS
    with explained(sentence):
        while True:
            try:
                await sandbox.delete(timeout=_TRY_SECONDS)
                return
            except Exception as error:
                status = getattr(error, "status_code", None)
                if status == 404:
                    return
                if status in (401, 403) or time.monotonic() + _AGAIN_SECONDS > deadline:
                    raise
            await asyncio.sleep(_AGAIN_SECONDS)


async def find_owned() -> AsyncIterator[OwnedSandbox]:
    """Yield the sandboxes that this package started.

    Raises:
        DeploymentStartupError: if Daytona cannot be reached, or refuses the request.
    """
    daytona = await connect()
    try:
        with explained(sentence):
            # List all sandboxes before the first is deleted, because a deletion shifts the pages of the list.
            for sandbox in [it async for it in daytona.list(sdk().ListSandboxesQuery(labels=_OURS))]:
                labels = sandbox.labels or {}
                if ownership.has_own_labels(labels, sandbox.name):
                    end = functools.partial(delete, sandbox)
                    yield OwnedSandbox(sandbox.id, sandbox.name, "Daytona sandbox", labels, end)
    finally:
        await daytona.close()
