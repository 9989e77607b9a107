"""Configurations of deployments: what can be written into a file or onto a command line, and made into a deployment.

The deployment's own module is imported when the deployment is made, so that no configuration needs the libraries of
another. Times are in seconds.
"""

from ipaddress import IPv4Network
from pathlib import PurePath
from typing import Annotated, Any, Literal, Self, cast

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from swerex_c._load import load_class
from swerex_c.deployment.abstract import AbstractDeployment

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

    warm_sessions: int = Field(default=0, ge=0)
    """How many shells are started ahead of time, see `LocalRuntimeConfig`. Not in an isolated view."""

    warm_startup_files: bool = False
    """Whether they have read the startup files too, see there."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="after")
    def _no_warm_sessions_in_a_view(self) -> Self:
        if self.warm_sessions and self.isolation is not None:
            raise ValueError("warm_sessions are on this machine as it is: they go without isolation")
        return self

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
    """In a sandbox of Modal, reached by its library: nothing is needed in the image but bash."""

    image: str | PurePath = "python:3.11"
    """An image of a registry, or a Dockerfile."""

    startup_timeout: float = 180.0
    """How long it may take until a command can run; building the image not counted."""

    runtime_timeout: float = 60.0
    """How long a request to the server may take that names no timeout of its own. Without a server there is none."""

    deployment_timeout: float = 3600.0
    """After how long the sandbox is ended whatever happens: a limit to what a forgotten one can cost."""

    modal_sandbox_kwargs: dict[str, Any] = {}
    """More arguments for `modal.Sandbox.create`."""

    type: Literal["modal"] = "modal"
    """Tells the kinds of deployments apart. Not to be changed."""

    install_pipx: bool = True
    """Whether the image gets pipx, by apt, to install the server with if it does not have it. Without a server nothing
    is installed."""

    server: bool | None = None
    """Whether a server is started in the sandbox, which is reached through a tunnel. None is False, but for a subclass
    that says by `_start_swerex_cmd` how its server is started."""

    model_config = ConfigDict(extra="forbid")

    def get_deployment(self) -> AbstractDeployment:
        return _make("modal", "ModalDeployment", self)


class FargateDeploymentConfig(BaseModel):
    """In a container of AWS Fargate."""

    image: str = "python:3.11"
    """The image to start. It needs bash, and `timeout` of coreutils or busybox."""

    port: int = 8880
    """The server's port."""

    cluster_name: str = "swe-rex-cluster"
    """The cluster that the task is part of; made if it is not there."""

    execution_role_prefix: str = "swe-rex-execution-role"
    """How the name of the role begins as which AWS gets the image and writes the log."""

    task_definition_prefix: str = "swe-rex-task"
    """How the name of the task's definition begins."""

    log_group: str | None = "/ecs/swe-rex-deployment"
    """Where in CloudWatch the container's output goes; None: nowhere."""

    security_group_prefix: str = "swe-rex-deployment-sg"
    """How the name of the security group begins, which lets connections to the port in."""

    fargate_args: dict[str, Any] = {}
    """More arguments for the start of the task: `vcpus`, `memory` in MiB, `ephemeral_storage` in GiB, and whatever ECS
    takes as `overrides` of a task."""

    container_timeout: float = 60 * 15
    """After how long the container ends whatever happens."""

    runtime_timeout: float = 60
    """How long a request may take that names no timeout of its own."""

    type: Literal["fargate"] = "fargate"
    """Tells the kinds of deployments apart. Not to be changed."""

    startup_timeout: float = 600.0
    """How long it may take until the server answers."""

    allowed_cidr: str = "0.0.0.0/0"
    """The IPv4 addresses that may connect to the server, as in 198.51.100.0/24. By default everybody on the internet
    may, and only the server's key keeps them out: give the address that this machine has there."""

    model_config = ConfigDict(extra="forbid")

    @field_validator("allowed_cidr")
    @classmethod
    def validate_allowed_cidr(cls, value: str) -> str:
        """Take what can be meant, and write it as AWS does."""
        return str(IPv4Network(value, strict=False))

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


