"""A runtime that does nothing and returns preset outputs, for tests of code that uses runtimes."""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncIterator
from typing import Any, Self

from swerex_c import models
from swerex_c.exceptions import DummyOutputsExhaustedError, InvalidInputError
from swerex_c.interfaces import AbstractRuntime
from swerex_c.runtime.config import DummyRuntimeConfig
from swerex_c.utils.load import handed_on
from swerex_c.utils.log import get_logger

__all__ = ["DummyRuntime"]

__getattr__ = functools.partial(handed_on, __name__)


class DummyRuntime(AbstractRuntime):
    """A runtime that runs nothing: every request succeeds with an empty response.

    `run_in_session` returns `run_in_session_outputs`: the same observation for every call, or a list from which each
    call removes the first observation.
    """

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Any):
        """Create the runtime from the fields of `DummyRuntimeConfig`."""
        self.run_in_session_outputs: list[models.BashObservation] | models.BashObservation = models.BashObservation(
            exit_code=0
        )
        self._config = DummyRuntimeConfig(**kwargs)
        self.logger = logger or get_logger("rex-runtime")

    @classmethod
    def from_config(cls, config: DummyRuntimeConfig) -> Self:
        return cls(**config.model_dump())

    async def is_alive(self, *, timeout: float | None = None) -> models.IsAliveResponse:
        return models.IsAliveResponse(is_alive=True)

    async def create_session(self, request: models.CreateSessionRequest | None = None) -> models.CreateSessionResponse:
        if request is not None:
            _require_bash(request.session_type)
        return models.CreateBashSessionResponse()

    async def run_in_session(self, action: models.Action) -> models.Observation:
        if not isinstance(self.run_in_session_outputs, list):
            return self.run_in_session_outputs
        if not self.run_in_session_outputs:
            asked = getattr(action, "command", action.action_type)
            raise DummyOutputsExhaustedError(f"No output left for {asked!r} in run_in_session_outputs")
        return self.run_in_session_outputs.pop(0)

    async def stream_in_session(self, action: models.Action) -> AsyncIterator[str | models.BashObservation]:
        observation = await self.run_in_session(action)
        if observation.output:
            yield observation.output
        yield observation

    async def close_session(self, request: models.CloseSessionRequest) -> models.CloseSessionResponse:
        _require_bash(request.session_type)
        return models.CloseBashSessionResponse()

    async def execute(self, command: models.Command) -> models.CommandResponse:
        return models.CommandResponse(exit_code=0)

    async def read_file(self, request: models.ReadFileRequest) -> models.ReadFileResponse:
        return models.ReadFileResponse()

    async def write_file(self, request: models.WriteFileRequest) -> models.WriteFileResponse:
        return models.WriteFileResponse()

    async def upload(self, request: models.UploadRequest) -> models.UploadResponse:
        return models.UploadResponse()

    async def download(self, source_path: str, target_path: str) -> None:
        pass

    async def close(self) -> models.CloseResponse:
        return models.CloseResponse()


def _require_bash(session_type: str) -> None:
    if session_type != "bash":
        raise InvalidInputError(f"Unknown session type: {session_type!r}")
