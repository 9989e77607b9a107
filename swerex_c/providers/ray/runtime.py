"""Runtime of an environment in an actor of a Ray cluster, made by `RayDeployment`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from swerex_c.exceptions import ConnectionLostError, ResultLostError, SandboxLostError, ServerRestartedError
from swerex_c.runtime.remote import RemoteRuntime

if TYPE_CHECKING:
    from swerex_c import models
    from swerex_c.providers.ray.link import ActorConnection
    from swerex_c.remote.client.frames import WireClient
    from swerex_c.remote.client.http import JsonClient

__all__ = ["RayRuntime"]

T = TypeVar("T")

_ALIVE_SECONDS = 5.0
"""Default timeout of `is_alive` in seconds."""

_REPORT_SECONDS = 3.0
"""Seconds for Ray to report an environment's end after the connection to the environment has broken."""


class RayRuntime(RemoteRuntime):
    """Runtime of one environment. May be used from any event loop and any thread.

    When the environment is lost, all pending and later calls raise a `SandboxLostError` that names the actor and its
    node, or its subclass `TimeLimitError` or `MemoryLimitError` if a limit was the reason; `is_alive` and `close` do
    not raise it. No command runs twice.
    """

    def __init__(self, link: ActorConnection, staging: str | None, **kwargs: Any):
        """Create the runtime; further keyword arguments are those of `RemoteRuntime`.

        Args:
            staging: directory on the node for files on their way to or from an environment with another file system;
                None if the environment uses the node's.
        """
        super().__init__(**kwargs)
        self._link = link
        self._staging = staging

    async def _guarded(self, work: Callable[[], Awaitable[T]]) -> T:
        """Await `work()`, and raise the environment's loss as soon as Ray reports it."""
        async with self._link.guard():
            try:
                return await work()
            except (ConnectionLostError, ServerRestartedError, ResultLostError):
                self._link.check_ray()
                await asyncio.sleep(_REPORT_SECONDS)  # the guard ends it, with the reason of the loss
                raise

    async def _by(self, call: Callable[[WireClient | JsonClient], Awaitable[T]]) -> T:
        return await self._guarded(lambda: super(RayRuntime, self)._by(call))

    async def stream_in_session(self, action: models.Action) -> AsyncIterator[str | models.BashObservation]:
        items = super().stream_in_session(action)
        async with contextlib.aclosing(items):  # type: ignore[type-var]
            while (item := await self._guarded(lambda: anext(items, None))) is not None:
                yield item

    async def is_alive(self, *, timeout: float | None = None) -> models.IsAliveResponse:
        """Check whether the environment exists and responds.

        Args:
            timeout: seconds to wait for the response; None is 5.
        """
        from swerex_c.models import IsAliveResponse

        try:
            return await super().is_alive(timeout=_ALIVE_SECONDS if timeout is None else timeout)
        except SandboxLostError as error:
            return IsAliveResponse(is_alive=False, message=str(error))

    async def close(self) -> models.CloseResponse:
        """Close all sessions and commands, and the runtime.

        A lost environment counts as closed.
        """
        from swerex_c.models import CloseResponse

        try:
            return await super().close()
        except (SandboxLostError, ConnectionLostError):
            return CloseResponse()

    # Files of an environment with another file system than its node

    async def upload(self, request: models.UploadRequest) -> models.UploadResponse:
        """Copy a file or a tree to the environment, with modes and symbolic links.

        A tree is merged into a directory that exists.
        """
        if self._staging is None:
            return await super().upload(request)
        async with self._staged(os.path.basename(os.path.abspath(request.source_path))) as path:
            answer = await super().upload(request.model_copy(update={"target_path": path}))
            await self._guarded(lambda: self._link.ask("copy", "upload", path, request.target_path))
            return answer

    async def download(self, source_path: str, target_path: str) -> None:
        """Copy a file or a tree from the environment, by the rules of `upload`."""
        if self._staging is None:
            return await super().download(source_path, target_path)
        async with self._staged(os.path.basename(os.path.normpath(source_path))) as path:
            await self._guarded(lambda: self._link.ask("copy", "download", source_path, path))
            await super().download(path, target_path)

    @contextlib.asynccontextmanager
    async def _staged(self, name: str) -> AsyncIterator[str]:
        """Yield a new path on the node that ends with `name`; remove it at the end."""
        directory = f"{self._staging}/{uuid.uuid4().hex}"
        try:
            yield f"{directory}/{name or 'root'}"
        finally:
            with contextlib.suppress(SandboxLostError):
                self._link.send("remove", directory)
