"""Ownership tags of Modal sandboxes, and termination of orphans."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import re
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

from swerex_c.providers import ownership
from swerex_c.providers.base import explained
from swerex_c.providers.modal.backend import sentence
from swerex_c.providers.modal.image import sdk
from swerex_c.providers.orphans import OwnedSandbox
from swerex_c.utils.threads import in_thread

__all__ = ["APP", "find_owned", "new_tags", "terminate", "terminate_new"]

APP = "swe-rex"
"""Name of the Modal app that the sandboxes belong to."""

_TAGS = {label: label.replace(".", "-") for label in ownership.OWNER_LABELS}
"""The tag for each label of `ownership`. Names and values of tags are letters, digits, `_` and `-`, 63 at most."""

_LOOK_AGAIN_SECONDS = (0.0, 1.0, 3.0)
"""Seconds to pause before each search for a sandbox that Modal may be about to create."""


def new_tags() -> dict[str, str]:
    """Return the tags of a sandbox that this process is about to start."""
    facts = ownership.labels(uuid.uuid4().hex, keep=False)
    return {_TAGS[label]: re.sub(r"[^\w-]", "_", value) for label, value in facts.items() if value}


def _facts(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the ownership labels that the tags were made from."""
    facts = {label: tags.get(tag, "") for label, tag in _TAGS.items()}
    # A pid namespace is written as pid:[4026531836], which a tag cannot hold.
    return {label: re.sub(r"^pid__(\d+)_$", r"pid:[\1]", value) for label, value in facts.items()}


async def terminate(sandbox: Any) -> None:
    """End a sandbox. It is no error if the sandbox has already ended.

    Raises:
        DeploymentStartupError: for any other error of the SDK, which repeats the request by itself.
    """
    with explained(sentence), contextlib.suppress(sdk().exception.NotFoundError):
        await sandbox.terminate.aio()


async def terminate_new(app: Any, tags: dict[str, str]) -> None:
    """End a sandbox with these tags, which may exist already or be created soon."""
    for pause in _LOOK_AGAIN_SECONDS:
        await asyncio.sleep(pause)
        found = [sandbox async for sandbox in sdk().Sandbox.list.aio(app_id=app.app_id, tags=tags)]
        for sandbox in found:
            await terminate(sandbox)
        if found:
            return


async def find_owned() -> AsyncIterator[OwnedSandbox]:
    """Yield the sandboxes of this machine's processes.

    Raises:
        DeploymentStartupError: if Modal cannot be reached, or refuses the request.
    """
    modal = await in_thread(sdk)  # the import takes a second
    host = _TAGS[ownership.HOST]
    with explained(sentence):
        try:
            app = await modal.App.lookup.aio(APP)
        except modal.exception.NotFoundError:
            return
        async for sandbox in modal.Sandbox.list.aio(app_id=app.app_id, tags={host: new_tags()[host]}):
            facts, name = _facts(await sandbox.get_tags.aio()), sandbox.object_id
            yield OwnedSandbox(name, name, "Modal sandbox", facts, functools.partial(terminate, sandbox))
