"""Backend that runs programs in containers of Kubernetes pods over the API."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from swerex_c.exceptions import InvalidInputError, ResourceError, SandboxLostError
from swerex_c.providers.kubernetes import pods
from swerex_c.providers.kubernetes.access import Access
from swerex_c.providers.kubernetes.cluster import Cluster
from swerex_c.providers.kubernetes.errors import ApiError, ClusterError, UnusableConfigError
from swerex_c.providers.kubernetes.exec_program import ExecProgram, connect
from swerex_c.sandbox.api_backend import ApiBackend
from swerex_c.sandbox.backend import Process
from swerex_c.sandbox.env_passing import as_words

__all__ = ["KubernetesBackend"]

_START_SECONDS = 30.0
"""Seconds to wait for a program to start."""

_CLOSE_SECONDS = 5.0
"""Seconds to wait until the connections are closed."""


class KubernetesBackend(ApiBackend):
    """A container of a running pod, reached over the API, without a client program.

    The backend neither starts nor stops the container.
    """

    def __init__(
        self,
        pod: str,
        *,
        namespace: str | None = None,
        container: str | None = None,
        context: str | None = None,
        kubeconfig: str | None = None,
        in_cluster: bool | None = None,
    ) -> None:
        """Create a backend for a container of a pod.

        Args:
            pod: name of the pod.
            namespace: None is the namespace of the context.
            container: None is the pod's default container, or its first; `open` finds out which.
            context: context of the kubeconfig; None is its current context.
            kubeconfig: path of a file; None is KUBECONFIG or ~/.kube/config.
            in_cluster: whether to use the service account of the pod we run in; None does so without a kubeconfig.

        Raises:
            InvalidInputError: if a name is not valid in Kubernetes.
        """
        for name in (pod, namespace, container):
            if name is not None and not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", name):
                raise InvalidInputError(f"{name!r} is not a name in Kubernetes")
        self.pod, self.namespace, self.container = pod, namespace, container
        self.name = f"pod {pod}" + (f" in {namespace}" if namespace else "")
        self._access = Access(context, kubeconfig, in_cluster)
        self._cluster: Cluster | None = None
        self._closed = False
        self._running: pods.RunningContainer | None = None

    # Coroutines for the event loop of `background`

    async def _connected(self) -> Cluster:
        """Return the cluster. Connect to it before the first use."""
        if self._cluster is None:
            cluster = await Cluster.shared(self._access)
            if self._cluster is not None or self._closed:
                await cluster.release()
            else:
                self._cluster = cluster
        if self._cluster is None:
            raise UnusableConfigError("The place was closed")
        return self._cluster

    async def exec(
        self, argv: Sequence[str], env: Mapping[str, str], terminal: tuple[int, int] | None = None
    ) -> Process:
        try:
            cluster = await self._connected()
            websocket = await connect(
                cluster,
                self.namespace or cluster.namespace,
                self.pod,
                self.container,
                as_words(argv, env),
                tty=terminal is not None,
                timeout=_START_SECONDS,
            )
        except ApiError as error:
            raise ResourceError(f"The {self.name} starts no program: {error}") from error
        except ClusterError as error:
            raise SandboxLostError(f"The {self.name} is out of reach: {error}") from error
        program = ExecProgram(websocket, self.name)
        if terminal is not None:
            try:
                await program.resize(*terminal)
            except BaseException as error:
                await program.close()
                if isinstance(error, (aiohttp.ClientError, OSError)):
                    raise SandboxLostError(f"The connection to the {self.name} broke at once: {error}") from error
                raise
        return program

    async def _check(self, *, opening: bool) -> str | None:
        """Return why the container is lost, as `why_lost` does; `opening` stores the container that runs."""
        try:
            cluster = await self._connected()
            pod = await cluster.get(self.namespace or cluster.namespace, self.pod)
        except ClusterError as error:
            if isinstance(error, ApiError) and error.code == 404:
                return pods.not_found_message(self.name)
            return f"The {self.name} is out of reach, for the API says: {str(error)[: pods.MAX_MESSAGE]}"
        found = pods.find_running(pod, self.name, self.container, None if opening else self._running)
        if isinstance(found, str):
            return found
        if opening:
            self.container, self._running = found.container, found
            return None
        return await self._node_lost(cluster, pod)

    async def _node_lost(self, cluster: Cluster, pod: Mapping[str, Any]) -> str | None:
        """Return why the node of a pod that is reported as running is lost; None if it is not, or cannot be read."""
        node = pod["spec"].get("nodeName")
        if not node or pods.condition(pod, "Ready").get("status") == "True":
            return None
        try:
            ready = pods.condition(await cluster.node(str(node)), "Ready")
        except ClusterError as error:
            gone = isinstance(error, ApiError) and error.code == 404
            return f"The node {node} of the {self.name} is gone" if gone else None
        if not ready or ready.get("status") == "True":
            return None
        return f"The node {node} of the {self.name} is not there: {ready.get('message') or ready.get('reason')}"

    async def open(self) -> None:
        self._closed = False
        if lost := await self._check(opening=True):
            raise SandboxLostError(lost)

    async def close(self) -> None:
        self._closed = True
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CLOSE_SECONDS):
                    await cluster.release()

    async def why_lost(self) -> str | None:
        return await self._check(opening=False)
