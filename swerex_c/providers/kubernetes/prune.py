"""Delete the pods of processes that died without deleting them."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator

from swerex_c.exceptions import PodStartupError
from swerex_c.providers import orphans, ownership
from swerex_c.providers.kubernetes import pod_spec
from swerex_c.providers.kubernetes.access import Access
from swerex_c.providers.kubernetes.cluster import Cluster
from swerex_c.providers.kubernetes.errors import ClusterError, startup_error

__all__ = ["prune"]

_TIMEOUT = 120.0
"""Seconds to list and delete all pods."""


def prune(
    *,
    namespace: str | None = None,
    all_namespaces: bool = False,
    context: str | None = None,
    kubeconfig: str | None = None,
    in_cluster: bool | None = None,
    dry_run: bool = False,
) -> list[ownership.Orphan]:
    """Delete the pods whose owner process is dead, and return them. Blocks.

    Only pods that this package started on this machine are deleted, in this boot or an earlier one. Pods that other
    machines left end with their time to live.

    Args:
        namespace: None is the namespace of the context.
        all_namespaces: search all namespaces, which needs the permission to do so.
        context, kubeconfig, in_cluster: choice of the cluster; see `KubernetesDeploymentConfig`.
        dry_run: return the pods without deleting them.

    Raises:
        PodStartupError: if the cluster cannot be reached, or refuses the request.
        TimeoutError: if the cluster does not answer within 120 seconds.
    """
    work = _prune(Access(context, kubeconfig, in_cluster), namespace, all_namespaces, dry_run)
    return orphans.ask(work, _TIMEOUT, _convert_error)


def _convert_error(error: Exception) -> PodStartupError | None:
    return startup_error(error, "list the pods") if isinstance(error, ClusterError) else None


async def _prune(access: Access, namespace: str | None, all_namespaces: bool, dry_run: bool) -> list[ownership.Orphan]:
    cluster = await Cluster.shared(access)
    try:
        where = None if all_namespaces else namespace or cluster.namespace
        return await orphans.sweep(_found(cluster, where), dry_run=dry_run, sentence=str)
    finally:
        await cluster.release()


async def _found(cluster: Cluster, namespace: str | None) -> AsyncIterator[orphans.OwnedSandbox]:
    for pod in (await cluster.find(namespace, pod_spec.selector_of_host()))["items"]:
        metadata, facts = pod["metadata"], pod_spec.facts(pod)
        name = metadata["name"]
        if not ownership.has_own_labels(facts, name):
            continue
        image = str(pod["spec"]["containers"][0].get("image"))
        phase = str((pod.get("status") or {}).get("phase") or "Unknown")
        about = f"image {image}, in namespace {metadata['namespace']}, {phase}"
        end = functools.partial(_delete, cluster, metadata["namespace"], name)
        yield orphans.OwnedSandbox(str(metadata.get("uid") or name), name, about, facts, end)


async def _delete(cluster: Cluster, namespace: str, name: str) -> None:
    await cluster.delete(namespace, name, 0)
