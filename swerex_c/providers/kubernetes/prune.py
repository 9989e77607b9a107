"""Delete the pods of processes that died without deleting them."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator

from swerex_c.providers import orphans, ownership
from swerex_c.providers.kubernetes import pod_spec
from swerex_c.providers.kubernetes.client import Access, Cluster, ClusterError, startup_error

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
    found = _found(Access(context, kubeconfig, in_cluster), namespace, all_namespaces)
    return orphans.prune(found, dry_run=dry_run, timeout=_TIMEOUT, sentence=str)


async def _found(access: Access, namespace: str | None, everywhere: bool) -> AsyncIterator[orphans.OwnedSandbox]:
    cluster = None
    try:
        cluster = await Cluster.shared(access)
        where = None if everywhere else namespace or cluster.namespace
        for pod in await cluster.find(where, pod_spec.selector_of_host()):
            metadata, facts = pod["metadata"], pod_spec.facts(pod)
            name = metadata["name"]
            if not ownership.has_own_labels(facts, name):
                continue
            image = str(pod["spec"]["containers"][0].get("image"))
            phase = str((pod.get("status") or {}).get("phase") or "Unknown")
            about = f"image {image}, in namespace {metadata['namespace']}, {phase}"
            end = functools.partial(cluster.delete, metadata["namespace"], name, 0)
            yield orphans.OwnedSandbox(str(metadata.get("uid") or name), name, about, facts, end)
    except ClusterError as error:
        raise startup_error(error, "list the pods") from error
    finally:
        if cluster is not None:
            await cluster.release()
