"""Waiting for a pod, and why it does not come: what Kubernetes says of it, sorted into causes.

    refusal()   why the API server takes no such pod
    judge()     what the state of a pod means: it runs, it may yet, or it never will
    Wait        waits for the first or the last of these

What may pass by itself is waited for, until the time is over or it has lasted for `_PERSISTS_SECONDS`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from swerex_c.deployment._kube_watch import watching
from swerex_c.exceptions import PodStartupError, PodStartupTimeoutError
from swerex_c.exec import pods
from swerex_c.exec.cluster import Cluster, Refused, Unreachable, Unusable

__all__ = ["Wait", "failure", "refusal", "unreachable"]

_PERSISTS_SECONDS = 60.0
"""How long a registry, or a node that makes a container, may fail in a way that may pass."""

_ASK_SECONDS = 10.0
"""How often a pod is asked for while it is watched: a watch may have died unseen."""

_POLL_SECONDS = 1.0
"""The same where it may not be watched."""

_UNTOLD_SECONDS = 5.0
"""How long what explains a failure may take to be learned: events and the log."""

_LOG_LINES = 20

_REASONS = {
    "image": {"ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError"}
    | {"RegistryUnavailable", "SignatureValidationFailed"},
    "configuration": {"CreateContainerConfigError"},
    "command": {"CreateContainerError", "RunContainerError", "CrashLoopBackOff", "PostStartHookError", "StartError"},
}
"""Why a container waits that should not, by what it comes of."""

_NEVER = {"InvalidImageName", "ErrImageNeverPull", "SignatureValidationFailed", "CrashLoopBackOff"}
"""Reasons that do not pass."""

_NEVER_WORDS = {
    "image": ("not found", "manifest unknown", "unauthorized", "denied", "forbidden", "no match for platform")
    + ("no matching manifest", "invalid reference", "does not exist", "authentication required"),
    "configuration": ("not found", "couldn't find key", "non-root", "runasnonroot", "invalid"),
    "command": ("not found", "no such file", "permission denied", "exec format error", "invalid"),
}
"""What is said, in small letters, where it does not pass."""

_NODE_REASONS = {"NodeLost", "NodeShutdown", "NodeAffinity", "Shutdown", "Terminated", "UnexpectedAdmissionError"} | {
    "DeletionByTaintManager",
    "TerminationByKubelet",
    "DeletionByPodGC",
}
_EVICTED_REASONS = {"Evicted", "Preempting", "PreemptionByScheduler", "EvictionByEvictionAPI", "Preempted"}


@dataclasses.dataclass(frozen=True)
class Trouble:
    """Why a pod does not run."""

    cause: str
    reason: str
    words: str
    final: bool
    """Whether it never will."""

    exit_code: int | None = None
    container: str | None = None
    """The container that has a log."""


def refusal(refused: Refused, name: str) -> PodStartupError:
    """What it means that the API server did not make a pod."""
    words = str(refused)
    small = words.lower()
    if refused.code == 401:
        return PodStartupError(
            f"The cluster does not let us in: {words}. The credentials are wrong or have expired",
            cause="credentials",
            reason=refused.reason,
        )
    if refused.code == 404 and "namespaces" in small:
        cause = "namespace"
    elif refused.code == 403 and "exceeded quota" in small or "must specify" in small and "quota" in small:
        cause = "quota"
    elif refused.code == 403 and ("is being terminated" in small or refused.reason == "NamespaceTerminating"):
        cause = "namespace"
    elif refused.code == 403 and " cannot " in small:
        cause = "forbidden"
    elif refused.code in (400, 403, 404, 409, 413, 415, 422):
        cause = "refused"
        if refused.code == 403 and "admission webhook" not in small:
            cause = "forbidden"
    else:
        cause = "unreachable" if refused.code >= 500 or refused.code == 429 else "refused"
    return PodStartupError(f"The cluster does not make the pod {name}: {words}", cause=cause, reason=refused.reason)


def unreachable(error: Unreachable | Unusable) -> PodStartupError:
    """What it means that there is nobody to make a pod."""
    if isinstance(error, Unusable):
        return PodStartupError(f"There is no way to the cluster: {error}", cause="credentials")
    return PodStartupError(f"No cluster answers: {error}", cause="unreachable")


def failure(error: Exception, name: str) -> PodStartupError | None:
    """What it means that something was asked of a cluster in vain; None if that is none of a cluster's errors."""
    if isinstance(error, Refused):
        return refusal(error, name)
    return unreachable(error) if isinstance(error, (Unreachable, Unusable)) else None


