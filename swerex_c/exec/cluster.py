"""A cluster of Kubernetes: what is asked of its API server.

    Access ==> Cluster.shared() -- one for all who name the same cluster, until the last has let go of it
                 ask(), get(), ...   requests: JSON in and out, on a bounded number of connections
                 watch()             what happens to the pods of a namespace
    dial(cluster, ...)               a WebSocket to a program in a container: a connection of its own each

The rooms behind it: `_kube_access` finds out which cluster and as whom, `_kube_connection` keeps connections and sends,
`_kube_sockets` opens WebSockets, `_kube_errors` says what is wrong.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp

from swerex_c.exec import loops
from swerex_c.exec._kube_access import Access
from swerex_c.exec._kube_connection import Connection
from swerex_c.exec._kube_errors import Refused, TooOldError, Unreachable, Unusable, object_of, refused, require
from swerex_c.exec._kube_sockets import NEW, OLD, dial

__all__ = ["NEW", "OLD", "Access", "Cluster", "Refused", "TooOldError", "Unreachable", "Unusable", "dial", "require"]

_AT_ONCE = 16
"""How many requests are under way at most, for all pods of a cluster. Watches and programs have connections beside."""

_TIMEOUT = 30.0
"""How long a request may take that does not say otherwise."""

_WATCH_SECONDS = 240
"""After how long the server ends a watch, so that one that died unseen is not waited for long."""


class Cluster(Connection):
    """What may be asked, by those who have it from `shared`."""

    speaks: str | None = None
    """`NEW` or `OLD`, when a program was run."""

    def _begin(self) -> None:
        super()._begin()
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def ask(self, method: str, *args: Any, timeout: float = _TIMEOUT, **parameters: Any) -> bytes:
        """Call a method of the library's `CoreV1Api`, and return what the server answers as it is.

        Raises:
            Refused, Unreachable, Unusable
        """
        async with self._turns:
            response = await self._respond(method, args, timeout, parameters)
            try:
                with self.telling(timeout):
                    async with asyncio.timeout(timeout):
                        return bytes(await response.read())
            finally:
                response.release()

    async def _respond(self, method: str, args: Any, timeout: float, parameters: Mapping[str, Any]) -> Any:
        """The beginning of an answer that is no refusal."""
        limit = aiohttp.ClientTimeout(total=None, connect=timeout)

        async def begin() -> Any:
            response = await getattr(self.for_requests, method)(
                *args, _preload_content=False, _request_timeout=limit, **parameters
            )
            if response.status < 400:
                return response
            raise refused(response.status, await response.read(), response.headers.get("Retry-After"))

        return await self.send(begin, timeout)

    async def get(self, namespace: str, name: str, *, timeout: float = _TIMEOUT) -> dict[str, Any]:
        """A pod."""
        return object_of(await self.ask("read_namespaced_pod", name, namespace, timeout=timeout))

    async def create(self, namespace: str, pod: Mapping[str, Any]) -> dict[str, Any]:
        return object_of(await self.ask("create_namespaced_pod", namespace, dict(pod)))

    async def delete(self, namespace: str, name: str, grace: int) -> None:
        """Have a pod deleted, within so many seconds. With 0 it is not waited until its node has ended it."""
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": grace}
        await self.ask("delete_namespaced_pod", name, namespace, body=options)

    async def find(self, namespace: str | None, selector: str) -> dict[str, Any]:
        """Pods with certain labels, as a list with its version; of all namespaces if None."""
        if namespace is None:
            return object_of(await self.ask("list_pod_for_all_namespaces", label_selector=selector))
        return object_of(await self.ask("list_namespaced_pod", namespace, label_selector=selector))

    async def log(self, namespace: str, name: str, container: str, **parameters: Any) -> str:
        """What a container has printed, as `read_namespaced_pod_log` gives it."""
        said = await self.ask("read_namespaced_pod_log", name, namespace, container=container, **parameters)
        return said.decode(errors="replace")

    async def events(self, namespace: str, pod: str, uid: str) -> list[dict[str, Any]]:
        """What was noted of a pod."""
        selector = f"involvedObject.kind=Pod,involvedObject.name={pod}" + (f",involvedObject.uid={uid}" if uid else "")
        return list(object_of(await self.ask("list_namespaced_event", namespace, field_selector=selector))["items"])

    async def node(self, name: str, *, timeout: float = _TIMEOUT) -> dict[str, Any]:
        return object_of(await self.ask("read_node", name, timeout=timeout))

    async def watch(self, namespace: str, selector: str, version: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """What happens to pods after a version, as pairs of `ADDED`, `MODIFIED`, `DELETED` or `BOOKMARK` and the pod.

        Ends when the server ends it.

        Raises:
            Refused: with 410 if the version is too old.
            Unreachable, Unusable
        """
        parameters = {
            "label_selector": selector,
            "resource_version": version,
            "watch": True,
            "allow_watch_bookmarks": True,
            "timeout_seconds": _WATCH_SECONDS,
        }
        response = await self._respond("list_namespaced_pod", (namespace,), _TIMEOUT, parameters)
        turn = loops.turn()
        try:
            with self.telling(_WATCH_SECONDS):
                while True:
                    async with asyncio.timeout(_WATCH_SECONDS + _TIMEOUT):
                        line = await response.content.readline()
                    if not line:
                        return
                    event = object_of(line)
                    if event["type"] == "ERROR":
                        said = event["object"]
                        raise refused(int(said.get("code", 500)), json.dumps(said).encode(), None)
                    yield str(event["type"]), event["object"]
                    await turn.over()
        except (ValueError, KeyError) as error:
            raise Unreachable(f"What watches is no API server of Kubernetes: {error!r}") from error
        finally:
            response.close()
