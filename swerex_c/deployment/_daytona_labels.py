"""Whose a sandbox of Daytona is, written on it as labels; and deleting those whose processes died before they did."""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from swerex_c.deployment import _leftovers, _owners
from swerex_c.exceptions import DeploymentStartupError
from swerex_c.exec.daytona import sentence

__all__ = ["client", "delete", "new_labels", "prune", "sdk"]

_OURS = {"swerex_c.sandbox": "1"}
"""The label by which those of ours are found."""

_DELETE_SECONDS = 20.0
"""How long it is tried to delete a sandbox."""

_AGAIN_SECONDS = 0.5
"""So long after a try that was refused, as it is while a sandbox is on its way from one state to another."""


def sdk() -> Any:
    """The module `daytona`, or `daytona_sdk`, as it was called.

    Raises:
        DeploymentStartupError: if neither is installed. The ImportError is its cause.
    """
    try:
        import daytona

        return daytona
    except ImportError as error:
        try:
            import daytona_sdk

            return daytona_sdk
        except ImportError:
            pass
        msg = f"DaytonaDeployment needs Daytona's library, which is not here ({error}): pip install 'swerex-c[daytona]'"
        raise DeploymentStartupError(msg) from error


async def client(api_key: str = "", target: str | None = None) -> Any:
    """A connection to Daytona, in the loop of `loops`, to be closed there. What is not given comes from DAYTONA_*.

    Raises:
        DeploymentStartupError: if there is no key.
    """
    module = sdk()
    try:
        return module.AsyncDaytona(module.DaytonaConfig(api_key=api_key or None, target=target or None))
    except Exception as error:
        raise DeploymentStartupError(sentence(error)) from error


def new_labels() -> tuple[str, dict[str, str]]:
    """A name for a sandbox that this process is about to start, and its labels."""
    name = f"swerex-{uuid.uuid4()}"
    return name, _OURS | _owners.labels(name, keep=False)


async def delete(sandbox: Any) -> None:
    """Delete a sandbox; it is no error if there is none any more.

    Raises:
        Exception: what the SDK raises, if it could not do so for some time.
    """
    deadline = asyncio.get_running_loop().time() + _DELETE_SECONDS
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


def prune(*, api_key: str = "", dry_run: bool = False, timeout: float = 60.0) -> list[_owners.Left]:
    """Delete the sandboxes whose process is dead. Blocks, for `timeout` seconds at most.

    Only sandboxes that this package started from this machine are looked at.

    Args:
        dry_run: only tell which they are.

    Raises:
        DeploymentStartupError: if Daytona cannot be asked.
        TimeoutError: if it does not answer.
    """
    return _leftovers.ask(_prune(api_key, dry_run), timeout, lambda error: DeploymentStartupError(sentence(error)))


@asynccontextmanager
async def _connected(api_key: str) -> AsyncIterator[Any]:
    daytona = await client(api_key)
    try:
        yield daytona
    finally:
        await daytona.close()


async def _prune(api_key: str, dry_run: bool) -> list[_owners.Left]:
    async with _connected(api_key) as daytona:
        return await _leftovers.sweep(_found(daytona), dry_run=dry_run, sentence=sentence)


async def _found(daytona: Any) -> AsyncIterator[_leftovers.Found]:
    # All of them before the first is deleted, or pages would shift.
    for sandbox in [it async for it in daytona.list(sdk().ListSandboxesQuery(labels=_OURS))]:
        labels = sandbox.labels or {}
        if _owners.labelled(labels, sandbox.name):
            end = functools.partial(delete, sandbox)
            yield _leftovers.Found(sandbox.id, sandbox.name, "a sandbox of Daytona", labels, end)
