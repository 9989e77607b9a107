"""State of a pod: its selected container, or why no program can run in it.

The backends over kubectl and over the API share this module. A pod is the JSON object that both return.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from swerex_c.exceptions import SandboxLostError

__all__ = ["MAX_MESSAGE", "PodFailure", "RunningContainer", "check_pod", "condition", "find_running", "gone_message"]

MAX_MESSAGE = 500
"""Maximum number of characters of a cluster's message in an error message."""

_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
"""Annotation with the name of the default container."""


def gone_message(name: str) -> str:
    """Return the message for a pod that does not exist; `name` is its name in messages."""
    return f"The {name} is gone: it was deleted, or there never was one of that name"


def condition(thing: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return a condition of a pod or a node; empty if it has no such condition."""
    return next((it for it in (thing.get("status") or {}).get("conditions") or () if it.get("type") == kind), {})


def _status_of(pod: Mapping[str, Any], container: str) -> dict[str, Any]:
    """Return the status of a container; empty for a container that was never created."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    return next((it for it in statuses if it.get("name") == container), {})


# The container of a backend


@dataclass(frozen=True)
class RunningContainer:
    """A running container of a pod. One that is started later under the same names has other ids."""

    container: str
    id: str | None
    pod_uid: str | None


def find_running(
    pod: Mapping[str, Any], name: str, container: str | None, before: RunningContainer | None = None
) -> RunningContainer:
    """Return the running container.

    Args:
        name: the pod's name in messages.
        container: name of the container; None is the pod's default container.
        before: the container as it ran before; one with another id is reported as restarted.

    Raises:
        SandboxLostError: if it does not run, or is another one, or if `pod` describes none.
    """
    try:
        metadata, names = pod["metadata"], [str(it["name"]) for it in pod["spec"]["containers"]]
        uid, first = metadata.get("uid"), names[0]
    except (LookupError, TypeError, AttributeError) as error:
        text = f"The {name} has a description that is not valid ({error!r}): {str(pod)[:MAX_MESSAGE]}"
        raise SandboxLostError(text) from error
    if before is not None and uid != before.pod_uid:
        raise SandboxLostError(f"The {name} was deleted; another pod has its name now")
    if container is None:
        default = (metadata.get("annotations") or {}).get(_DEFAULT_CONTAINER)
        container = default if default in names else first
    elif container not in names:
        raise SandboxLostError(f"The {name} has no container {container}, only {', '.join(names)}")
    if failure := check_pod(pod, container):
        raise SandboxLostError(f"The container {container} of the {name} does not run: {failure}")
    running = RunningContainer(container, _status_of(pod, container).get("containerID"), uid)
    if before is not None and before.id is not None and running.id != before.id:
        raise SandboxLostError(f"The container {container} of the {name} was restarted, which ended all that ran in it")
    return running


# The start of a pod


@dataclass(frozen=True)
class PodFailure:
    """The reason why a pod does not run."""

    cause: str
    """The `cause` of a `PodStartupError`."""

    reason: str
    message: str
    ended: bool = False
    """True if the pod, or the container, has ended."""

    exit_code: int | None = None
    container: str | None = None
    """Name of the container whose log explains the failure."""

    @property
    def final(self) -> bool:
        """True if the pod will never run. The reason and the message of a waiting container decide that."""
        message = self.message.lower()
        return self.ended or self.reason in _NEVER or any(it in message for it in _NEVER_TEXTS.get(self.cause, ()))

    def __str__(self) -> str:
        message = " ".join(self.message.split())[:MAX_MESSAGE]
        return ": ".join(it for it in (self.reason, message) if it) or self.cause


_REASONS = {
    "configuration": ("CreateContainerConfigError",),
    "image": ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError")
    + ("RegistryUnavailable", "SignatureValidationFailed"),
    "command": ("CreateContainerError", "RunContainerError", "CrashLoopBackOff", "PostStartHookError", "StartError"),
    "deadline": ("DeadlineExceeded",),
    "evicted": ("Evicted", "Preempting", "PreemptionByScheduler", "EvictionByEvictionAPI", "Preempted"),
    "node": ("NodeLost", "NodeShutdown", "NodeAffinity", "Shutdown", "Terminated", "UnexpectedAdmissionError")
    + ("DeletionByTaintManager", "TerminationByKubelet", "DeletionByPodGC"),
}
"""Reasons that a waiting container reports, or a pod that has ended, by cause. Others are `unknown`."""

_NEVER = {"InvalidImageName", "ErrImageNeverPull", "SignatureValidationFailed", "CrashLoopBackOff"}
"""Reasons of failures that do not pass."""

_NEVER_TEXTS = {
    "image": ("not found", "manifest unknown", "unauthorized", "denied", "forbidden", "no match for platform")
    + ("no matching manifest", "invalid reference", "does not exist", "authentication required"),
    "configuration": ("not found", "couldn't find key", "non-root", "runasnonroot", "invalid"),
    "command": ("not found", "no such file", "permission denied", "exec format error", "invalid"),
}
"""Parts of the messages, in lower case, of failures that do not pass, by cause."""


def _cause(reason: str) -> str:
    known = (cause for cause, reasons in _REASONS.items() if reason in reasons)
    return next(known, "node" if reason.startswith("OutOf") else "unknown")


def check_pod(pod: Mapping[str, Any], container: str) -> PodFailure | None:
    """Return why the container does not run; None if it runs."""
    status = pod.get("status") or {}
    if found := _pod_failure(pod, status):
        return found
    own = _status_of(pod, container)
    if "running" in (own.get("state") or {}):
        return None
    others = (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ()))
    for one in (own, *others):
        if found := _container_failure(one, one is own):
            return found
    if status.get("phase") in ("Failed", "Succeeded"):
        reason, message = str(status.get("reason") or ""), str(status.get("message") or "it has ended")
        return PodFailure("unknown", reason, message, True)
    if status.get("phase") == "Unknown":
        return PodFailure("node", "Unknown", "its node does not report its state")
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        message = str(scheduled.get("message") or "no node was found for it yet")
        return PodFailure("unschedulable", str(scheduled.get("reason") or ""), message)
    return PodFailure("unknown", "", "its container has not been started yet")


