"""Whose a sandbox of Modal is, written on it as tags; and ending those of processes that died without doing so."""

from __future__ import annotations

import asyncio
import functools
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

from swerex_c.deployment import _leftovers, _owners
from swerex_c.deployment._modal_image import sdk
from swerex_c.exceptions import DeploymentStartupError
from swerex_c.exec.modal import sentence

__all__ = ["APP", "new_tags", "prune", "terminate", "terminate_new"]

APP = "swe-rex"
"""The app of Modal that the sandboxes belong to."""

_HOST = "swerex_c"
_START = "swerex_c-start"
_PROCESS = "swerex_c-process"

_LABEL, _OF_HOST, _BOOT, _SPACE, _PID, _STARTED, _ = _owners.FACTS

_TERMINATE_TRIES = 3

_LOOK_AGAIN_SECONDS = (0.0, 1.0, 3.0)
"""So long after each other it is looked for a sandbox that Modal may be about to make."""


def new_tags() -> dict[str, str]:
    """What a sandbox that this process is about to start is tagged with: letters, digits and `_-`, 63 at most."""
    start = uuid.uuid4().hex
    facts = _owners.labels(start, keep=False)
    space = "".join(filter(str.isdigit, facts[_SPACE]))
    process = (facts[_BOOT].replace("-", ""), space, facts[_PID], facts[_STARTED])
    return {_HOST: facts[_OF_HOST], _START: start, _PROCESS: "_".join(process)}


def _facts(tags: Mapping[str, str]) -> dict[str, str]:
    """The labels that the tags were made of."""
    boot, space, pid, started = (tags.get(_PROCESS, "").split("_") + [""] * 4)[:4]
    if len(boot) == 32:
        boot = str(uuid.UUID(boot))
    return {
        _LABEL: tags.get(_START, ""),
        _OF_HOST: tags.get(_HOST, ""),
        _BOOT: boot,
        _SPACE: f"pid:[{space}]" if space else "",
        _PID: pid,
        _STARTED: started,
    }


async def terminate(sandbox: Any) -> None:
    """End a sandbox; it is no error if it has ended.

    Raises:
        Exception: what the SDK raises, if it could not do so several times.
    """
    for left in range(_TERMINATE_TRIES, 0, -1):
        try:
            await sandbox.terminate.aio()
            return
        except Exception as error:
            if type(error).__name__ == "NotFoundError":
                return
            if left == 1:
                raise


async def terminate_new(app: Any, tags: Mapping[str, str]) -> None:
    """End a sandbox that may have been made with these tags just now, or may yet be."""
    for pause in _LOOK_AGAIN_SECONDS:
        await asyncio.sleep(pause)
        found = [sandbox async for sandbox in _tagged(app, tags)]
        for sandbox in found:
            await terminate(sandbox)
        if found:
            return


async def _tagged(app: Any, tags: Mapping[str, str]) -> AsyncIterator[Any]:
    async for sandbox in sdk().Sandbox.list.aio(app_id=app.app_id, tags=dict(tags)):
        yield sandbox


def prune(*, app_name: str = APP, dry_run: bool = False, timeout: float = 60.0) -> list[_owners.Left]:
    """End the sandboxes whose process is dead. Blocks, for `timeout` seconds at most.

    Only sandboxes that this package started from this machine are looked at.

    Args:
        dry_run: only tell which they are.

    Raises:
        DeploymentStartupError: if Modal cannot be asked.
        TimeoutError: if it does not answer.
    """
    sdk()
    return _leftovers.ask(_prune(app_name, dry_run), timeout, lambda error: DeploymentStartupError(sentence(error)))


async def _prune(app_name: str, dry_run: bool) -> list[_owners.Left]:
    try:
        app = await sdk().App.lookup.aio(app_name)
    except sdk().exception.NotFoundError:
        return []
    return await _leftovers.sweep(_found(app), dry_run=dry_run, sentence=sentence)


async def _found(app: Any) -> AsyncIterator[_leftovers.Found]:
    async for sandbox in _tagged(app, {_HOST: new_tags()[_HOST]}):
        facts, name = _facts(await sandbox.get_tags.aio()), sandbox.object_id
        yield _leftovers.Found(name, name, "a sandbox of Modal", facts, functools.partial(terminate, sandbox))
