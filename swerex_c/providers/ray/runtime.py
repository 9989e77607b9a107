"""Runtime of an environment in an actor of a Ray cluster, made by `RayDeployment`.

Every request is one call of the actor. Streams and files pass in pieces, each of which is one call.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import threading
from collections.abc import AsyncGenerator
from typing import Any

from swerex_c import models
from swerex_c._version import __version__
from swerex_c.exceptions import (
    ConnectionLostError,
    DeploymentStartupError,
    MemoryLimitError,
    SandboxLostError,
    SwerexException,
    TimeLimitError,
)
from swerex_c.providers.ray.cluster import LEFT, Membership, membership
from swerex_c.remote.client.connect import Address
from swerex_c.remote.client.frames import FrameClient
from swerex_c.remote.wire import file_transfer
from swerex_c.remote.wire.exceptions import from_wire
from swerex_c.runtime.remote import RemoteRuntime
from swerex_c.utils.threads import in_thread

__all__ = ["ActorChannel", "RayRuntime"]

_ALIVE_SECONDS = 5.0
"""Default timeout of `is_alive` in seconds."""

_MEMBERSHIP_POLL = 1.0
"""Seconds between checks, while waiting for Ray, that this process is still in the cluster."""

_CANCEL_SECONDS = 1.0
"""Maximum seconds that a cancelled call waits until the actor has cancelled it, so that the next one finds it ended."""

_END_SECONDS = 50.0
"""Maximum seconds for a graceful end of the environment."""

_REASON_LENGTH = 600

_LIMITS = {"time": TimeLimitError, "memory": MemoryLimitError}
"""Errors of an environment that has reached a limit, by the kind of its end."""


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
        """Close all sessions and commands, and the runtime. A lost environment counts as closed."""
        try:
            return await super().close()
        except (SandboxLostError, ConnectionLostError):
            return models.CloseResponse()


class _Client(FrameClient):
    """A frame client whose requests are calls of an actor."""

    def __init__(self, channel: ActorChannel):
        super().__init__(Address(unix=channel.name))
        self._actor = channel

    async def own_channel(self, long: bool = False) -> Any:
        return self._actor


class ActorChannel:
    """Calls to the server of an environment through its actor, as the frame client's channel makes them.

    It may be used from any event loop and any thread. Once the environment is lost, every call raises the same error.
    The channel does not call Ray when this process has left the actor's cluster, because Ray would start another one.
    """

    def __init__(self, handle: Any, since: Membership):
        """Take the actor's handle and the membership in which the actor was created."""
        self._handle = handle
        self._membership = since
        self._lock = threading.Lock()
        self._opened = False
        self._error: tuple[type[SandboxLostError], str] | None = None
        self.name = "The environment"
        self.instance_id = "actor"  # the server ends with the actor, and none replaces it

    # The environment

    async def open(self) -> dict[str, Any]:
        """Have the actor start the environment, and return its facts."""
        facts: dict[str, Any] = await self._ask("open", __version__)
        self.name = f"The environment in actor {facts['actor']} on node {facts['node']} ({facts['ip']})"
        self._opened = True
        return facts

    async def end(self) -> None:
        """End the environment, gracefully if possible, and the actor with all that it still has."""
        if self._opened and self._error is None:
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_END_SECONDS):
                    await self._ask("close")
        self._lose(SandboxLostError, f"{self.name} was stopped")
        await in_thread(self._kill)

    # Requests

    async def call(
        self, method: str, payload: dict[str, Any], seconds: float | None = None, patient: bool = True
    ) -> dict[str, Any]:
        """Call a method of the environment's server and return its response; `seconds` is the timeout.

        Raises:
            SandboxLostError: if the environment is lost, with the actor, the node and the reason.
            ConnectionLostError: if there is no response in time.
        """
        answer: dict[str, Any] = await self._in_time(seconds, method, "call", method, payload)
        return answer

    async def stream(
        self, method: str, payload: dict[str, Any], seconds: float | None = None
    ) -> AsyncGenerator[bytes | dict[str, Any], None]:
        """Yield the output of a method in bytes as it arrives, and finally the response.

        Args:
            seconds: timeout for each item.
        """
        async with self._transfer("stream", method, payload) as transfer:
            while (item := await self._in_time(seconds, method, "next", transfer)) is not None:
                yield item

    async def upload(self, source: str, target: str, progress: Any = None) -> dict[str, Any]:
        """Send a file or tree to the environment."""
        name = os.path.basename(os.path.abspath(source))
        async with (
            file_transfer.open_stream(source, progress) as pieces,
            self._transfer("save", name, target) as transfer,
        ):
            async for piece in pieces:
                await self._ask("send", transfer, bytes(piece))
            await self._ask("send", transfer, b"")
        return {}

    async def download(self, source: str, target: str, progress: Any = None) -> dict[str, Any]:
        """Fetch a file or tree from the environment."""
        name = os.path.basename(os.path.normpath(source))  # the node must not choose the name of a local file
        async with self._transfer("read", source) as transfer, contextlib.aclosing(self._pieces(transfer)) as pieces:
            await file_transfer.receive(pieces, target, name, progress)
        return {}

    async def _pieces(self, transfer: str) -> AsyncGenerator[bytes, None]:
        while (piece := await self._ask("next", transfer)) is not None:
            yield piece

    @contextlib.asynccontextmanager
    async def _transfer(self, name: str, *args: Any) -> AsyncGenerator[str, None]:
        """Begin a transfer; give its id. Cancel what is left of it at the end."""
        transfer = secrets.token_hex(8)
        try:
            await self._ask(name, transfer, *args)
            yield transfer
        finally:
            with contextlib.suppress(SandboxLostError):
                self._send("drop", transfer)

    # Calls of the actor

    async def _in_time(self, seconds: float | None, method: str, name: str, *args: Any) -> Any:
        try:
            async with asyncio.timeout(seconds) as limit:
                return await self._ask(name, *args)
        except TimeoutError:
            if not limit.expired():
                raise  # an error of the environment
            raise ConnectionLostError(f"{self.name} did not respond to {method} within {seconds:g} seconds") from None

    async def _ask(self, name: str, *args: Any) -> Any:
        """Call a method of the actor's `EnvironmentActor`, and return its result or raise its error."""
        from ray.exceptions import RayError

        await asyncio.sleep(0)  # calls that were cancelled just before send that first
        call = secrets.token_hex(8)
        ref = self._send(name, *args, call=call)
        answer = asyncio.wrap_future(ref.future())
        answer.add_done_callback(lambda it: it.cancelled() or it.exception())  # not retrieved after a cancellation
        try:
            # Ray never completes calls that are pending when it is shut down.
            while not (await asyncio.wait((answer,), timeout=_MEMBERSHIP_POLL))[0]:
                self._check()
        except asyncio.CancelledError:
            await self._cancel(call, answer)
            raise
        finally:
            answer.cancel()
        try:
            kind, value = answer.result()
        except RayError as error:
            raise self._explained(error) from None
        if kind == "failed":
            raise from_wire(value)
        if kind == "ended":
            end, why = value
            words = "was ended" if end in _LIMITS else "is lost"
            raise self._lose(_LIMITS.get(end, SandboxLostError), f"{self.name} {words}: {why}")
        return value

    def _send(self, name: str, *args: Any, call: str = "") -> Any:
        """Start a call and return Ray's reference to its result.

        Args:
            call: id of the call, if it may be cancelled.
        """
        from ray.exceptions import RayError

        self._check()
        try:
            return self._handle.perform.remote(call, name, *args)
        except RayError as error:
            raise self._explained(error) from None

    async def _cancel(self, call: str, answer: asyncio.Future[Any]) -> None:
        """Cancel a call at once, before this process makes another one."""
        with contextlib.suppress(Exception):
            self._send("cancel", call)
            await asyncio.wait((answer,), timeout=_CANCEL_SECONDS)

    # Loss

    def _check(self) -> None:
        """Raise the error of an environment that is lost, or whose cluster this process has left."""
        if self._error is not None:
            raise self._lose(*self._error)
        if membership() != self._membership:
            raise self._lose(SandboxLostError, f"{self.name} is lost: {LEFT}")

    def _explained(self, error: BaseException) -> SwerexException:
        """Convert an exception that Ray raised to an exception of this package."""
        from ray.exceptions import RuntimeEnvSetupError

        if "No module named 'swerex_c" in str(error):
            return DeploymentStartupError(
                f"The Python of the cluster's workers does not have swerex-c: install swerex-c {__version__} there, or "
                "name it in the runtime_env"
            )
        words = _short_reason(error)
        if isinstance(error, RuntimeEnvSetupError):
            return DeploymentStartupError(f"Ray cannot prepare the runtime_env for {self.name}: {words}")
        why = words if membership() == self._membership else LEFT
        return self._lose(SandboxLostError, f"{self.name} is lost: {why}")

    def _lose(self, kind: type[SandboxLostError], message: str) -> SandboxLostError:
        """Note that the environment is lost, free what Ray has reserved for it, and return the error to raise."""
        with self._lock:
            first = self._error is None
            kind, message = self._error = self._error or (kind, message)
        if first:
            threading.Thread(target=self._kill, name="swerex-ray-kill", daemon=True).start()
        return kind(message)

    def _kill(self) -> None:
        """Kill the actor; its supervisor ends the other processes."""
        import ray

        with contextlib.suppress(Exception):
            if membership() == self._membership:
                ray.kill(self._handle, no_restart=True)


def _short_reason(error: BaseException) -> str:
    """Return Ray's reason without the class, id, process and address of the actor, which it gives for every death."""
    lines = str(error).splitlines()
    told = [line for line in lines if not line.startswith("\t") and "before finishing this task" not in line]
    text = " ".join(" ".join(told or lines).split())
    return text.removeprefix("The actor is dead because ")[:_REASON_LENGTH] or type(error).__name__
