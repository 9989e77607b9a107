"""Configuration of a deployment in a Kubernetes pod."""

from typing import Any, ClassVar, Literal, TypedDict

from pydantic import Field

from swerex_c.providers.config import ProviderConfig

__all__ = ["KubernetesDeploymentConfig", "KubernetesKeywords"]


class KubernetesDeploymentConfig(ProviderConfig):
    """Configuration of a deployment in a Kubernetes pod. The image needs only bash."""

    deployment_class: ClassVar[str] = "swerex_c.providers.kubernetes.deployment:KubernetesDeployment"

    image: str = "python:3.11"
    """Image of the container."""

    command: list[str] = []
    """Command of the container, in place of one that waits. It has to run for as long as the pod is used."""

    environment: dict[str, str] = {}
    """Environment variables of the container."""

    requests: dict[str, str] = {}
    """Resources that the container is guaranteed, such as `{"cpu": "500m", "memory": "1Gi"}`."""

    limits: dict[str, str] = {}
    """Maximum resources of the container."""

    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When the node pulls the image; None leaves it to the cluster, which decides by the image's tag."""

    image_pull_secrets: list[str] = []
    """Names of the secrets with credentials for registries."""

    namespace: str | None = None
    """Namespace of the pod; None is that of the context, or of the pod that this process runs in."""

    container_name: str = "main"
    """Name of the container. A container of this name in `pod_template` is completed."""

    labels: dict[str, str] = {}
    """Additional labels of the pod."""

    annotations: dict[str, str] = {}
    """Additional annotations of the pod."""

    node_selector: dict[str, str] = {}
    """Labels that the node of the pod must have."""

    tolerations: list[dict[str, Any]] = []
    """Taints of nodes that the pod tolerates, in the format of Kubernetes."""

    service_account: str | None = None
    """Service account of the pod; None is the default one of the namespace."""

    mount_service_account_token: bool = False
    """True if commands in the pod can act as its service account."""

    runtime_class: str | None = None
    """Name of the cluster's RuntimeClass that runs the container, such as one for gVisor."""

    pod_template: dict[str, Any] | str | None = None
    """A pod, or the path of a YAML or JSON file with one, for all other settings. The other fields here take
    precedence; labels, annotations, variables, tolerations and secrets are added to those of the template."""

    context: str | None = None
    """Context of the kubeconfig; None is its current context."""

    kubeconfig: str | None = None
    """Path of the kubeconfig; None is KUBECONFIG or ~/.kube/config."""

    in_cluster: bool | None = None
    """True uses the cluster that this process itself runs in; None does so where there is no kubeconfig."""

    startup_timeout: float = 600.0
    """Seconds to wait until commands can run in the pod, which includes scheduling it and pulling the image."""

    time_to_live: float | None = Field(default=86400.0, ge=1, allow_inf_nan=False)
    """Seconds of running after which the cluster ends the pod in any case (activeDeadlineSeconds); None is never."""

    grace_period: int = Field(default=0, ge=0)
    """Seconds that a stopped pod has to end by itself. 0 deletes without waiting for the node."""

    type: Literal["kubernetes"] = "kubernetes"
    """Discriminator of the deployment configurations. Do not change it."""


class KubernetesKeywords(TypedDict, total=False):
    """Keyword arguments of `KubernetesDeployment`: the fields of `KubernetesDeploymentConfig`."""

    image: str
    command: list[str]
    environment: dict[str, str]
    requests: dict[str, str]
    limits: dict[str, str]
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None
    image_pull_secrets: list[str]
    namespace: str | None
    container_name: str
    labels: dict[str, str]
    annotations: dict[str, str]
    node_selector: dict[str, str]
    tolerations: list[dict[str, Any]]
    service_account: str | None
    mount_service_account_token: bool
    runtime_class: str | None
    pod_template: dict[str, Any] | str | None
    context: str | None
    kubeconfig: str | None
    in_cluster: bool | None
    startup_timeout: float
    time_to_live: float | None
    grace_period: int