class KubernetesDeploymentConfig(BaseModel):
    """In a pod of Kubernetes, of which the image needs bash and nothing else."""

    image: str = "python:3.11"
    """The image to start."""

    command: list[str] = []
    """What the container runs in place of waiting. It has to go on for as long as the pod is used."""

    environment: dict[str, str] = {}
    """Variables of the container."""

    requests: dict[str, str] = {}
    """What the pod gets in any case, as in `{"cpu": "500m", "memory": "1Gi"}`."""

    limits: dict[str, str] = {}
    """What the pod gets at most."""

    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the node pulls the image; None leaves it to the cluster, which looks at the image's tag."""

    image_pull_secrets: list[str] = []
    """Names of secrets with what registries want to see."""

    namespace: str | None = None
    """None is that of the context, or of the pod that this process runs in."""

    container_name: str = "main"
    """The name of the container. A container of this name in `pod_template` is completed."""

    labels: dict[str, str] = {}
    """More labels for the pod."""

    annotations: dict[str, str] = {}
    """More annotations for the pod."""

    node_selector: dict[str, str] = {}
    """Labels of nodes that the pod may be on."""

    tolerations: list[dict[str, Any]] = []
    """Taints of nodes that the pod does not mind, as in Kubernetes."""

    service_account: str | None = None
    """The service account of the pod; None is the namespace's own."""

    mount_service_account_token: bool = False
    """Whether commands in the pod can act as its service account."""

    runtime_class: str | None = None
    """What runs the container, such as gVisor, by the name that the cluster has for it."""

    pod_template: dict[str, Any] | str | None = None
    """A pod, or a file with one as YAML or JSON, for whatever else it shall have. What is said in other fields here
    goes before it; labels, annotations, variables, tolerations and secrets are added to its own."""

    context: str | None = None
    """The context of the kubeconfig; None is its current one."""

    kubeconfig: str | None = None
    """The file that says how to reach the cluster; None is what KUBECONFIG names, or ~/.kube/config."""

    in_cluster: bool | None = None
    """Whether to reach the cluster that this process itself is in; None does where there is no kubeconfig."""

    startup_timeout: float = 600.0
    """How long it may take until commands can run in the pod: until there is a node for it, and the image is there."""

    time_to_live: float | None = 86400.0
    """How long after it began to run the cluster ends the pod whatever happens (activeDeadlineSeconds); None: never."""

    grace_period: int = 0
    """How long the pod has to end by itself when it is stopped. With 0 it is not waited until its node has ended it."""

    type: Literal["kubernetes"] = "kubernetes"
    """Tells the kinds of deployments apart. Not to be changed."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="after")
    def check_seconds(self) -> Self:
        """Kubernetes takes whole seconds from one on."""
        if self.time_to_live is not None and self.time_to_live < 1:
            raise ValueError("time_to_live is at least a second")
        if self.grace_period < 0:
            raise ValueError("grace_period is at least 0")
        return self

    def get_deployment(self) -> AbstractDeployment:
        return _make("kubernetes", "KubernetesDeployment", self)


class DummyDeploymentConfig(BaseModel):
    """Nowhere: for tests."""

    type: Literal["dummy"] = "dummy"
    """Tells the kinds of deployments apart. Not to be changed."""

    model_config = ConfigDict(extra="forbid")

    def get_deployment(self) -> AbstractDeployment:
        return _make("dummy", "DummyDeployment", self)


class DaytonaDeploymentConfig(BaseModel):
    """In a sandbox of Daytona. As in SWE-ReX, this configuration has no `type` and ignores unknown fields."""

    api_key: str = Field(default="", description="Key of the Daytona account; empty is DAYTONA_API_KEY")
    target: str = Field(default="us", description="Region of the sandbox, such as us or eu")
    port: int = Field(default=8000, description="Port of the server in the sandbox")
    container_timeout: float = Field(default=60 * 15, description="After how long the sandbox ends whatever happens")
    runtime_timeout: float = Field(default=60, description="How long a request may take that names no timeout")
    image: str = Field(default="python:3.11", description="Image to start")

    startup_timeout: float = 600.0
    """How long it may take until a command can run, which includes building the image if Daytona has to."""

    server: bool | None = None
    """Whether a server is started in the sandbox, which needs Python there, and is reached by a preview link. False
    reaches the sandbox by terminals of Daytona, for which it needs bash and coreutils. None is False, but for a
    subclass that says by `_get_command` how its server is started."""

    def get_deployment(self) -> AbstractDeployment:
        return _make("daytona", "DaytonaDeployment", self)


class RayDeploymentConfig(BaseModel):
    """On a node of a Ray cluster, in an actor for which Ray finds a place."""

    environment: Annotated[LocalDeploymentConfig | DockerDeploymentConfig, Field(discriminator="type")] = Field(
        default_factory=LocalDeploymentConfig
    )
    """What there is on that node: the node itself, an isolated view of it, or a container."""

    address: str | None = None
    """The cluster, as for `ray.init`, which is only called if this process is in no cluster yet. None is the cluster
    that the environment or this machine says, and if there is none, one that begins on this machine."""

    namespace: str | None = None
    """Ray's namespace, if `ray.init` is called."""

    num_cpus: float = Field(default=1.0, ge=0)
    """Cores that Ray reserves. They are no limit to what the environment uses."""

    num_gpus: float = Field(default=0.0, ge=0)
    """GPUs that Ray reserves."""

    memory: int | None = Field(default=None, ge=0)
    """Bytes of memory that Ray reserves. They are no limit to what the environment uses, which is `memory_limit`."""

    resources: dict[str, float] = {}
    """Resources of other names that Ray reserves."""

    scheduling_strategy: Literal["DEFAULT", "SPREAD"] = "DEFAULT"
    """How Ray chooses among the nodes that have room."""

    node_id: str | None = None
    """The one node that will do."""

    node_labels: dict[str, str] = {}
    """Labels that the node has to have."""

    placement_group: str | None = None
    """The name of a placement group that somebody else has made."""

    bundle: int = Field(default=-1, ge=-1)
    """The group's bundle, counted from 0; -1 is any."""

    runtime_env: dict[str, Any] = {}
    """What Ray prepares for the actor's process: its variables, packages and directory."""

    startup_timeout: float = 180.0
    """How long it may take until a command can run, waiting for room in the cluster counted."""

    time_limit: float | None = Field(default=None, gt=0)
    """How long the environment may exist from when it is there; None is for ever."""

    memory_limit: int | None = Field(default=None, ge=16 << 20)
    """Bytes of memory that everything in the environment may take together; None is no limit of its own."""

    connection: Literal["auto", "direct", "ray"] = "auto"
    """How commands get there: over a connection to the node ("direct"), by calls of the actor ("ray", which takes
    longer but needs nothing besides Ray's own ports), or "auto": directly if the node lets us in."""

    type: Literal["ray"] = "ray"
    """Tells the kinds of deployments apart. Not to be changed."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="after")
    def check_place(self) -> Self:
        """There is one rule for where it is to be."""
        named = ("node_id", "node_labels", "placement_group")
        given = [name for name in named if getattr(self, name)] + ["scheduling_strategy"] * (
            self.scheduling_strategy != "DEFAULT"
        )
        if len(given) > 1:
            raise ValueError(f"Of {' and '.join(given)} only one can be given")
        if self.bundle >= 0 and not self.placement_group:
            raise ValueError("A bundle is one of a placement_group, which is not given")
        return self

    def get_deployment(self) -> AbstractDeployment:
        return _make("ray", "RayDeployment", self)


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
