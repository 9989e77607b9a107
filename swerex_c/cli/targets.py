"""Targets other than this machine: what `--image`, `--host` and `--deployment` name."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import AsyncIterator
from typing import NamedTuple

from pydantic import ValidationError

from swerex_c.deployment.config import (
    DeploymentConfig,
    DockerDeploymentConfig,
    RemoteDeploymentConfig,
    SSHDeploymentConfig,
    config_from_json,
    first_problem,
)
from swerex_c.exceptions import ConnectionLostError, InvalidInputError
from swerex_c.interfaces import AbstractRuntime, DeploymentHook
from swerex_c.remote.server import auth

__all__ = ["Target", "find_target", "opened"]

_REQUEST_SECONDS = 30.0
"""Timeout of a request to a server that has none of its own: a busy machine needs more than a fraction of a second."""


class Target(NamedTuple):
    """A deployment that the options of a command specify."""

    config: DeploymentConfig
    name: str
    """Name of the target in messages."""


def find_target(
    host: str | None, image: str | None, deployment: str | None, *, container_runtime: str = "docker"
) -> Target | None:
    """Return the target that the options specify, or None.

    The key of a server is removed from the environment and hidden.

    Args:
        host: URL of a server, or an ssh host as NAME or USER@NAME.
        deployment: configuration as JSON.

    Raises:
        InvalidInputError: if they specify several targets, or an invalid one.
    """
    if sum(it is not None for it in (host, image, deployment)) > 1:
        raise InvalidInputError("Give a host, an image or a deployment, not several")
    try:
        if host is not None and "://" in host:
            key = os.environ.pop(auth.VARIABLE, None)
            if not key:
                raise InvalidInputError(f"The server {host} needs its key in the variable {auth.VARIABLE}")
            auth.hide(key)
            return Target(RemoteDeploymentConfig(host=host, auth_token=key, timeout=_REQUEST_SECONDS), "server")
        if host is not None:
            user, _, name = host.rpartition("@")
            return Target(SSHDeploymentConfig(host=name, user=user or None), host)
        if image is not None:
            fields = {"image": image, "container_runtime": container_runtime}
            return Target(DockerDeploymentConfig.model_validate(fields), image)
    except ValidationError as error:
        raise InvalidInputError(first_problem(error)) from None
    if deployment is not None:
        return Target(config_from_json(deployment), json.loads(deployment)["type"])
    return None


class _Steps(DeploymentHook):
    """Show a person why the start takes time."""

    def on_custom_step(self, message: str) -> None:
        if sys.stderr.isatty():
            print(f"swerex-c: {message}", file=sys.stderr)


@contextlib.asynccontextmanager
async def opened(target: Target) -> AsyncIterator[AbstractRuntime]:
    """Yield a runtime in the target, and stop the deployment afterwards."""
    logging.disable(logging.INFO)
    if isinstance(target.config, RemoteDeploymentConfig):
        from swerex_c.runtime.remote import RemoteRuntime

        # Not its deployment: stopping that would end the sessions of all clients of the server.
        runtime = RemoteRuntime(**target.config.model_dump(exclude={"type"}))
        alive = await runtime.is_alive()  # a request would try again for a while
        if not alive:
            raise ConnectionLostError(alive.message.splitlines()[-1])
        yield runtime
        return
    deployment = target.config.get_deployment()
    deployment.add_hook(_Steps())
    async with deployment:
        yield deployment.runtime
