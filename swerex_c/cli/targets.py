"""Targets other than this machine: what `--image`, `--host` and `--deployment` name."""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from swerex_c.deployment.config import DeploymentConfig, config_from_json
from swerex_c.exceptions import InvalidInputError
from swerex_c.remote.server import auth

__all__ = ["Target", "find_target"]

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
    if host is not None and "://" in host:
        key = os.environ.pop(auth.VARIABLE, None)
        if not key:
            raise InvalidInputError(f"The server {host} needs its key in the variable {auth.VARIABLE}")
        auth.hide(key)
        name, fields = "server", {"type": "remote", "host": host, "auth_token": key, "timeout": _REQUEST_SECONDS}
    elif host is not None:
        user, _, there = host.rpartition("@")
        name, fields = host, {"type": "ssh", "host": there, "user": user or None}
    elif image is not None:
        name, fields = image, {"type": "docker", "image": image, "container_runtime": container_runtime}
    elif deployment is not None:
        config = config_from_json(deployment)
        return Target(config, json.loads(deployment)["type"])
    else:
        return None
    return Target(config_from_json(json.dumps(fields)), name)
