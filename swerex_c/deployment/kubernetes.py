"""A deployment in a pod of Kubernetes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Self, TypeVar

from swerex_c.deployment import _kube_pod
from swerex_c.deployment._exec import Effort, ExecDeployment
from swerex_c.deployment._kube_ready import Wait, failure
from swerex_c.deployment.config import KubernetesDeploymentConfig
from swerex_c.exceptions import DeploymentNotStartedError, PlaceLostError, PodStartupError, StartupTimeoutError
from swerex_c.exec import loops
from swerex_c.exec.cluster import Access, Cluster, Refused, Unreachable, Unusable, require

if TYPE_CHECKING:
    from swerex_c.exec.kubernetes import KubernetesBackend

__all__ = ["KubernetesDeployment", "KubernetesDeploymentConfig"]

T = TypeVar("T")

_SETTLE_SECONDS = 10.0
"""How long the server may take to tell whether a pod that nobody wants any more was made."""

_UNSURE_SECONDS = 2.0
"""How long it is looked for when that was not told."""

_DELETE_SECONDS = 30.0
"""How long the deletion of a pod is tried for."""

_PAUSES = (0.3, 1.0, 2.0, 4.0)
"""Pauses after requests to which the server gave no answer, or none of its own."""

_MARGIN_SECONDS = 2.0
"""How much of the time is for learning why the pod did not come in it."""


class KubernetesDeployment(ExecDeployment):
    """Starts a pod, in which nothing is needed but bash: commands reach it by the exec channel of Kubernetes' API.

        deployment = KubernetesDeployment(image="python:3.11", requests={"cpu": "1"}, limits={"memory": "2Gi"})
        await deployment.start()

    Stopping deletes the pod. If nobody does, the cluster ends it after `time_to_live`. What a start failed of is the
    `cause` of the `PodStartupError`.
    """

    _config: KubernetesDeploymentConfig
    _ends_place = True

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Any):
        """
        Args:
            **kwargs: the fields of `KubernetesDeploymentConfig`.

        Raises:
            ModuleNotFoundError: if the library is not here.
        """
        super().__init__(logger=logger)
        self._config = KubernetesDeploymentConfig(**kwargs)
        require()
        self._cluster: Cluster | None = None
        self._pod: str | None = None
        self._namespace: str | None = None
        self._unsure = False

    @classmethod
    def from_config(cls, config: KubernetesDeploymentConfig) -> Self:
        return cls(**config.model_dump())

    @property
    def pod_name(self) -> str | None:
        """The pod's name; None if there is none."""
        return self._pod

    @property
    def namespace(self) -> str | None:
        """The pod's namespace; None if there is none."""
        return self._namespace

    async def logs(self, *, tail: int | None = None, timeout: float = 30.0) -> str:
        """What the container itself has printed; not what commands in it print.

        Args:
            tail: how many lines, the last ones; None is all of them.

        Raises:
            DeploymentNotStartedError: if there is no pod.
            PlaceLostError: if it is gone, or out of reach.
        """
        cluster, pod, namespace = self._cluster, self._pod, self._namespace
        if cluster is None or pod is None or namespace is None:
            raise DeploymentNotStartedError()
        more = {} if tail is None else {"tail_lines": tail}
        asked = cluster.log(namespace, pod, self._config.container_name, timeout=timeout, **more)
        try:
            return await asyncio.wrap_future(loops.submit(asked))
        except (Refused, Unreachable, Unusable) as error:
            raise PlaceLostError(f"The log of the pod {pod} cannot be read: {error}") from error

    # Starting

    def _begin(self, effort: Effort) -> KubernetesBackend:
        from swerex_c.exec.kubernetes import KubernetesBackend

        config = self._config
        name = _kube_pod.name_for(config.image)
        pod = _kube_pod.manifest(config, name)
        self._unsure = False
        self._hooks.on_custom_step("Connecting to the cluster")
        cluster = self._run(effort, self._connect(), name)
        self._namespace = namespace = config.namespace or cluster.namespace
        self.logger.info(f"Creating pod {name} in {namespace} with image {config.image}")
        self._hooks.on_custom_step("Creating pod")
        self._run(effort, self._create(effort, cluster, namespace, pod), name, patience=_SETTLE_SECONDS)
        self._hooks.on_custom_step("Waiting for pod")
        began = time.monotonic()
        left = effort.check()
        wait = Wait(cluster, namespace, name, config.container_name)
        try:
            self._run(effort, wait.ready(began + left - min(_MARGIN_SECONDS, left / 5)), name)
        except PodStartupError:
            raise
        except StartupTimeoutError as error:
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

    def _run(self, effort: Effort, work: Coroutine[Any, Any, T], name: str, *, patience: float = 0.0) -> T:
        """Do something for a start. What the cluster does not do becomes an error with its cause."""
        try:
            return effort.run(work, patience=patience)
        except (Refused, Unreachable, Unusable) as error:
            raise failure(error, name) or error from error

    async def _connect(self) -> Cluster:
        config = self._config
        self._cluster = await Cluster.shared(Access(config.context, config.kubeconfig, config.in_cluster))
        return self._cluster

    async def _create(self, effort: Effort, cluster: Cluster, namespace: str, pod: dict[str, Any]) -> None:
        """Have the pod made. Its name is ours, so it can be asked for again where no answer came."""
        pauses = iter(_PAUSES)
        self._pod = pod["metadata"]["name"]
        unsure = False  # whether an earlier request may have made it
        while True:
            effort.check()
            self._unsure = True
            try:
                await cluster.create(namespace, pod)
                self._unsure = False
                return
            except Refused as refused:
                if refused.reason == "AlreadyExists":
                    self._unsure = False
                    return
                # Others who use up the same quota may be in the way for a moment, and a busy server says when to come.
                passes = refused.code == 429 or (refused.code == 409 and refused.reason == "Conflict")
                pause = (refused.retry_after or 0.5) if passes else next(pauses, None) if refused.code >= 500 else None
                unsure = self._unsure = unsure or refused.code >= 500
                if pause is None:
                    self._pod = self._pod if unsure else None
                    raise
            except Unreachable as error:
                unsure = self._unsure = unsure or error.sent
                pause = next(pauses, None) if error.sent else None
                if pause is None:
                    self._pod = self._pod if unsure else None
                    raise
            await asyncio.sleep(min(pause, effort.check()))

    # Ending

    def _has_begun(self) -> bool:
        return self._began or self._cluster is not None

    def _end(self) -> None:
        cluster, name, namespace = self._cluster, self._pod, self._namespace
        if cluster is None:
            return
        if name is not None and namespace is not None:
            try:
                loops.call(self._delete(cluster, namespace, name), _DELETE_SECONDS)
            except (Refused, Unreachable, Unusable, TimeoutError) as error:
                seconds = self._config.time_to_live
                self.logger.warning(
                    f"Failed to delete pod {name} in {namespace}: {error}. "
                    + ("It stays until it is deleted" if seconds is None else f"It ends after {seconds:g} seconds")
                    + "; `swerex-c prune --kubernetes` deletes it when this process has ended."
                )
        self._pod = self._namespace = None
        self._cluster = None
        loops.submit(cluster.release())

    async def _delete(self, cluster: Cluster, namespace: str, name: str) -> None:
        unsure_until = time.monotonic() + (_UNSURE_SECONDS if self._unsure else 0.0)
        pauses = iter(_PAUSES)
        while True:
            try:
                await cluster.delete(namespace, name, self._config.grace_period)
                return
            except Refused as refused:
                if refused.code == 404:
                    if time.monotonic() >= unsure_until:
                        return
                    pause: float | None = 0.2
                elif refused.code == 429 or refused.code >= 500:
                    pause = next(pauses, None)
                else:
                    raise
                if pause is None:
                    raise
            except Unreachable:
                pause = next(pauses, None)
                if pause is None:
                    raise
            await asyncio.sleep(pause)
