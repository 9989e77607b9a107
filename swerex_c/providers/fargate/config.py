"""Configuration of a Fargate deployment."""

from ipaddress import IPv4Network
from typing import Any, ClassVar, Literal, TypedDict

from pydantic import Field, field_validator

from swerex_c.providers.config import ProviderConfig

__all__ = ["FargateDeploymentConfig", "FargateKeywords"]


class FargateDeploymentConfig(ProviderConfig):
    """Configuration of a sandbox in a container of AWS Fargate."""

    deployment_class: ClassVar[str] = "swerex_c.providers.fargate.deployment:FargateDeployment"

    image: str = "python:3.11"
    """Image of the container. It needs bash, and `timeout` of coreutils or busybox."""

    port: int = 8880
    """TCP port of the server."""

    cluster_name: str = "swe-rex-cluster"
    """Name of the ECS cluster that the task is part of; the cluster is created if it does not exist."""

    execution_role_prefix: str = "swe-rex-execution-role"
    """Prefix of the name of the role that AWS uses to pull the image and write the log."""

    task_definition_prefix: str = "swe-rex-task"
    """Prefix of the name of the task definition."""

    log_group: str | None = "/ecs/swe-rex-deployment"
    """CloudWatch log group of the container's output; None disables the log."""

    security_group_prefix: str = "swe-rex-deployment-sg"
    """Prefix of the name of the security group, which allows connections to the port."""

    fargate_args: dict[str, Any] = {}
    """More arguments for the start of the task: `vcpus`, `memory` in MiB, `ephemeral_storage` in GiB, and all that ECS
    accepts as `overrides` of a task, but `containerOverrides`, which has the server's command."""

    container_timeout: float = Field(default=60 * 15, allow_inf_nan=False)
    """Seconds after which the container ends in every case."""

    runtime_timeout: float = 60
    """Seconds that `is_alive` waits for the server if its caller sets no timeout."""

    type: Literal["fargate"] = "fargate"
    """Discriminator of the deployment configurations. Do not change it."""

    startup_timeout: float = 600.0
    """Maximum seconds until the server responds."""

    allowed_cidr: str = "0.0.0.0/0"
    """IPv4 addresses that may connect to the server, such as 198.51.100.0/24. By default the whole internet may
    connect, and only the server's key protects it: set the address that this machine has on the internet."""

    @field_validator("allowed_cidr")
    @classmethod
    def validate_allowed_cidr(cls, value: str) -> str:
        """Accept a single address, or one with host bits; normalize it as AWS does."""
        return str(IPv4Network(value, strict=False))


class FargateKeywords(TypedDict, total=False):
    """Keyword arguments of `FargateDeployment`: the fields of `FargateDeploymentConfig`."""

    image: str
    port: int
    cluster_name: str
    execution_role_prefix: str
    task_definition_prefix: str
    log_group: str | None
    security_group_prefix: str
    fargate_args: dict[str, Any]
    container_timeout: float
    runtime_timeout: float
    startup_timeout: float
    allowed_cidr: str
