"""Server process of an environment.

It runs the environment's deployment and is the parent of its commands. The driver connects to the node's address with
the environment's key. A socket in a directory that only this user may enter takes the actor's requests to copy files
between this node and the environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, TypeAdapter

from swerex_c.interfaces import AbstractRuntime
from swerex_c.models import UploadRequest
from swerex_c.providers.docker.config import DockerDeploymentConfig
from swerex_c.providers.local.config import LocalDeploymentConfig
from swerex_c.remote.server.serve import ListenAddresses, ServeOptions, serve
from swerex_c.remote.server.service import Service
from swerex_c.remote.wire.exceptions import to_wire

__all__ = ["COPY_SOCKET", "run"]

COPY_SOCKET = "copy"

_GRACEFUL = 4.0
"""Seconds to complete pending requests when the environment ends."""

_CONFIG: TypeAdapter[LocalDeploymentConfig | DockerDeploymentConfig] = TypeAdapter(
    LocalDeploymentConfig | DockerDeploymentConfig
)


@dataclass
class _Holder:
    runtime: AbstractRuntime
    AUTH_TOKEN: str


class _Service(Service):
    """A service whose `close` does not replace the runtime, because the environment ends with the runtime."""

    async def close(self) -> BaseModel:
        return await self.holder.runtime.close()


async def _no_app(scope: Any, receive: Any, send: Any) -> None:
    """Respond with status 404 to HTTP requests, because clients of this server use frames."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


def run(spec: dict[str, Any], directory: str, report_fd: int) -> int:
    """Serve until SIGTERM, and return 0 if all ended cleanly.

    Args:
        spec: specification of the environment.
        directory: directory for the socket.
        report_fd: file descriptor for the outcome of the start, which is closed after that.
    """
    return asyncio.run(_main(spec, directory, report_fd))


def _report(report_fd: int, what: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the actor is gone, and this process will be ended
        os.write(report_fd, json.dumps(what).encode() + b"\n")
    os.close(report_fd)


async def _main(spec: dict[str, Any], directory: str, report_fd: int) -> int:
    serving = asyncio.ensure_future(_serve(spec, directory, report_fd))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        return await serving
    return 0


async def _serve(spec: dict[str, Any], directory: str, report_fd: int) -> int:
    deployment = _CONFIG.validate_python(spec["environment"]).get_deployment()
    try:
        await deployment.start()
    except BaseException as error:
        _report(report_fd, {"failed": to_wire(error)})
        raise
    try:
        service = _Service(_Holder(deployment.runtime, spec["key"]))
        options = ServeOptions(host=spec["host"], port=0, graceful=_GRACEFUL)
        copies = await asyncio.start_unix_server(
            lambda reader, writer: _serve_copy(deployment.runtime, reader, writer), os.path.join(directory, COPY_SOCKET)
        )

        def ready(places: ListenAddresses) -> None:
            pids = {"supervisor": os.getppid(), "server": os.getpid()}
            _report(report_fd, {"ready": {"port": places.port, "directory": directory, **pids}})

        async with copies:
            await serve(service, _no_app, options, ready=ready)
        return 0
    finally:
        await deployment.stop()


async def _serve_copy(runtime: AbstractRuntime, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one request to copy a file or tree between this node and the environment."""
    try:
        said: dict[str, Any] = {"done": True}
        try:
            how, source, target = json.loads(await reader.readline())
            if how == "upload":
                await runtime.upload(UploadRequest(source_path=source, target_path=target))
            else:
                await runtime.download(source, target)
        except Exception as error:
            said = {"failed": to_wire(error)}
        writer.write(json.dumps(said).encode() + b"\n")
        await writer.drain()
    except (OSError, asyncio.CancelledError):
        pass
    finally:
        writer.close()