def judge(pod: Mapping[str, Any], container: str) -> Trouble | None:
    """Why the container does not run; None if it does."""
    status = pod.get("status") or {}
    state = pods.status_of(status.get("containerStatuses"), container).get("state") or {}
    if "running" in state and not pod["metadata"].get("deletionTimestamp"):
        return None
    if found := _of_pod(pod, status):
        return found
    for key in ("initContainerStatuses", "containerStatuses"):
        for one in status.get(key) or ():
            ours = key == "containerStatuses" and one.get("name") == container
            if found := _of_container(one, ours):
                return found
    if status.get("phase") in ("Failed", "Succeeded"):
        return Trouble("unknown", str(status.get("reason") or ""), str(status.get("message") or "it has ended"), True)
    if status.get("phase") == "Unknown":
        return Trouble("node", "Unknown", "its node does not say what became of it", False)
    return _waiting(pod)


def _of_pod(pod: Mapping[str, Any], status: Mapping[str, Any]) -> Trouble | None:
    disruption = pods.condition(pod, "DisruptionTarget")
    reason, words = str(status.get("reason") or ""), str(status.get("message") or "")
    if not reason and disruption.get("status") == "True":
        reason, words = str(disruption.get("reason") or "Evicted"), str(disruption.get("message") or "")
    if status.get("phase") == "Failed" or disruption.get("status") == "True" or reason == "NodeLost":
        if reason == "DeadlineExceeded":
            return Trouble("deadline", reason, words or "its time_to_live is over", True)
        if reason in _EVICTED_REASONS:
            return Trouble("evicted", reason, words, True)
        if reason in _NODE_REASONS or reason.startswith("OutOf"):
            return Trouble("node", reason, words, True)
        if reason:
            return Trouble("unknown", reason, words, True)
    if pod["metadata"].get("deletionTimestamp"):
        return Trouble("deleted", "", "somebody deletes it", True)
    return None


def _of_container(status: Mapping[str, Any], ours: bool) -> Trouble | None:
    name = str(status.get("name"))
    state = status.get("state") or {}
    last = (status.get("lastState") or {}).get("terminated") or {}
    if (ended := state.get("terminated")) and (ours or ended.get("exitCode") != 0):
        return _ended(name, ended)
    waiting = state.get("waiting") or {}
    reason = str(waiting.get("reason") or "")
    words = str(waiting.get("message") or "")
    cause = next((it for it, reasons in _REASONS.items() if reason in reasons), None)
    if cause is None:
        return None
    if reason == "CrashLoopBackOff" and last:
        found = _ended(name, last)
        return dataclasses.replace(found, reason=reason if found.cause == "command" else found.reason)
    return _sorted(Trouble(cause, reason, words, False, container=name if cause == "command" else None))


def _sorted(trouble: Trouble) -> Trouble:
    """The same with `final` as what is said of a container that waits means."""
    signs = _NEVER_WORDS[trouble.cause]
    final = trouble.reason in _NEVER or any(sign in trouble.words.lower() for sign in signs)
    return dataclasses.replace(trouble, final=final)


def _ended(name: str, ended: Mapping[str, Any]) -> Trouble:
    reason, code = str(ended.get("reason") or ""), ended.get("exitCode")
    cause = "out-of-memory" if reason == "OOMKilled" else "command"
    words = f"its container {name} has ended with exit code {code}"
    if ended.get("message"):
        words += f": {ended['message']}"
    return Trouble(cause, reason, words, True, code if isinstance(code, int) else None, name)


def _waiting(pod: Mapping[str, Any]) -> Trouble:
    scheduled = pods.condition(pod, "PodScheduled")
    if scheduled.get("status") == "False":
        words = str(scheduled.get("message") or "no node was found for it yet")
        return Trouble("unschedulable", str(scheduled.get("reason") or ""), words, False)
    return Trouble("unknown", "", "its container has not been started yet", False)


