"""Configuration of a deployment in a container of Docker or Podman."""

from typing import Any, ClassVar, Literal, TypedDict

from pydantic import Field, model_validator

from swerex_c.providers.config import ProviderConfig

__all__ = ["DockerDeploymentConfig", "DockerKeywords"]


class DockerDeploymentConfig(ProviderConfig):
    """Configuration of a container of Docker or Podman on this machine."""

    deployment_class: ClassVar[str] = "swerex_c.providers.docker.deployment:DockerDeployment"

    image: str = "python:3.11"
    """The image to start."""

    port: int | None = None
    """The port of this machine for the server in the container; None selects a free one."""

    docker_args: list[str] = []
    """More arguments for the command that starts the container. A `--platform` among them sets `platform`."""

    startup_timeout: float = 180.0
    """Seconds from starting the container until it can run commands; pulling the image is not counted."""

    pull: Literal["never", "always", "missing"] = "missing"
    """When to pull the image."""

    remove_images: bool = False
    """True if stopping also removes the image."""

    python_standalone_dir: str | None = None
    """The directory in the image in which to install a Python for the server; None uses the image's Python. Without the
    server nothing needs Python, and nothing is installed."""

    platform: str | None = None
    """The platform of the image, such as `linux/amd64`; None lets the engine choose."""

    remove_container: bool = True
    """True if stopping also removes the container."""

    container_runtime: Literal["docker", "podman"] = "docker"
    """The command that runs containers."""

    type: Literal["docker"] = "docker"
    """Discriminator of the deployment type. Do not change it."""

    server: bool | None = None
    """True starts a server in the container, which needs Python there and a port on this machine. False runs
    commands with the engine's `exec`, which needs only bash. None means False, unless a subclass overrides
    `_get_swerex_start_cmd`, which returns the server's start command."""

    exec_shell: list[str] = Field(default=["/bin/sh", "-c"], min_length=1)
    """Shell and its options; a command is appended as one more argument. With a server it starts the server, without
    one the waiting process and every program. The default starts these directly, with the same effect."""

    docker_internal_host: str = "http://127.0.0.1"
    """The address of published container ports. Change it if this process itself runs in a container."""

    @model_validator(mode="before")
    @classmethod
    def validate_platform_args(cls, data: Any) -> Any:
        """Return a copy of the data in which `platform` replaces `--platform`.

        Data without a `--platform` in `docker_args` is returned as it is.

        Raises:
            ValueError: if the platform is given twice, or `--platform` has no value.
        """
        arguments = data.get("docker_args") if isinstance(data, dict) else None
        if not isinstance(arguments, list | tuple):
            return data
        found = [i for i, word in enumerate(arguments) if str(word).partition("=")[0] == "--platform"]
        if not found:
            return data
        if data.get("platform") is not None:
            raise ValueError("The platform is given twice: as 'platform' and as '--platform' in docker_args")
        at = found[0]
        _, equals, platform = arguments[at].partition("=")
        end = at + 1 if equals else at + 2
        if end > len(arguments):
            raise ValueError("--platform in docker_args has no value after it")
        if not equals:
            platform = arguments[at + 1]
        return {**data, "platform": platform, "docker_args": [*arguments[:at], *arguments[end:]]}


class DockerKeywords(TypedDict, total=False):
    """Keyword arguments of `DockerDeployment`: the fields of `DockerDeploymentConfig`."""

    image: str
    port: int | None
    docker_args: list[str]
    startup_timeout: float
    pull: Literal["never", "always", "missing"]
    remove_images: bool
    python_standalone_dir: str | None
    platform: str | None
    remove_container: bool
    container_runtime: Literal["docker", "podman"]
    server: bool | None
    exec_shell: list[str]
    docker_internal_host: str
