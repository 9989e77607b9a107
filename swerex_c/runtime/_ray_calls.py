"""A runtime whose every call is a call of the environment's actor: for nodes that the driver cannot connect to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel

from swerex_c.remote.transfer import from_wire
from swerex_c.runtime import abstract
from swerex_c.runtime._base import AbstractRuntime
from swerex_c.runtime._ray_link import ActorLink, translated

__all__ = ["CallsRuntime"]


class CallsRuntime(AbstractRuntime):
    """Sends requests as dictionaries, which Ray carries a tenth faster than models."""

    def __init__(self, link: ActorLink):
        self._link = link

    async def _call(self, method: str, request: BaseModel | None) -> Any:
        return await self._link.ask("call", method, {} if request is None else request.model_dump())

    async def is_alive(self, *, timeout: float | None = None) -> abstract.IsAliveResponse:
        return abstract.IsAliveResponse(**await self._link.ask("alive", 5.0 if timeout is None else timeout))

    async def create_session(self, request: abstract.CreateSessionRequest) -> abstract.CreateSessionResponse:
        return abstract.CreateBashSessionResponse(**await self._call("create_session", request))

    async def run_in_session(self, action: abstract.Action) -> abstract.Observation:
        return abstract.BashObservation(**await self._call("run_in_session", action))

    async def stream_in_session(self, action: abstract.Action) -> AsyncIterator[str | abstract.BashObservation]:
        with translated(self._link):
            refs = self._link.handle.stream.options(num_returns="streaming").remote(action.model_dump())
            while (ref := await self._link.waited(_next(refs))) is not None:
                kind, item = await self._link.waited(asyncio.wrap_future(ref.future()))
                if kind == "failed":
                    raise from_wire(item)
                yield item if isinstance(item, str) else abstract.BashObservation(**item)

    async def close_session(self, request: abstract.CloseSessionRequest) -> abstract.CloseSessionResponse:
        return abstract.CloseBashSessionResponse(**await self._call("close_session", request))

    async def execute(self, command: abstract.Command) -> abstract.CommandResponse:
        return abstract.CommandResponse(**await self._call("execute", command))

    async def read_file(self, request: abstract.ReadFileRequest) -> abstract.ReadFileResponse:
        return abstract.ReadFileResponse(**await self._call("read_file", request))

    async def write_file(self, request: abstract.WriteFileRequest) -> abstract.WriteFileResponse:
        return abstract.WriteFileResponse(**await self._call("write_file", request))

    async def upload(self, request: abstract.UploadRequest) -> abstract.UploadResponse:
        """Files go another way: see `RayRuntime.upload`."""
        raise NotImplementedError

    async def close(self) -> abstract.CloseResponse:
        return abstract.CloseResponse(**await self._call("close", None))


async def _next(refs: Any) -> Any:
    """The next reference; None after the last."""
    return await anext(refs, None)
