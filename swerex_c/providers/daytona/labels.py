"""Ownership labels of Daytona sandboxes, and deletion of orphans."""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections.abc import AsyncIterator
from typing import Any

from swerex_c.providers import ownership
from swerex_c.providers.base import explained
from swerex_c.providers.daytona.backend import sentence
from swerex_c.providers.orphans import OwnedSandbox
from swerex_c.utils.load import load_library
from swerex_c.utils.threads import in_thread

__all__ = ["client", "delete", "find_owned", "new_labels", "sdk"]

_OURS = {"swerex_c.sandbox": "1"}
"""Label by which the sandboxes of this package are found."""

_DELETE_SECONDS = 20.0
"""Seconds to try to delete a sandbox."""

_AGAIN_SECONDS = 0.5
"""Seconds between attempts to delete a sandbox, which are refused while it changes from one state to another."""


sdk = functools.partial(load_library, "daytona", "daytona")
"""Function that imports and returns the module `daytona`, or raises a NotAvailableError."""


async def client(api_key: str = "", target: str | None = None) -> Any:
    """Return a client for the event loop of `background`, to be closed there.

    Defaults come from the variables DAYTONA_*.

    Raises:
        NotAvailableError: if the SDK cannot be imported.
        DeploymentStartupError: if there is no key.
    """
    module = await in_thread(sdk)  # the import takes a second, which must not block the event loop
    with explained(sentence):
        return module.AsyncDaytona(module.DaytonaConfig(api_key=api_key or None, target=target or None))


def new_labels() -> tuple[str, dict[str, str]]:
    """Return a name and the labels for a sandbox that this process is about to start."""
    name = f"swerex-{uuid.uuid4()}"
    return name, _OURS | ownership.labels(name, keep=False)


async def delete(sandbox: Any) -> None:
    """Delete a sandbox. It is no error if the sandbox no longer exists.

    Raises:
        DeploymentStartupError: if access is refused or all attempts in `_DELETE_SECONDS` fail.
    """
    deadline = asyncio.get_running_loop().time() + _DELETE_SECONDS
    with explained(sentence):
        while True:
            try:
                await sandbox.delete(timeout=_DELETE_SECONDS)
                return
            except Exception as error:
                status = getattr(error, "status_code", None)
                if status == 404:
                    return
                if status in (401, 403) or asyncio.get_running_loop().time() + _AGAIN_SECONDS > deadline:
                    raise
            await asyncio.sleep(_AGAIN_SECONDS)


async def find_owned() -> AsyncIterator[OwnedSandbox]:
    """Yield the sandboxes that this package started.

    Raises:
        DeploymentStartupError: if Daytona cannot be reached, or refuses the request.
    """
    daytona = await client()
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
