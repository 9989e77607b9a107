"""Configurations of deployments: what can be written into a file or onto a command line, and made into a deployment.

The deployment's own module is imported when the deployment is made, so that no configuration needs the libraries of
another. Times are in seconds.
"""

from pathlib import PurePath
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field, model_validator

from swerex_c._load import load_class
from swerex_c.deployment.abstract import AbstractDeployment

__all__ = [
    "DaytonaDeploymentConfig",
    "DeploymentConfig",
    "DockerDeploymentConfig",
    "DummyDeploymentConfig",
    "FargateDeploymentConfig",
    "IsolationConfig",
    "LocalDeploymentConfig",
    "ModalDeploymentConfig",
    "RemoteDeploymentConfig",
    "SSHDeploymentConfig",
    "get_deployment",
]


class IsolationConfig(BaseModel):
    """An isolated view of this machine, made by bubblewrap: private /tmp and /var/tmp, and processes of its own.

    It keeps mistakes in. Programs that look for a way out may find one, above all while the network is shared.
    """

    writable: list[str] = []
    """Directories and files of the machine that can be changed, as absolute paths. Those in /tmp are seen only so."""

    network: bool = True
    """Whether the machine's network is there. Without it there is only a loopback device, of the view's own."""

    root: Literal["read-only", "overlay"] = "read-only"
    """What becomes of writing elsewhere: it is refused, or it goes into a layer in memory that ends with the view. One
    who is not root can change there only what is their own in directories of their own, and needs Linux 6.6."""

    hidden: list[str] | None = None
    """Directories that are empty and files that cannot be read, as absolute paths. None hides the sockets of container
    engines, of the system's and of the users' services."""

    directory: str | None = None
    """Where programs start; None is the current directory when the view is made."""

    model_config = ConfigDict(extra="forbid")


class LocalDeploymentConfig(BaseModel):
    """On this machine, in this process."""

    type: Literal["local"] = "local"
    """Tells the kinds of deployments apart. Not to be changed."""

    isolation: IsolationConfig | None = None
    """Whether what runs sees the machine as it is (None), or an isolated view of it."""

    startup_timeout: float = 30.0
    """How long it may take until an isolated view is there."""

    model_config = ConfigDict(extra="forbid")

    def get_deployment(self) -> AbstractDeployment:
        return _make("local", "LocalDeployment", self)


class DockerDeploymentConfig(BaseModel):
    """In a container of Docker or Podman on this machine."""

    image: str = "python:3.11"
    """The image to start."""

    port: int | None = None
    """The port of this machine that leads to the server in the container; None finds a free one."""

    docker_args: list[str] = []
    """More arguments for the command that starts the container. A `--platform` among them becomes `platform`."""

    startup_timeout: float = 180.0
    """How long it may take from the container's start until commands can run in it; getting the image not counted."""

    pull: Literal["never", "always", "missing"] = "missing"
    """When to pull the image."""

    remove_images: bool = False
    """Whether stopping also removes the image."""

    python_standalone_dir: str | None = None
    """Where in the image a Python of its own is to be installed for the server; None uses the image's. Without the
    server nothing needs one, and nothing is installed."""

    platform: str | None = None
    """The platform of the image, as in `linux/amd64`; None leaves it to the engine."""

    remove_container: bool = True
    """Whether stopping also removes the container."""

    container_runtime: Literal["docker", "podman"] = "docker"
    """The command that runs containers."""

    type: Literal["docker"] = "docker"
    """Tells the kinds of deployments apart. Not to be changed."""

    server: bool | None = None
    """Whether a server is started in the container, which needs Python there and a port here. False reaches it by the
    engine's `exec`, for which it needs bash and nothing else. None is False, but for a subclass that says by
    `_get_swerex_start_cmd` how its server is started."""

    docker_internal_host: str = "http://127.0.0.1"
    """Where the published ports of containers are reached: another address where this process is in a container."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def validate_platform_args(cls, data: Any) -> Any:
        """Take the platform out of `docker_args`; the caller's own dictionary stays as it is."""
        arguments = data.get("docker_args") if isinstance(data, dict) else None
        if not isinstance(arguments, list | tuple):
            return data
        found = [i for i, word in enumerate(arguments) if isinstance(word, str) and _is_platform(word)]
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

    def get_deployment(self) -> AbstractDeployment:
        return _make("docker", "DockerDeployment", self)


class ModalDeploymentConfig(BaseModel):
    """In a sandbox of Modal."""

    image: str | PurePath = "python:3.11"
    """An image of a registry, or a Dockerfile."""

    startup_timeout: float = 180.0
    """How long it may take until the runtime answers."""

    runtime_timeout: float = 60.0
    """How long a request may take that names no timeout of its own."""

    deployment_timeout: float = 3600.0
    """After how long the sandbox is ended whatever happens: a limit to what a forgotten one can cost."""

    modal_sandbox_kwargs: dict[str, Any] = {}
    """More arguments for `modal.Sandbox.create`."""

    type: Literal["modal"] = "modal"
    """Tells the kinds of deployments apart. Not to be changed."""

    install_pipx: bool = True
    """Whether the image gets pipx, by apt, to install the server with if it does not have it."""

    model_config = ConfigDict(extra="forbid")

    def get_deployment(self) -> AbstractDeployment:
        return _make("modal", "ModalDeployment", self)


