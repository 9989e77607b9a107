"""Server process of an environment.

It runs the environment's deployment and is the parent of its commands. It listens on a socket in a directory that only
this user may enter, for the actor.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from types import SimpleNamespace
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter

from swerex_c.models import UploadRequest, UploadResponse
from swerex_c.providers.ray.config import RayDeploymentConfig
from swerex_c.remote.server.listeners import Listeners
from swerex_c.remote.server.serve import serve
from swerex_c.remote.server.service import METHODS, Service
from swerex_c.remote.wire.exceptions import to_wire

__all__ = ["run"]

_GRACEFUL = 4.0
"""Seconds to complete pending requests when the environment ends."""


class _Copy(BaseModel):
    how: Literal["upload", "download"]
    source: str
    target: str


METHODS["copy"] = TypeAdapter(_Copy)


class _Service(Service):
    """A service that copies files too."""

    async def call(self, method: str, request: BaseModel | None) -> BaseModel:
        if not isinstance(request, _Copy):
            return await super().call(method, request)
        if request.how == "upload":
            return await self.runtime.upload(UploadRequest(source_path=request.source, target_path=request.target))
        await self.runtime.download(request.source, request.target)
        return UploadResponse()


async def _no_app(scope: Any, receive: Any, send: Any) -> None:
    """Respond to no HTTP request, because the client of this server uses frames."""


async def run(spec: dict[str, Any], directory: str, report_fd: int) -> None:
    """Serve until SIGTERM.

    Args:
        spec: specification of the environment.
        directory: directory for the socket.
        report_fd: file descriptor for the outcome of the start, which is closed after that.
    """
    serving = asyncio.ensure_future(_serve(spec, directory, report_fd))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await serving


def _report(report_fd: int, what: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the actor is gone, and this process will be ended
        os.write(report_fd, json.dumps(what).encode() + b"\n")
    os.close(report_fd)


async def _serve(spec: dict[str, Any], directory: str, report_fd: int) -> None:
    config = RayDeploymentConfig.model_validate({"environment": spec["environment"]})
    deployment = config.environment.get_deployment()
    try:
        await deployment.start()
    except BaseException as error:
        _report(report_fd, {"failed": to_wire(error)})
        raise
    try:
        holder: Any = SimpleNamespace(runtime=deployment.runtime, AUTH_TOKEN=spec["key"])
        service = _Service(holder)
        service.ending = True  # no other runtime takes the place of one that is closed
        socket = os.path.join(directory, "socket")
        listeners = Listeners(host=None, unix=socket)

        def ready() -> None:
            pids = {"supervisor": os.getppid(), "server": os.getpid()}
            _report(report_fd, {"ready": {"socket": socket, "directory": directory, **pids}})

        await serve(service, _no_app, listeners, graceful=_GRACEFUL, ready=ready)
    finally:
        await deployment.stop()
