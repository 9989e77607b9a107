"""What Kubernetes says of a pod, read: which container is meant, and why nothing can run in it any more.

Shared by those who ask kubectl and those who ask the API themselves. A pod is the JSON object that both give.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["DEFAULT", "WORDS", "Running", "condition", "container_meant", "ended", "gone", "look", "status_of"]

DEFAULT = "kubectl.kubernetes.io/default-container"
"""The annotation with the name of the container that is meant if none is named."""

WORDS = 500
"""How many characters of what a cluster said a message holds."""


@dataclass(frozen=True)
class Running:
    """A container that runs. Another one of its name that is started after it has another id."""

    container: str
    id: str | None


def gone(name: str) -> str:
    """The sentence on a pod that is not there. `name` is what messages call it."""
    return f"The {name} is gone: it was deleted, or there never was one of that name"


def container_meant(pod: Mapping[str, Any], name: str | None) -> str | None:
    """The container that is meant by a name, or by none; None if it has no such container."""
    containers = _names(pod)
    if name is None:
        chosen = (pod["metadata"].get("annotations") or {}).get(DEFAULT)
        return chosen if chosen in containers else containers[0]
    return name if name in containers else None


def look(pod: Mapping[str, Any], name: str, container: str | None, before: Running | None = None) -> Running | str:
    """The container that runs, or why it does not, as a sentence.

    Args:
        name: what messages call the pod.
        container: its name; None is the pod's default one.
        before: what ran before; another one is not it.

    Raises:
        ValueError, KeyError, TypeError, AttributeError, IndexError: if this is not how pods are described.
    """
    status = pod["status"]
    meant = container_meant(pod, container)
    if meant is None:
        return f"The {name} has no container {container}, only {', '.join(_names(pod))}"
    if why := _pod_ended(status, name):
        return why
    found = status_of(status.get("containerStatuses"), meant)
    if "running" not in (found.get("state") or {}):
        return _not_running(name, meant, status.get("phase"), found)
    running = Running(meant, found.get("containerID"))
    if before is not None and before.id is not None and running.id != before.id:
        return f"The container {meant} of the {name} was restarted, and is not the one that it was"
    return running


def status_of(statuses: Iterable[dict[str, Any]] | None, container: str) -> dict[str, Any]:
    """What is said of one container among `containerStatuses`; nothing is said of one that was never made."""
    return next((it for it in statuses or () if it.get("name") == container), {})


def condition(thing: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """A condition of a pod or a node; empty if nothing is said of it."""
    return next((it for it in (thing.get("status") or {}).get("conditions") or () if it.get("type") == kind), {})


def ended(state: Mapping[str, Any]) -> str:
    """Why a container that has ended did, from the `terminated` of its state."""
    return f"{state.get('reason', 'Ended')}, exit code {state.get('exitCode')}"


def _names(pod: Mapping[str, Any]) -> list[str]:
    return [str(it["name"]) for it in pod["spec"]["containers"]]


def _pod_ended(status: Mapping[str, Any], name: str) -> str | None:
    """Why the whole pod has ended, where its cluster says that: eviction, its deadline, the end of its node."""
    reason = status.get("reason")
    if reason == "NodeLost" or (reason and status.get("phase") == "Failed"):
        message = " ".join(str(status.get("message") or "").split())[:WORDS]
        return f"The {name} has ended ({reason}{': ' if message else ''}{message})"
    return None


def _not_running(name: str, container: str, phase: Any, status: Mapping[str, Any]) -> str:
    state = status.get("state") or {}
    if terminated := state.get("terminated"):
        return f"The container {container} of the {name} has ended ({ended(terminated)})"
    waiting = (state.get("waiting") or {}).get("reason")
    return f"The container {container} of the {name} is not running: {waiting or phase or 'its state is unknown'}"
