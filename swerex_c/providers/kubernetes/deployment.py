"""Deployment in a new Kubernetes pod."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from swerex_c.exceptions import DeploymentNotStartedError, PodStartupError, SandboxLostError
from swerex_c.providers.kubernetes import pod_spec
from swerex_c.providers.kubernetes.access import Access, require
from swerex_c.providers.kubernetes.cluster import Cluster
from swerex_c.providers.kubernetes.config import KubernetesDeploymentConfig, KubernetesKeywords
from swerex_c.providers.kubernetes.errors import ClusterError, startup_error
from swerex_c.providers.kubernetes.readiness import PodWait
from swerex_c.providers.sandbox_deployment import SandboxDeployment
from swerex_c.utils import background
from swerex_c.utils.load import ConfigSignature

if TYPE_CHECKING:
    from swerex_c.providers.kubernetes.backend import KubernetesBackend

__all__ = ["KubernetesDeployment", "KubernetesDeploymentConfig"]

T = TypeVar("T")

_SETTLE_SECONDS = 10.0
"""Seconds to wait for the server's answer whether an abandoned pod was created."""

_UNSURE_SECONDS = 2.0
"""Seconds to keep trying to delete a pod that is not found, where it is unknown whether it was created."""

_DELETE_SECONDS = 30.0
"""Seconds to try to delete a pod."""

_MARGIN_SECONDS = 2.0
"""Seconds of the startup timeout that are reserved for finding out why the pod does not run."""


class KubernetesDeployment(SandboxDeployment):
    """Deployment in a new pod, whose image needs only bash.

        deployment = KubernetesDeployment(image="python:3.11", requests={"cpu": "1"}, limits={"memory": "2Gi"})
        await deployment.start()

    Commands run over the exec API of Kubernetes. Stopping deletes the pod. Without a stop, the cluster ends it after
    `time_to_live`. The `cause` of a `PodStartupError` tells why a start failed.
    """

    _config: KubernetesDeploymentConfig
    _ends_sandbox = True

    __signature__ = ConfigSignature("swerex_c.providers.kubernetes.config:KubernetesDeploymentConfig")

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Unpack[KubernetesKeywords]):
        """Create a deployment from the fields of a `KubernetesDeploymentConfig`.

        Raises:
            ModuleNotFoundError: if `kubernetes_asyncio` is not installed.
        """
        super().__init__(logger=logger)
        self._config = KubernetesDeploymentConfig(**kwargs)
        require()
        self._cluster: Cluster | None = None
        self._pod: str | None = None
        self._namespace: str | None = None
        self._unsure = False  # whether the pod may have been created although no response says so

    @property
    def pod_name(self) -> str | None:
        """Name of the pod; None if there is no pod."""
        return self._pod

    @property
    def namespace(self) -> str | None:
        """Namespace of the pod; None if there is no pod."""
        return self._namespace

    async def logs(self, *, tail: int | None = None, timeout: float = 30.0) -> str:
        """Return the output of the container's own command.

        It does not include the output of commands that the runtime runs in the container.

        Args:
            tail: number of lines from the end; None is all lines.
            timeout: seconds to wait for the output.

        Raises:
            DeploymentNotStartedError: if there is no pod.
            SandboxLostError: if the pod is gone, or out of reach.
        """
        cluster, pod, namespace = self._cluster, self._pod, self._namespace
        if cluster is None or pod is None or namespace is None:
            raise DeploymentNotStartedError()
        more = {} if tail is None else {"tail_lines": tail}
        asked = cluster.log(namespace, pod, self._config.container_name, timeout=timeout, **more)
        try:
            return await asyncio.wrap_future(background.spawn(asked))
        except ClusterError as error:
            raise SandboxLostError(f"The log of the pod {pod} cannot be read: {error}") from error

    # Starting

    def _begin(self) -> KubernetesBackend:
        from swerex_c.providers.kubernetes.backend import KubernetesBackend

        config = self._config
        name = pod_spec.name_for(config.image)
        pod = pod_spec.manifest(config, name)
        self._unsure = False
        self._hooks.on_custom_step("Connecting to the cluster")
        cluster = self._run(self._connect(), name)
        self._namespace = namespace = config.namespace or cluster.namespace
        self.logger.info(f"Creating pod {name} in {namespace} with image {config.image}")
        self._hooks.on_custom_step("Creating pod")
        self._run(self._create(cluster, namespace, pod), name, patience=_SETTLE_SECONDS)
        self._hooks.on_custom_step("Waiting for pod")
        began = time.monotonic()
        left = self._leave_limit()
        wait = PodWait(cluster, namespace, name, config.container_name)
        try:
            self._run(wait.ready(began + left - min(_MARGIN_SECONDS, left / 5)), name, left)
        except PodStartupError:
            raise
        except TimeoutError as error:
            raise wait.late() from error
        self.logger.info(f"Pod {name} runs after {time.monotonic() - began:.2f}s")
        return KubernetesBackend(
            name,
            namespace=namespace,
            container=config.container_name,
            context=config.context,
            kubeconfig=config.kubeconfig,
            in_cluster=config.in_cluster,
        )

    def _run(
        self, work: Coroutine[Any, Any, T], name: str, timeout: float | None = None, *, patience: float = 0.0
    ) -> T:
        """Run a coroutine of a start. Convert an error of the cluster to a `PodStartupError` with its cause."""
        try:
            return background.run_blocking(work, timeout, patience=patience)
        except ClusterError as error:
            raise startup_error(error, f"make the pod {name}") from error

    async def _connect(self) -> Cluster:
        config = self._config
        self._cluster = await Cluster.shared(Access(config.context, config.kubeconfig, config.in_cluster))
        return self._cluster

    async def _create(self, cluster: Cluster, namespace: str, pod: dict[str, Any]) -> None:
        self._pod, self._unsure = pod["metadata"]["name"], True
        try:
            await cluster.create(namespace, pod, timeout=self._seconds_left())
        except ClusterError as error:
            self._unsure = error.may_have_run
            self._pod = self._pod if self._unsure else None
            raise
        self._unsure = False

    # Ending

    def _has_begun(self) -> bool:
        return super()._has_begun() or self._cluster is not None

    def _end(self) -> None:
        cluster, name, namespace = self._cluster, self._pod, self._namespace
        if cluster is None:
            return
        if name is not None and namespace is not None:
            try:
                background.run_blocking(self._delete(cluster, namespace, name), _DELETE_SECONDS)
            except (ClusterError, TimeoutError) as error:
                seconds = self._config.time_to_live
                self.logger.warning(
                    f"Failed to delete pod {name} in {namespace}: {error}. "
                    + ("It stays until it is deleted" if seconds is None else f"It ends after {seconds:g} seconds")
                    + "; `swerex-c prune --cloud kubernetes` deletes it when this process has ended."
                )
        self._pod = self._namespace = None
        self._cluster = None
        background.spawn(cluster.release())

    async def _delete(self, cluster: Cluster, namespace: str, name: str) -> None:
        unsure_until = time.monotonic() + (_UNSURE_SECONDS if self._unsure else 0.0)
        while not await cluster.delete(namespace, name, self._config.grace_period):
            if time.monotonic() >= unsure_until:
                break
            await asyncio.sleep(0.2)
