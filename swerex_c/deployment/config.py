"""Configurations of all deployments, and a factory of deployments.

A configuration can be written to a file or on a command line. A deployment's module is imported on its creation, so a
configuration does not need another deployment's libraries. Times are in seconds.
"""

import json
from typing import Any, get_args

from pydantic import ValidationError

from swerex_c.exceptions import InvalidInputError
from swerex_c.interfaces import AbstractDeployment
from swerex_c.providers.daytona.config import DaytonaDeploymentConfig
from swerex_c.providers.docker.config import DockerDeploymentConfig
from swerex_c.providers.dummy.config import DummyDeploymentConfig
from swerex_c.providers.fargate.config import FargateDeploymentConfig
from swerex_c.providers.kubernetes.config import KubernetesDeploymentConfig
from swerex_c.providers.local.config import IsolationConfig, LocalDeploymentConfig
from swerex_c.providers.modal.config import ModalDeploymentConfig
from swerex_c.providers.ray.config import RayDeploymentConfig
from swerex_c.providers.remote.config import RemoteDeploymentConfig
from swerex_c.providers.ssh.config import SSHDeploymentConfig

__all__ = [
    "DaytonaDeploymentConfig",
    "DeploymentConfig",
    "DockerDeploymentConfig",
    "DummyDeploymentConfig",
    "FargateDeploymentConfig",
    "IsolationConfig",
    "KubernetesDeploymentConfig",
    "LocalDeploymentConfig",
    "ModalDeploymentConfig",
    "RayDeploymentConfig",
    "RemoteDeploymentConfig",
    "SSHDeploymentConfig",
    "config_from_json",
    "first_problem",
    "get_deployment",
]

DeploymentConfig = (
    LocalDeploymentConfig
    | DockerDeploymentConfig
    | ModalDeploymentConfig
    | FargateDeploymentConfig
    | RemoteDeploymentConfig
    | SSHDeploymentConfig
    | KubernetesDeploymentConfig
    | RayDeploymentConfig
    | DummyDeploymentConfig
    | DaytonaDeploymentConfig
)
"""Union of the configurations of all deployments."""


def get_deployment(config: DeploymentConfig) -> AbstractDeployment:
    """Create the deployment that a configuration describes, without starting it.

    Raises:
        InvalidInputError: if it is no configuration.
        NotAvailableError: if this version of the package does not have the deployment.
    """
    if isinstance(config, type) or not hasattr(config, "get_deployment"):
        raise InvalidInputError(f"get_deployment takes a configuration such as LocalDeploymentConfig(), not {config!r}")
    return config.get_deployment()


def config_from_json(text: str) -> DeploymentConfig:
    """Return the configuration that a JSON object with a `type` describes.

    Raises:
        InvalidInputError: if the text is not a valid configuration.
    """
    kinds: dict[str, Any] = {"daytona": DaytonaDeploymentConfig}  # which has no type, as in SWE-ReX
    for kind in get_args(DeploymentConfig):
        if "type" in kind.model_fields:
            kinds[kind.model_fields["type"].default] = kind
    try:
        data = json.loads(text)
    except ValueError as error:
        raise InvalidInputError(f"The deployment is no JSON: {error}") from None
    name = data.get("type") if isinstance(data, dict) else None
    if not isinstance(name, str) or name not in kinds:
        raise InvalidInputError(f'The deployment needs a "type", one of: {", ".join(sorted(kinds))}')
    if name == "daytona":
        del data["type"]
    try:
        config: DeploymentConfig = kinds[name].model_validate(data)
    except ValidationError as error:
        raise InvalidInputError(f"The deployment of type {name}: {first_problem(error)}") from None
    return config


def first_problem(error: ValidationError) -> str:
    """Return the first problem of an invalid model as a line of text."""
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}" if where else first["msg"]
