"""Waits for new pods to run.

All waits of this process for pods of a namespace share one watch. A failure that may pass does not end a wait before
the timeout, or before the failure has lasted for `_PERSISTS_SECONDS`. All code here runs in the event loop of
`swerex_c.utils.background`.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator
from typing import Any

from swerex_c.exceptions import PodStartupError, PodStartupTimeoutError
from swerex_c.providers.kubernetes import pod_spec
from swerex_c.providers.kubernetes.cluster import Cluster
from swerex_c.providers.kubernetes.errors import ApiError, ClusterError, UnusableConfigError, startup_error
from swerex_c.providers.kubernetes.pods import MAX_MESSAGE, PodFailure, check_pod, may_pass

__all__ = ["PodWait", "watching"]

_PERSISTS_SECONDS = 60.0
"""Seconds for which a registry, or a node that creates a container, may fail in a way that may pass."""

_READ_SECONDS = 10.0
"""Seconds between reads of a pod that is watched, because the watch may have broken unnoticed."""

_POLL_SECONDS = 1.0
"""Seconds between reads of a pod that we may not watch."""

_EXPLAIN_SECONDS = 5.0
"""Seconds to wait for the events, or for the log, that explain a failure."""

_LOG_LINES = 20

_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Seconds to pause after a watch that broke; the last value is repeated."""

_GONE = 410
"""HTTP status for a version that the server no longer knows, after which a watch begins with all pods again."""


class PodWait:
    """The wait for a pod of this process, with the last reason why it did not run."""

    def __init__(self, cluster: Cluster, namespace: str, name: str, container: str) -> None:
        self._cluster, self._namespace, self._name, self._container = cluster, namespace, name, container
        self._changed = asyncio.Event()
        self._states: list[dict[str, Any]] = []  # not yet checked, in order: short-lived states can tell the most
        self._deleted = False
        self._watched = True
        self._failure = PodFailure("unknown", "", "nothing was heard of it")
        self._failing_since: dict[str, float] = {}  # time of the first failure of each cause
        self._pull_error = ""
        self._uid = ""

    # Called by the watch

    def show(self, pod: dict[str, Any], *, deleted: bool = False) -> None:
        """Take a new state of the pod."""
        self._states.append(pod)
        self._deleted = self._deleted or deleted
        self._changed.set()

    def poll(self) -> None:
        """Read the pod often, because the server refuses the watch."""
        self._watched = False
        self._changed.set()

    # The wait

    async def ready(self, deadline: float) -> None:
        """Wait until the container runs.

        Args:
            deadline: time on the clock `time.monotonic`, in seconds.

        Raises:
            PodStartupError: if the container will never run.
            PodStartupTimeoutError: if the container does not run before the deadline.
        """
        async with watching(self._cluster, self._namespace, self._name, self):
            while True:
                states, self._states = self._states, []
                deleted = self._deleted
                self._changed.clear()
                for pod in states:  # the states may tell why the pod was deleted
                    if await self._runs(pod) and not deleted:
                        return
                if deleted:
                    raise self._error(PodFailure("deleted", "", "somebody has deleted it"))
                left = deadline - time.monotonic()
                if left <= 0:
                    await self._explain()
                    raise self.late()
                try:
                    async with asyncio.timeout(min(left, _READ_SECONDS if self._watched else _POLL_SECONDS)):
                        await self._changed.wait()
                except TimeoutError:
                    await self._read(max(0.1, min(_READ_SECONDS, deadline - time.monotonic())))

    def late(self) -> PodStartupError:
        """Return the error for a timeout, with the last known reason."""
        return self._error(self._failure, late=True)

    async def _read(self, timeout: float) -> None:
        """Read the state of the pod.

        Raises:
            PodStartupError: if that will never succeed.
        """
        try:
            self.show(await self._cluster.get(self._namespace, self._name, timeout=timeout))
        except ClusterError as error:
            code, reason = (error.code, error.reason) if isinstance(error, ApiError) else (0, "")
            if code == 404:
                raise self._error(PodFailure("deleted", reason, "somebody has deleted it")) from error
            if code in (401, 403) or isinstance(error, UnusableConfigError):
                raise startup_error(error, f"show the pod {self._name}") from error
            self._failure = PodFailure("unreachable", reason, str(error))

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
            self._pull_error = self._pull_error or await self._pull_event()
            if self._pull_error not in failure.message:
                failure = dataclasses.replace(failure, message=f"{failure.message}: {self._pull_error}")
                failure = dataclasses.replace(failure, final=not may_pass(failure))
        self._failure = failure
        now = time.monotonic()
        since = self._failing_since.setdefault(failure.cause, now)
        persists = failure.cause in ("image", "configuration", "command") and now - since > _PERSISTS_SECONDS
        if failure.final or persists:
            raise self._error(failure, await self._log(failure))
        return False

    # Explanations

    async def _log(self, failure: PodFailure) -> str:
        """Return the last lines that a container with a failure printed; none if they cannot be read."""
        if failure.container is None:
            return ""
        with contextlib.suppress(ClusterError):
            lines = await self._cluster.log(
                self._namespace, self._name, failure.container, tail_lines=_LOG_LINES, timeout=_EXPLAIN_SECONDS
            )
            return lines.strip()
        return ""

    async def _explain(self) -> None:
        """Store why the pod does not run, from its events if its state does not say."""
        if self._failure.cause == "unknown" and (warnings := await self._warnings()):
            reason, message = warnings[-1]
            cause = "volume" if "Mount" in reason or "Attach" in reason else "unknown"
            self._failure = PodFailure(cause, reason, message)

    async def _pull_event(self) -> str:
        """Return the longest message of an event of a failure. Shorter messages say less."""
        return max((message for reason, message in await self._warnings() if reason == "Failed"), key=len, default="")

    async def _warnings(self) -> list[tuple[str, str]]:
        """Return reason and message of the pod's warning events, the last one at the end; none if they are unknown."""
        with contextlib.suppress(ClusterError, TimeoutError, KeyError, TypeError):
            async with asyncio.timeout(_EXPLAIN_SECONDS):
                events = await self._cluster.events(self._namespace, self._name, self._uid)
            warnings = [it for it in events if it.get("type") == "Warning"]
            warnings.sort(key=lambda it: str(it.get("lastTimestamp") or it.get("eventTime") or ""))
            return [(str(it.get("reason") or ""), str(it.get("message") or "")) for it in warnings]
        return []

    def _error(self, failure: PodFailure, log: str = "", *, late: bool = False) -> PodStartupError:
        kind = PodStartupTimeoutError if late else PodStartupError
        message = " ".join(failure.message.split())[:MAX_MESSAGE]
        parts = ": ".join(it for it in (failure.reason, message) if it) or failure.cause
        text = f"The pod {self._name} {'did not start in time' if late else 'cannot be started'}: {parts}"
        if log:
            text += f"\nThe last that it printed:\n{log}"
        return kind(text, cause=failure.cause, reason=failure.reason, exit_code=failure.exit_code, log=log)