def _pod_failure(pod: Mapping[str, Any], status: Mapping[str, Any]) -> PodFailure | None:
    """Return why the whole pod has ended, or is about to be ended."""
    reason, message = status.get("reason"), status.get("message")
    disruption = condition(pod, "DisruptionTarget")
    disrupted = disruption.get("status") == "True"
    if disrupted and not reason:
        reason, message = disruption.get("reason") or "Evicted", disruption.get("message")
    if reason and (disrupted or reason == "NodeLost" or status.get("phase") == "Failed"):
        return PodFailure(_cause(reason), reason, str(message or ""), True)
    if pod["metadata"].get("deletionTimestamp"):
        return PodFailure("deleted", "", "it is being deleted", True)
    return None


def _container_failure(status: Mapping[str, Any], ours: bool) -> PodFailure | None:
    name, state = str(status.get("name")), status.get("state") or {}
    if (ended := state.get("terminated")) and (ours or ended.get("exitCode") != 0):
        return _ended(name, ended)
    waiting = state.get("waiting") or {}
    reason = str(waiting.get("reason") or "")
    if (cause := _cause(reason)) == "unknown":
        return None
    if reason == "CrashLoopBackOff" and (last := (status.get("lastState") or {}).get("terminated")):
        found = _ended(name, last)
        return dataclasses.replace(found, reason=reason if found.cause == "command" else found.reason)
    message = str(waiting.get("message") or "")
    return PodFailure(cause, reason, message, container=name if cause == "command" else None)


def _ended(name: str, ended: Mapping[str, Any]) -> PodFailure:
    reason, code = str(ended.get("reason") or ""), ended.get("exitCode")
    cause = "out-of-memory" if reason == "OOMKilled" else "command"
    message = f"its container {name} has ended with exit code {code}"
    if ended.get("message"):
        message += f": {ended['message']}"
    return PodFailure(cause, reason, message, True, code if isinstance(code, int) else None, name)
