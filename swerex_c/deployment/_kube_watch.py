"""What happens to the pods of this process: one watch for each namespace, which all who wait for a pod share.

All of it runs in the loop of `swerex_c.exec.loops`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from swerex_c.deployment import _kube_pod
from swerex_c.exec.cluster import Cluster, Refused, Unreachable, Unusable

__all__ = ["Seen", "watching"]

_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0)
"""Pauses after a watch that broke; the last is repeated."""

_GONE = 410
"""The server remembers nothing of a version: all is to be read anew."""


class Seen:
    """What was seen of one pod."""

    def __init__(self) -> None:
        self.news: list[dict[str, Any]] = []
        """How it was, in order, since somebody has looked: some states are short, and say most."""

        self.deleted = False
        self.changed = asyncio.Event()
        self.refused = False
        """Whether we may not watch, so that it has to be asked for again and again."""

    def show(self, pod: dict[str, Any], *, deleted: bool = False) -> None:
        self.news.append(pod)
        self.deleted = self.deleted or deleted
        self.changed.set()


class _Watch:
    """A watch that goes on for as long as somebody waits for a pod."""

    known: ClassVar[dict[tuple[int, str], _Watch]] = {}

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self._cluster, self._namespace = cluster, namespace
        self.waiting: dict[str, Seen] = {}
        self._latest: dict[str, dict[str, Any]] = {}  # how all of them were last, until they are deleted
        self._refused = False
        self.task = asyncio.ensure_future(self._run())

    def add(self, name: str) -> Seen:
        seen = self.waiting[name] = Seen()
        seen.refused = self._refused
        if (pod := self._latest.get(name)) is not None:  # it was fast
            seen.show(pod)
        return seen

    async def _run(self) -> None:
        broken = 0
        version: str | None = None
        while True:
            try:
                if version is None:
                    version = await self._read()
                began = time.monotonic()
                async for kind, pod in self._cluster.watch(self._namespace, _kube_pod.selector_of_process(), version):
                    version = str(pod["metadata"]["resourceVersion"])
                    broken = 0
                    if kind != "BOOKMARK":
                        self._show(pod, deleted=kind == "DELETED")
                if time.monotonic() - began > _PAUSES[-1]:
                    continue  # the server ends each after a while
            except Refused as refused:
                if refused.code == _GONE:
                    version = None
                elif refused.code in (401, 403):
                    self._refused = True
                    for seen in self.waiting.values():
                        seen.refused = True
                        seen.changed.set()
            except (Unreachable, Unusable, KeyError, TypeError):
                pass  # it is asked for each pod too, and told then
            await asyncio.sleep(_PAUSES[min(broken, len(_PAUSES) - 1)])
            broken += 1

    async def _read(self) -> str:
        found = await self._cluster.find(self._namespace, _kube_pod.selector_of_process())
        self._latest.clear()
        for pod in found["items"]:
            self._show(pod)
        return str(found["metadata"]["resourceVersion"])

    def _show(self, pod: dict[str, Any], *, deleted: bool = False) -> None:
        name = pod["metadata"]["name"]
        if deleted:
            self._latest.pop(name, None)
        else:
            self._latest[name] = pod
        seen = self.waiting.get(name)
        if seen is not None:
            seen.show(pod, deleted=deleted)


@contextlib.asynccontextmanager
async def watching(cluster: Cluster, namespace: str, name: str) -> AsyncIterator[Seen]:
    """See what happens to a pod of this process."""
    key = (id(cluster), namespace)
    watch = _Watch.known.get(key)
    if watch is None:
        watch = _Watch.known[key] = _Watch(cluster, namespace)
    seen = watch.add(name)
    try:
        yield seen
    finally:
        watch.waiting.pop(name, None)
        if not watch.waiting and _Watch.known.get(key) is watch:
            del _Watch.known[key]
            watch.task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await watch.task


def _forget() -> None:
    """A forked process has a loop of its own."""
    _Watch.known = {}


os.register_at_fork(after_in_child=_forget)
