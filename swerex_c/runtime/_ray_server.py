"""The process that an environment's commands are children of: the deployment of the environment, behind a server.

The driver's connection speaks frames, over the node's address with a key of its own; the actor's goes over a socket in
a directory that only this user may enter, and so does what the actor asks for besides: to copy what is on this node
into the environment and back.
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

from swerex_c.deployment.config import DockerDeploymentConfig, LocalDeploymentConfig
from swerex_c.exceptions import NotSupportedError
from swerex_c.remote.channel import Registry
from swerex_c.remote.serve import Places, ServeOptions, serve
from swerex_c.remote.service import Service
from swerex_c.remote.transfer import to_wire
from swerex_c.runtime.abstract import AbstractRuntime, UploadRequest

__all__ = ["ASK_SOCKET", "FRAMES_SOCKET", "run"]

FRAMES_SOCKET = "frames"
ASK_SOCKET = "ask"

_GRACEFUL = 4.0
"""Seconds for the answers to what is under way when the environment ends."""

_CONFIG: TypeAdapter[LocalDeploymentConfig | DockerDeploymentConfig] = TypeAdapter(
    LocalDeploymentConfig | DockerDeploymentConfig
)


@dataclass
class _Place:
    runtime: AbstractRuntime
    AUTH_TOKEN: str


class _Service(Service):
    """One whose runtime is not replaced by another when it is closed: the environment ends with it."""

    async def close(self) -> BaseModel:
        return await self.place.runtime.close()


async def _no_app(scope: Any, receive: Any, send: Any) -> None:
    """Whoever does not speak frames has no business here."""
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


def run(spec: dict[str, Any], directory: str, told: int) -> int:
    """Serve until SIGTERM; 0 if all was ended in good order. `told`: a descriptor to say on how the start went."""
    return asyncio.run(_main(spec, directory, told))


def _tell(told: int, what: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the actor is gone, and so will be this process
        os.write(told, json.dumps(what).encode() + b"\n")
    os.close(told)


async def _main(spec: dict[str, Any], directory: str, told: int) -> int:
    serving = asyncio.ensure_future(_serve(spec, directory, told))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, serving.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        return await serving
    return 0


async def _serve(spec: dict[str, Any], directory: str, told: int) -> int:
    deployment = _CONFIG.validate_python(spec["environment"]).get_deployment()
    try:
        await deployment.start()
    except BaseException as error:
        _tell(told, {"failed": to_wire(error)})
        raise
    try:
        service = _Service(_Place(deployment.runtime, spec["key"]))
        options = ServeOptions(
            host=spec["host"], port=0, unix=os.path.join(directory, FRAMES_SOCKET), graceful=_GRACEFUL
        )
        asked = await asyncio.start_unix_server(
            lambda reader, writer: _answer(deployment.runtime, reader, writer), os.path.join(directory, ASK_SOCKET)
        )

        def ready(places: Places) -> None:
            pids = {"keeper": os.getppid(), "server": os.getpid()}
            _tell(told, {"ready": {"port": places.port, "directory": directory, **pids}})

        async with asked:
            await serve(service, _no_app, options, Registry, ready=ready)
        return 0
    finally:
        await deployment.stop()


async def _answer(runtime: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one thing between this node and the environment."""
    try:
        said: dict[str, Any] = {"done": True}
        try:
            how, source, target = json.loads(await reader.readline())
            if how == "upload":
                await runtime.upload(UploadRequest(source_path=source, target_path=target))
            elif hasattr(runtime, "download"):
                await runtime.download(source, target)
            else:
                raise NotSupportedError(f"{type(runtime).__name__} gives out no files")
        except Exception as error:
            said = {"failed": to_wire(error)}
        writer.write(json.dumps(said).encode() + b"\n")
        await writer.drain()
    except (OSError, asyncio.CancelledError):
        pass
    finally:
        writer.close()