class _Watch:
    """A watch of one namespace that runs for as long as a pod is waited for."""

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster, self._namespace = cluster, namespace
        self._waits: dict[str, PodWait] = {}
        self._latest: dict[str, dict[str, Any]] = {}  # the last state of each pod that is not deleted
        self._refused = False
        self._task = asyncio.ensure_future(self._run())

    def add(self, name: str, wait: PodWait) -> None:
        """Show a pod's states to a wait, from the present one on."""
        self._waits[name] = wait
        if self._refused:
            wait.poll()
        if (pod := self._latest.get(name)) is not None:  # its events can arrive before this call
            wait.show(pod)

    async def remove(self, name: str) -> None:
        """Remove a wait; without waits, the watch ends."""
        del self._waits[name]
        if not self._waits and self._cluster.watches.get(self._namespace) is self:
            del self._cluster.watches[self._namespace]
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        broken = 0
        version: str | None = None
        while True:
            began = time.monotonic()
            try:
                if version is None:
                    self._latest.clear()
                async for kind, pod in self._cluster.watch(self._namespace, pod_spec.selector_of_process(), version):
                    version = str(pod["metadata"]["resourceVersion"])
                    broken = 0
                    if kind != "BOOKMARK":
                        self._show(pod, deleted=kind == "DELETED")
            except ApiError as error:
                if error.code == _GONE:
                    version = None
                elif error.code in (401, 403):
                    self._refused = True
                    for wait in self._waits.values():
                        wait.poll()
            except (ClusterError, KeyError, TypeError, ValueError):
                pass  # each wait also reads its pod, and reports the error then
            else:
                if time.monotonic() - began > _PAUSES[-1]:
                    continue  # the server ends every watch after a while
            await asyncio.sleep(_PAUSES[min(broken, len(_PAUSES) - 1)])
            broken += 1

    def _show(self, pod: dict[str, Any], *, deleted: bool) -> None:
        name = pod["metadata"]["name"]
        if deleted:
            self._latest.pop(name, None)
        else:
            self._latest[name] = pod
        if (wait := self._waits.get(name)) is not None:
            wait.show(pod, deleted=deleted)


@contextlib.asynccontextmanager
async def watching(cluster: Cluster, namespace: str, name: str, wait: PodWait) -> AsyncIterator[None]:
    """Show the states of a pod of this process to a wait, while the block runs."""
    watch = cluster.watches.get(namespace)
    if watch is None:
        watch = cluster.watches[namespace] = _Watch(cluster, namespace)
    watch.add(name, wait)
    try:
        yield
    finally:
        await watch.remove(name)
