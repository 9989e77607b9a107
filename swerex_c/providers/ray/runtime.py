"""Runtime of an environment in an actor of a Ray cluster, made by `RayDeployment`."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from swerex_c.exceptions import ConnectionLostError, SandboxLostError
from swerex_c.remote.client.connect import Address
from swerex_c.remote.client.frames import FrameClient
from swerex_c.runtime.remote import RemoteRuntime

if TYPE_CHECKING:
    from swerex_c import models
    from swerex_c.providers.ray.channel import ActorChannel

__all__ = ["RayRuntime"]

_ALIVE_SECONDS = 5.0
"""Default timeout of `is_alive` in seconds."""


class _Client(FrameClient):
    """A frame client whose requests are calls of an actor."""

    def __init__(self, channel: ActorChannel):
        super().__init__(Address(unix=channel.name))
        self._actor = channel

    async def own_channel(self, long: bool = False) -> Any:
        return self._actor


class RayRuntime(RemoteRuntime):
    """Runtime of one environment. May be used from any event loop and any thread.

    When the environment is lost, all pending and later calls raise a `SandboxLostError` that names the actor and its
    node, or its subclass `TimeLimitError` or `MemoryLimitError` if a limit was the reason; `is_alive` and `close` do
    not raise it. No command runs twice.
    """

    def __init__(self, channel: ActorChannel, *, logger: logging.Logger | None = None):
        super().__init__(auth_token="", wire="msgpack", timeout=_ALIVE_SECONDS, logger=logger)
        self._actor_client = _Client(channel)

    @property
    def _frames(self) -> FrameClient:
        return self._actor_client

    async def close(self) -> models.CloseResponse:
        """Close all sessions and commands, and the runtime.

        A lost environment counts as closed.
        """
        from swerex_c.models import CloseResponse

        try:
            return await super().close()
        except (SandboxLostError, ConnectionLostError):
            return CloseResponse()
