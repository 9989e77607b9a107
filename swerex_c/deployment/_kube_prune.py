"""Deleting the pods of processes that died without doing so."""

from __future__ import annotations

from typing import Any

from swerex_c.deployment import _kube_pod, _owners
from swerex_c.deployment._kube_ready import refusal, unreachable
from swerex_c.exec import loops
from swerex_c.exec.cluster import Access, Cluster, Refused, Unreachable, Unusable

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
    access = Access(context, kubeconfig, in_cluster)
    try:
        return loops.call(_prune(access, namespace, all_namespaces, dry_run), _SECONDS)
    except Refused as refused:
        raise refusal(refused, "to look for") from refused
    except (Unreachable, Unusable) as error:
        raise unreachable(error) from error


async def _prune(access: Access, namespace: str | None, all_namespaces: bool, dry_run: bool) -> list[_owners.Left]:
    cluster = await Cluster.shared(access)
    try:
        where = None if all_namespaces else namespace or cluster.namespace
        pods = (await cluster.find(where, _kube_pod.selector_of_host()))["items"]
        found = []
        for pod in pods:
            facts, name = _kube_pod.facts(pod), pod["metadata"]["name"]
            if _owners.labelled(facts, name) and _owners.lives(facts) is False:
                found.append(_left(pod, None if dry_run else await _delete(cluster, pod)))
        return found
    finally:
        await cluster.release()


async def _delete(cluster: Cluster, pod: dict[str, Any]) -> str | None:
    metadata = pod["metadata"]
    try:
        await cluster.delete(metadata["namespace"], metadata["name"], 0)
    except Refused as refused:
        return None if refused.code == 404 else str(refused)
    except (Unreachable, Unusable) as error:
        return str(error)
    return None


def _left(pod: dict[str, Any], error: str | None) -> _owners.Left:
    metadata, owner = pod["metadata"], _owners.told(_kube_pod.facts(pod))
    image = str(pod["spec"]["containers"][0].get("image"))
    phase = str((pod.get("status") or {}).get("phase") or "Unknown")
    about = f"image {image}, in namespace {metadata['namespace']}, {phase}"
    return _owners.Left(str(metadata.get("uid") or metadata["name"]), metadata["name"], about, owner, error=error)
