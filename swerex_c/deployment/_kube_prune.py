"""Deleting the pods of processes that died without doing so."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator

from swerex_c.deployment import _kube_pod, _leftovers, _owners
from swerex_c.deployment._kube_ready import failure
from swerex_c.exec.cluster import Access, Cluster, Refused

__all__ = ["prune"]

_SECONDS = 120.0


def prune(
    *,
    namespace: str | None = None,
    all_namespaces: bool = False,
    context: str | None = None,
    kubeconfig: str | None = None,
    in_cluster: bool | None = None,
    dry_run: bool = False,
) -> list[_owners.Left]:
    """Delete the pods whose process is dead. Blocks.

    Only pods that this package started are looked at, and only of processes of this machine, in this boot of it or an
    earlier one. What other machines left ends with its time to live.

    Args:
        namespace: None is that of the context.
        all_namespaces: look in all of them, which takes the right to.
        context, kubeconfig, in_cluster: which cluster; see `KubernetesDeploymentConfig`.
        dry_run: only tell which they are.

    Raises:
        PodStartupError: if the cluster cannot be reached, or does not let us look.
        TimeoutError: if it does not answer.
    """
    work = _prune(Access(context, kubeconfig, in_cluster), namespace, all_namespaces, dry_run)
    return _leftovers.ask(work, _SECONDS, lambda error: failure(error, "to look for"))


async def _prune(access: Access, namespace: str | None, all_namespaces: bool, dry_run: bool) -> list[_owners.Left]:
    cluster = await Cluster.shared(access)
    try:
        where = None if all_namespaces else namespace or cluster.namespace
        return await _leftovers.sweep(_found(cluster, where), dry_run=dry_run, sentence=str)
    finally:
        await cluster.release()


async def _found(cluster: Cluster, namespace: str | None) -> AsyncIterator[_leftovers.Found]:
    for pod in (await cluster.find(namespace, _kube_pod.selector_of_host()))["items"]:
        metadata, facts = pod["metadata"], _kube_pod.facts(pod)
        name = metadata["name"]
        if not _owners.labelled(facts, name):
            continue
        image = str(pod["spec"]["containers"][0].get("image"))
        phase = str((pod.get("status") or {}).get("phase") or "Unknown")
        about = f"image {image}, in namespace {metadata['namespace']}, {phase}"
        end = functools.partial(_delete, cluster, metadata["namespace"], name)
        yield _leftovers.Found(str(metadata.get("uid") or name), name, about, facts, end)


async def _delete(cluster: Cluster, namespace: str, name: str) -> None:
    try:
        await cluster.delete(namespace, name, 0)
    except Refused as refused:
        if refused.code != 404:
            raise
