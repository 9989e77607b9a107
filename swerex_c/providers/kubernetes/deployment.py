"""Deployment in a new Kubernetes pod."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, Unpack

from swerex_c.exceptions import DeploymentNotStartedError, SandboxLostError
from swerex_c.providers import ownership
from swerex_c.providers.kubernetes import pod_spec
from swerex_c.providers.kubernetes.client import Access, Cluster, ClusterError, require, startup_error
from swerex_c.providers.kubernetes.config import KubernetesDeploymentConfig, KubernetesKeywords
from swerex_c.providers.kubernetes.readiness import PodWait
from swerex_c.providers.orphans import OwnedSandbox
from swerex_c.providers.sandbox_deployment import SandboxDeployment
from swerex_c.utils import background
from swerex_c.utils.load import ConfigSignature
from swerex_c.utils.threads import in_thread
from swerex_c.utils.wait import settle

if TYPE_CHECKING:
    from swerex_c.providers.kubernetes.backend import KubernetesBackend

__all__ = ["KubernetesDeployment", "KubernetesDeploymentConfig", "find_owned"]

_SETTLE_SECONDS = 10.0
"""Seconds to wait for the server's answer whether an abandoned pod was created."""

_UNSURE_SECONDS = 2.0
"""Seconds to keep trying to delete a pod that is not found, where it is unknown whether it was created."""

_END_SECONDS = 60.0
"""Seconds to delete a pod, in which a program of the kubeconfig may have to give new credentials."""

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
            NotAvailableError: if `kubernetes_asyncio` is not installed.
        """
        super().__init__(logger=logger)
        self._config = KubernetesDeploymentConfig(**kwargs)
        require()
        self._cluster: Cluster | None = None
        self.pod_name: str | None = None
        """Name of the pod; None if there is no pod."""
        self.namespace: str | None = None
        """Namespace of the pod; None if there is no pod."""
        self._unsure = False  # whether the pod may have been created although no response says so

    async def logs(self, *, tail: int | None = None, timeout: float = 30.0) -> str:
        """Return the output of the container's own command, without that of the runtime's commands.

        Args:
            tail: number of lines from the end; None is all lines.
            timeout: seconds to wait for the output.

        Raises:
            DeploymentNotStartedError: if there is no pod.
            SandboxLostError: if the pod is gone, or out of reach.
        """
        cluster, pod, namespace = self._cluster, self.pod_name, self.namespace
        if cluster is None or pod is None or namespace is None:
            raise DeploymentNotStartedError()
        try:
            async with asyncio.timeout(timeout):
                return await background.run(cluster.log(namespace, pod, self._config.container_name, tail=tail))
        except (ClusterError, TimeoutError) as error:
            why = str(error) or f"there was no answer within {timeout:g} seconds"
            raise SandboxLostError(f"The log of the pod {pod} cannot be read: {why}") from error

    # Starting

    async def _start_sandbox(self) -> KubernetesBackend:
        from swerex_c.providers.kubernetes.backend import KubernetesBackend

        config = self._config
        name = pod_spec.name_for(config.image)
        pod = await in_thread(pod_spec.manifest, config, name)
        try:
            await self._step("Connecting to the cluster")
            access = Access(config.context, config.kubeconfig, config.in_cluster)
            self._cluster = cluster = await Cluster.shared(access)
            self.namespace = namespace = config.namespace or cluster.namespace
            self.logger.info(f"Creating pod {name} in {namespace} with image {config.image}")
            await self._step("Creating pod")
            await settle(self._create(cluster, namespace, pod), _SETTLE_SECONDS)
        except ClusterError as error:
            raise startup_error(error, f"create the pod {name}") from error
        await self._step("Waiting for pod")
        began, left = time.monotonic(), self._leave_limit()
        await PodWait(cluster, namespace, name, config.container_name).ready(left - min(_MARGIN_SECONDS, left / 5))
        self.logger.info(f"Pod {name} runs after {time.monotonic() - began:.2f}s")
        return KubernetesBackend(cluster, namespace, name, config.container_name)

    async def _create(self, cluster: Cluster, namespace: str, pod: dict[str, Any]) -> None:
        self.pod_name, self._unsure = pod["metadata"]["name"], True
        try:
            await cluster.create(namespace, pod, busy=self._seconds_left())
        except ClusterError as error:
            self._unsure = error.may_have_run
            self.pod_name = self.pod_name if self._unsure else None
            raise
        self._unsure = False

    # Ending

    async def _end_sandbox(self) -> None:
        cluster, name, namespace = self._cluster, self.pod_name, self.namespace
        self._cluster = self.pod_name = self.namespace = None
        if cluster is None:
            return
        try:
            if name is not None and namespace is not None:
                async with asyncio.timeout(_END_SECONDS):
                    await self._delete(cluster, namespace, name)
        except (ClusterError, TimeoutError) as error:
            seconds = self._config.time_to_live
            self.logger.warning(
                f"Failed to delete pod {name} in {namespace}: {error or 'it took too long'}. "
                + ("It stays until it is deleted" if seconds is None else f"It ends after {seconds:g} seconds")
                + "; `swerex-c prune --cloud kubernetes` deletes it when this process has ended."
            )
        finally:
            await cluster.release()

    async def _delete(self, cluster: Cluster, namespace: str, name: str) -> None:
        unsure_until = time.monotonic() + (_UNSURE_SECONDS if self._unsure else 0.0)
        while not await cluster.delete(namespace, name, self._config.grace_period):
            if time.monotonic() >= unsure_until:
                break
            await asyncio.sleep(0.2)


async def find_owned(namespace: str | None = None) -> AsyncIterator[OwnedSandbox]:
    """Yield the pods of this machine's processes, in the cluster of the current context.

    Args:
        namespace: None is the namespace of the context.

    Raises:
        PodStartupError: if the cluster cannot be reached, or refuses the request.
    """
    try:
        cluster = await Cluster.shared(Access())
        try:
            for pod in await cluster.find(namespace or cluster.namespace, pod_spec.selector_of_host()):
                metadata, facts = pod["metadata"], pod_spec.facts(pod)
                name = metadata["name"]
                if ownership.has_own_labels(facts, name):
                    image, phase = pod["spec"]["containers"][0]["image"], pod["status"].get("phase", "Unknown")
                    about = f"image {image}, in namespace {metadata['namespace']}, {phase}"
                    end = functools.partial(cluster.delete, metadata["namespace"], name, 0)
                    yield OwnedSandbox(metadata["uid"], name, about, facts, end)
        finally:
            await cluster.release()
    except ClusterError as error:
        raise startup_error(error, "list the pods") from error