class Wait:
    """The wait for a pod of ours, and what was last seen to be in its way."""

    def __init__(self, cluster: Cluster, namespace: str, name: str, container: str) -> None:
        self._cluster, self._namespace, self._name, self._container = cluster, namespace, name, container
        self._trouble: Trouble | None = None
        self._since: dict[str, float] = {}
        self._pulling = ""  # why the image could not be pulled
        self._uid = ""

    async def ready(self, deadline: float) -> dict[str, Any]:
        """Wait until the container runs; the pod then.

        Args:
            deadline: of the clock `time.monotonic`.

        Raises:
            PodStartupError: if it never will.
            PodStartupTimeoutError: if it does not before the deadline.
        """
        async with watching(self._cluster, self._namespace, self._name) as seen:
            while True:
                news, seen.news = seen.news, []
                deleted = seen.deleted
                seen.changed.clear()
                for pod in news:  # which may say why it was deleted
                    if await self._runs(pod) and not deleted:
                        return pod
                if deleted:
                    raise self.error(Trouble("deleted", "", "somebody has deleted it", True))
                left = deadline - time.monotonic()
                if left <= 0:
                    self._trouble = await self._explained()
                    raise self.late()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left, _POLL_SECONDS if seen.refused else _ASK_SECONDS)):
                        await seen.changed.wait()
                    continue
                found = await self._ask(max(0.1, min(_ASK_SECONDS, deadline - time.monotonic())))
                if found is not None and await self._runs(found):
                    return found

    def late(self) -> PodStartupError:
        """The error when the time is over, with what is known."""
        return self.error(self._trouble or Trouble("unknown", "", "nothing was heard of it", False), late=True)

    async def _ask(self, timeout: float) -> dict[str, Any] | None:
        """The pod, if the server says."""
        try:
            return await self._cluster.get(self._namespace, self._name, timeout=timeout)
        except Refused as refused:
            if refused.code == 404:
                raise self.error(Trouble("deleted", refused.reason, "somebody has deleted it", True)) from refused
            if refused.code in (401, 403):
                raise refusal(refused, self._name) from refused
            self._trouble = Trouble("unreachable", refused.reason, str(refused), False)
        except Unusable as error:
            raise unreachable(error) from error
        except Unreachable as error:
            self._trouble = Trouble("unreachable", "", str(error), False)
        return None

    async def _runs(self, pod: dict[str, Any]) -> bool:
        """Whether it does.

        Raises:
            PodStartupError: if it never will.
        """
        self._uid = str(pod["metadata"].get("uid") or "")
        trouble = judge(pod, self._container)
        self._trouble = trouble
        if trouble is None:
            return True
        if trouble.reason == "ErrImagePull":
            self._pulling = trouble.words
        elif trouble.reason == "ImagePullBackOff":  # that it waits is less than why
            self._pulling = self._pulling or await self._noted("Failed")
            if self._pulling not in trouble.words:
                trouble = _sorted(dataclasses.replace(trouble, words=f"{trouble.words}: {self._pulling}"))
            self._trouble = trouble
        if not trouble.final and trouble.cause in _REASONS:
            since = self._since.setdefault(trouble.cause, time.monotonic())
            if time.monotonic() - since > _PERSISTS_SECONDS:
                trouble = dataclasses.replace(trouble, final=True)
        if trouble.final:
            raise self.error(trouble, await self._log(trouble))
        return False

    async def _log(self, trouble: Trouble) -> str:
        if trouble.container is None:
            return ""
        with contextlib.suppress(Refused, Unreachable, Unusable):
            said = await self._cluster.log(
                self._namespace, self._name, trouble.container, tail_lines=_LOG_LINES, timeout=_UNTOLD_SECONDS
            )
            return said.strip()
        return ""

    async def _explained(self) -> Trouble | None:
        """What is in the way, with the help of what was noted where the pod itself does not say."""
        if self._trouble is None or self._trouble.cause == "unknown":
            return await self._event() or self._trouble
        return self._trouble

    async def _event(self) -> Trouble | None:
        """What was last noted of the pod as a warning."""
        warnings = await self._warnings()
        if not warnings:
            return None
        reason = str(warnings[-1].get("reason") or "")
        cause = "volume" if "Mount" in reason or "Attach" in reason else "unknown"
        return Trouble(cause, reason, str(warnings[-1].get("message") or ""), False)

    async def _noted(self, reason: str) -> str:
        """The longest that was noted for a reason; of several, the others say less."""
        return max((str(it.get("message")) for it in await self._warnings() if it.get("reason") == reason), default="")

    async def _warnings(self) -> list[dict[str, Any]]:
        """The warnings that were noted of the pod, the last one at the end; none if they may not be read."""
        with contextlib.suppress(Refused, Unreachable, Unusable, TimeoutError, KeyError, TypeError):
            async with asyncio.timeout(_UNTOLD_SECONDS):
                noted = await self._cluster.events(self._namespace, self._name, self._uid)
            warnings = [it for it in noted if it.get("type") == "Warning"]
            return sorted(warnings, key=lambda it: str(it.get("lastTimestamp") or it.get("eventTime") or ""))
        return []

    def error(self, trouble: Trouble, log: str = "", *, late: bool = False) -> PodStartupError:
        kind = PodStartupTimeoutError if late else PodStartupError
        words = " ".join(trouble.words.split())[: pods.WORDS]
        parts = ": ".join(it for it in (trouble.reason, words) if it) or trouble.cause
        text = f"The pod {self._name} {'did not start in time' if late else 'cannot be started'}: {parts}"
        if log:
            text += f"\nThe last that it printed:\n{log}"
        return kind(text, cause=trouble.cause, reason=trouble.reason, exit_code=trouble.exit_code, log=log)