class FargateDeploymentConfig(BaseModel):
    """In a container of AWS Fargate."""

    image: str = "python:3.11"
    """The image to start."""

    port: int = 8880
    """The server's port."""

    cluster_name: str = "swe-rex-cluster"
    execution_role_prefix: str = "swe-rex-execution-role"
    task_definition_prefix: str = "swe-rex-task"
    log_group: str | None = "/ecs/swe-rex-deployment"
    security_group_prefix: str = "swe-rex-deployment-sg"

    fargate_args: dict[str, str] = {}
    """More arguments for the start of the task."""

    container_timeout: float = 60 * 15
    """After how long the container ends whatever happens."""

    runtime_timeout: float = 60
    """How long a request may take that names no timeout of its own."""

    type: Literal["fargate"] = "fargate"
    """Tells the kinds of deployments apart. Not to be changed."""

    model_config = ConfigDict(extra="forbid")

    def get_deployment(self) -> AbstractDeployment:
        return _make("fargate", "FargateDeployment", self)


class RemoteDeploymentConfig(BaseModel):
    """Behind a server that somebody else has started."""

    auth_token: str
    """What the server knows this client by."""

    host: str = "http://127.0.0.1"
    """The server's address, with its scheme."""

    port: int | None = None
    """The server's port; None is that of the address."""

    timeout: float = 0.15
    """How long a request may take that names no timeout of its own."""

    type: Literal["remote"] = "remote"
    """Tells the kinds of deployments apart. Not to be changed."""

    model_config = ConfigDict(extra="forbid")

    def get_deployment(self) -> AbstractDeployment:
        return _make("remote", "RemoteDeployment", self)


class SSHDeploymentConfig(BaseModel):
    """On another host that runs an ssh server, and lets us in without a question."""

    host: str
    """The host's name, address, or alias in the configuration of ssh."""

    port: int | None = None
    """None is what ssh's configuration says."""

    user: str | None = None
    """None is what ssh's configuration says."""

    identity_file: str | None = None
    """The private key to use before others."""

    config_file: str | None = None
    """A configuration of ssh in place of the user's and the system's."""

    options: list[str] = []
    """More options for ssh, as after `-o`, such as `StrictHostKeyChecking=accept-new`."""

    share_connections: bool = True
    """Whether sessions share connections, eight to each, or each makes its own."""

    startup_timeout: float = 60.0
    """How long it may take until a command can run."""

    type: Literal["ssh"] = "ssh"
    """Tells the kinds of deployments apart. Not to be changed."""

    model_config = ConfigDict(extra="forbid")

    def get_deployment(self) -> AbstractDeployment:
        return _make("ssh", "SSHDeployment", self)


class DummyDeploymentConfig(BaseModel):
    """Nowhere: for tests."""

    type: Literal["dummy"] = "dummy"
    """Tells the kinds of deployments apart. Not to be changed."""

    model_config = ConfigDict(extra="forbid")

    def get_deployment(self) -> AbstractDeployment:
        return _make("dummy", "DummyDeployment", self)


class DaytonaDeploymentConfig(BaseModel):
    """In a sandbox of Daytona. As in SWE-ReX, this configuration has no `type` and ignores unknown fields."""

    api_key: str = Field(default="", description="Key of the Daytona account")
    target: str = Field(default="us", description="Region of the sandbox, such as us or eu")
    port: int = Field(default=8000, description="Port of the server in the sandbox")
    container_timeout: float = Field(default=60 * 15, description="After how long the sandbox ends whatever happens")
    runtime_timeout: float = Field(default=60, description="How long a request may take that names no timeout")
    image: str = Field(default="python:3.11", description="Image to start")

    def get_deployment(self) -> AbstractDeployment:
        return _make("daytona", "DaytonaDeployment", self)


DeploymentConfig = (
    LocalDeploymentConfig
    | DockerDeploymentConfig
    | ModalDeploymentConfig
    | FargateDeploymentConfig
    | RemoteDeploymentConfig
    | SSHDeploymentConfig
    | DummyDeploymentConfig
    | DaytonaDeploymentConfig
)
"""Any configuration of a deployment."""


def get_deployment(config: DeploymentConfig) -> AbstractDeployment:
    """The deployment that a configuration describes; it is not started.

    Raises:
        NotAvailableError: if this version of the package does not have it.
    """
    return config.get_deployment()


def _make(module: str, name: str, config: BaseModel) -> AbstractDeployment:
    deployment_class = load_class(f"swerex_c.deployment.{module}", name)
    return cast(AbstractDeployment, deployment_class.from_config(config))


def _is_platform(word: str) -> bool:
    return word == "--platform" or word.startswith("--platform=")
