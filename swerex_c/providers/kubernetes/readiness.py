"""Waits for new pods to run.

A pod is read, then watched for a while, and so on: a watch shows states that do not last, and a read is not affected by
a watch that broke unnoticed. A failure that may pass does not end a wait before the timeout, or before the failure has
lasted for `_PERSISTS_SECONDS`. All code here runs in the event loop of `swerex_c.utils.background`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Awaitable
from typing import Any, TypeVar

import aiohttp

from swerex_c.exceptions import PodStartupError, PodStartupTimeoutError
from swerex_c.providers.kubernetes.client import Cluster, ClusterError, startup_error
from swerex_c.providers.kubernetes.pods import PodFailure, check_pod

__all__ = ["PodWait"]

T = TypeVar("T")

_PERSISTS_SECONDS = 60.0
"""Seconds for which a registry, or a node that creates a container, may fail in a way that may pass."""

_WATCH_SECONDS = 10.0
"""Seconds of one watch, after which the pod is read again."""

_POLL_SECONDS = 1.0
"""Seconds between reads of a pod that cannot be watched."""

_EXPLAIN_SECONDS = 5.0
"""Seconds to wait for the events, or for the log, that explain a failure."""

_LOG_LINES = 20
"""Maximum number of lines of a container's output in an error message."""

_LOG_LENGTH = 20_000
"""Maximum number of characters of these lines, from their end: a line may have any length."""

_DELETED = PodFailure("deleted", "", "it was deleted")


class PodWait:
    """The wait for a pod of this process, with the last reason why it did not run."""

    def __init__(self, cluster: Cluster, namespace: str, name: str, container: str) -> None:
        self._cluster, self._namespace, self._name, self._container = cluster, namespace, name, container
        self._failure = PodFailure("unknown", "", "its state could not be read")
        self._failing_since: dict[str, float] = {}  # time of the first failure of each cause
        self._pull_error = ""
        self._uid = ""

    async def ready(self, seconds: float) -> None:
        """Wait until the container runs.

        Raises:
            PodStartupError: if the container will never run.
            PodStartupTimeoutError: if the container does not run within `seconds`.
        """
        try:
            async with asyncio.timeout(seconds):
                while True:
                    began = time.monotonic()
                    if await self._runs_soon():
                        return
                    await asyncio.sleep(began + _POLL_SECONDS - time.monotonic())
        except TimeoutError:
            if self._failure.cause == "unknown" and (warnings := await self._warnings()):
                reason, message = warnings[-1]
                cause = "volume" if "Mount" in reason or "Attach" in reason else "unknown"
                self._failure = PodFailure(cause, reason, message)
            raise self._error(self._failure, PodStartupTimeoutError) from None

    async def _runs_soon(self) -> bool:
        """Read the pod and watch it for a while; return whether its container runs.

        Raises:
            PodStartupError: if the container will never run.
        """
        try:
            pod = await self._cluster.get(self._namespace, self._name)
        except ClusterError as error:
            if error.code == 404:
                raise self._error(_DELETED) from error
            if error.code == 403 or error.cause == "credentials":
                raise startup_error(error, f"read the pod {self._name}") from error
            self._failure = PodFailure("unreachable", error.reason, str(error))
            return False
        if await self._runs(pod):
            return True
        # A watch that breaks, is refused or does not send what it should: the pod is read again.
        with contextlib.suppress(ClusterError, aiohttp.ClientError, OSError, LookupError, TypeError, ValueError):
            version = pod["metadata"]["resourceVersion"]
            changes = self._cluster.watch(self._namespace, self._name, version)
            async with asyncio.timeout(_WATCH_SECONDS), contextlib.aclosing(changes):
                async for kind, changed in changes:  # every state, in order: those that do not last can tell the most
                    if kind == "ERROR":
                        break
                    runs = await self._runs(changed)
                    if kind == "DELETED":
                        raise self._error(_DELETED)
                    if runs:
                        return True
        return False

    async def _runs(self, pod: dict[str, Any]) -> bool:
        """Check whether the container runs, and store the reason if not.

        Raises:
            PodStartupError: if the container will never run.
        """
        self._uid = str(pod["metadata"].get("uid") or "")
        failure = check_pod(pod, self._container)
        if failure is None:
            return True
        if failure.reason == "ErrImagePull":
            self._pull_error = failure.message
        elif failure.reason == "ImagePullBackOff":  # it says that the node waits, not why
            if not self._pull_error:
                failed = [message for reason, message in await self._warnings() if reason == "Failed"]
                self._pull_error = max(failed, key=len, default="")  # shorter messages say less
            if self._pull_error not in failure.message:
                failure = dataclasses.replace(failure, message=f"{failure.message}: {self._pull_error}")
        self._failure = failure
        now = time.monotonic()
        since = self._failing_since.setdefault(failure.cause, now)
        persists = failure.cause in ("image", "configuration", "command") and now - since > _PERSISTS_SECONDS
        if failure.final or persists:
            raise self._error(failure, log=await self._log(failure))
        return False

    # Explanations

    async def _log(self, failure: PodFailure) -> str:
        """Return the last lines that a container with a failure printed; none if they cannot be read."""
        if failure.container is None:
            return ""
        log = self._cluster.log(self._namespace, self._name, failure.container, tail=_LOG_LINES)
        return (await _if_told(log, "")).strip()[-_LOG_LENGTH:]

    async def _warnings(self) -> list[tuple[str, str]]:
        """Return reason and message of the pod's warning events, the last one at the end; none if they are unknown."""
        events = await _if_told(self._cluster.events(self._namespace, self._name, self._uid), [])
        warnings = [it for it in events if it.get("type") == "Warning"]
        warnings.sort(key=lambda it: str(it.get("lastTimestamp") or it.get("eventTime") or ""))
        return [(str(it.get("reason") or ""), str(it.get("message") or "")) for it in warnings]

    def _error(self, failure: PodFailure, kind: type[PodStartupError] = PodStartupError, log: str = "") -> Exception:
        how = "did not start in time" if kind is PodStartupTimeoutError else "cannot be started"
        text = f"The pod {self._name} {how}: {failure}" + (f"\nIts last output:\n{log}" if log else "")
        return kind(text, cause=failure.cause, reason=failure.reason, exit_code=failure.exit_code, log=log)


async def _if_told(request: Awaitable[T], otherwise: T) -> T:
    """Return what the cluster answers, or `otherwise` if it does not within `_EXPLAIN_SECONDS`."""
    with contextlib.suppress(ClusterError, TimeoutError):
        async with asyncio.timeout(_EXPLAIN_SECONDS):
            return await request
    return otherwise
