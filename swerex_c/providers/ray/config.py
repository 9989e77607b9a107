"""Configuration of a Ray deployment."""

from typing import Annotated, Any, ClassVar, Literal, TypedDict

from pydantic import Field

from swerex_c.providers.config import ProviderConfig
from swerex_c.providers.docker.config import DockerDeploymentConfig
from swerex_c.providers.local.config import LocalDeploymentConfig

__all__ = ["RayDeploymentConfig", "RayKeywords"]


class RayDeploymentConfig(ProviderConfig):
    """Configuration of an environment on a node of a Ray cluster."""

    deployment_class: ClassVar[str] = "swerex_c.providers.ray.deployment:RayDeployment"

    environment: Annotated[LocalDeploymentConfig | DockerDeploymentConfig, Field(discriminator="type")] = Field(
        default_factory=LocalDeploymentConfig
    )
    """Environment on that node: the node itself, an isolated view of it, or a container."""

    address: str | None = None
    """Cluster address for `ray.init`, which is called only if this process is in no cluster yet. None is the cluster
    that RAY_ADDRESS names or that runs on this machine; if there is none, Ray starts one on this machine."""

    namespace: str | None = None
    """Ray namespace, if `ray.init` is called."""

    num_cpus: float = Field(default=1.0, ge=0)
    """Number of CPU cores that Ray reserves. The environment can use more."""

    num_gpus: float = Field(default=0.0, ge=0)
    """Number of GPUs that Ray reserves."""

    memory: int | None = Field(default=None, ge=0)
    """Bytes of memory that Ray reserves. The environment can use more; `memory_limit` limits that."""

    resources: dict[str, float] = {}
    """Custom resources that Ray reserves, by name."""

    actor_options: dict[str, Any] = {}
    """More arguments for `.options()` of the actor, such as `scheduling_strategy` and `label_selector`."""

    runtime_env: dict[str, Any] = {}
    """Ray runtime environment of the actor's process: its variables, packages and working directory."""

    startup_timeout: float = 180.0
    """Maximum seconds until a command can run, including the wait for room in the cluster."""

    time_limit: float | None = Field(default=None, gt=0)
    """Maximum seconds that the environment may exist after its start; None is no limit."""

    memory_limit: int | None = Field(default=None, ge=16 << 20)
    """Maximum bytes of memory of all processes in the environment together, which is checked ten times a second; None
    sets no limit."""

    type: Literal["ray"] = "ray"
    """Discriminator of the deployment configurations. Do not change it."""


class RayKeywords(TypedDict, total=False):
    """Keyword arguments of `RayDeployment`: the fields of `RayDeploymentConfig`."""

    environment: LocalDeploymentConfig | DockerDeploymentConfig
    address: str | None
    namespace: str | None
    num_cpus: float
    num_gpus: float
    memory: int | None
    resources: dict[str, float]
    actor_options: dict[str, Any]
    runtime_env: dict[str, Any]
    startup_timeout: float
    time_limit: float | None
    memory_limit: int | None
