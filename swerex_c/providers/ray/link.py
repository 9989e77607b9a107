"""Driver's connection to an environment's actor.

It calls the actor and detects its loss.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from swerex_c.exceptions import (
    DeploymentStartupError,
    MemoryLimitError,
    ProtocolError,
    SandboxLostError,
    SwerexException,
    TimeLimitError,
)
from swerex_c.providers.ray.membership import Membership
from swerex_c.remote.wire.exceptions import from_wire
from swerex_c.utils import background

__all__ = ["ActorConnection"]

_UNAVAILABLE_TIMES = 3
"""Maximum number of retries in a row to reach an unavailable actor before it counts as lost."""

_UNAVAILABLE_SECONDS = 0.2
"""Seconds before such a retry."""

_STEADY_SECONDS = 5.0
"""Seconds after which a call that waits for the environment's end counts as having reached the actor."""

_MEMBERSHIP_POLL = 1.0
"""Seconds between checks, while waiting for Ray, that this process is still in the cluster."""

_REASON_LENGTH = 600


class ActorConnection:
    """Connection to an environment's actor.

    It may be used from any event loop and any thread. It does not call Ray when this process has left the actor's
    cluster, because Ray would start another cluster.
    """

    def __init__(self, handle: Any, membership: Membership):
        """Take the actor's handle and the membership in which the actor was created."""
        self._handle = handle
        self._membership = membership
        self.name = f"The environment in actor {self.actor_id}"
        self.lost: Callable[[], SandboxLostError] | None = None
        """Function that makes the error with the reason of the loss; None while the environment is not lost."""
        self._guards: dict[asyncio.Timeout, asyncio.AbstractEventLoop] = {}
        """Timeouts of the guarded calls, which expire when the environment is lost, with their event loops."""
        self._lock = threading.Lock()
        self._opened = False
        self._ending = False

    def opened(self, facts: dict[str, Any]) -> None:
        """Store the facts of the started environment, and watch for its end from now on."""
        self.name = f"The environment in actor {facts['actor']} on node {facts['node']} ({facts['ip']})"
        self._opened = True
        self._watch()

    @property
    def actor_id(self) -> str:
        return str(self._handle._actor_id.hex())

    # Calls

    async def ask(self, name: str, *args: Any) -> Any:
        """Call a method of the actor's `Host`, and return its result or raise its error.

        It checks the cluster while it waits, because Ray never completes calls that are pending at its shutdown.
        """
        from ray.exceptions import RayError

        ref = self.send(name, *args)
        answer = asyncio.wrap_future(ref.future())
        try:
            while not (await asyncio.wait((answer,), timeout=_MEMBERSHIP_POLL))[0]:
                self.check_ray()
            return _result(answer.result())
        except RayError as error:
            raise self._explained(error) from None
        finally:
            if not answer.done():
                answer.cancel()
                self._cancel(ref)

    def send(self, name: str, *args: Any) -> Any:
        """Start a call and return Ray's reference to its result."""
        import ray

        self.check_ray()
        try:
            return self._handle.do.remote(name, *args)
        except ray.exceptions.RayError as error:
            raise self._explained(error) from None

    def check_ray(self) -> None:
        """Check that this process has not left the cluster.

        Raises:
            SandboxLostError: if it has left, which ended all that it had there.
        """
        if (why := self._membership.over()) is None:
            return
        message = f"{self.name} is lost: {why}"
        self._mark_lost(SandboxLostError, message)
        raise SandboxLostError(message) if self.lost is None else self.lost()

    def _explained(self, error: BaseException) -> SwerexException:
        """Convert an exception that Ray raised to an exception of this package."""
        from ray import exceptions

        if (why := self._membership.over()) is not None:
            return SandboxLostError(f"{self.name} is lost: {why}")
        words = _short_reason(error)
        if isinstance(error, exceptions.RuntimeEnvSetupError):
            return DeploymentStartupError(f"Ray cannot prepare the runtime_env for {self.name}: {words}")
        if isinstance(error, exceptions.RayTaskError):
            return ProtocolError(f"{self.name} does not answer as it should: {words}")
        return SandboxLostError(f"{self.name} is lost: {words}")

    def _cancel(self, ref: Any) -> None:
        import ray

        with contextlib.suppress(Exception):
            if self._membership.over() is None:
                ray.cancel(ref)

    # Detection of a loss

    @contextlib.asynccontextmanager
    async def guard(self) -> AsyncIterator[None]:
        """Cancel the block as soon as the environment is lost.

        Raises:
            SandboxLostError: with the reason of the loss.
        """
        try:
            async with asyncio.timeout(None) as guard:
                self._guards[guard] = asyncio.get_running_loop()
                try:
                    self.check_ray()
                    if self.lost is not None:
                        raise self.lost()
                    yield
                finally:
                    del self._guards[guard]
        except Exception:
            if guard.expired() and self.lost is not None:
                raise self.lost() from None
            raise

    def _end_guards(self) -> None:
        """Cancel the guarded calls because the environment is lost. Thread-safe."""
        for guard, loop in list(self._guards.items()):
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._expire, guard)

    def _expire(self, guard: asyncio.Timeout) -> None:
        if guard in self._guards:
            guard.reschedule(0)

    def _watch(self, failures: int = 0) -> None:
        """Learn when the environment ends. `failures`: number of times in a row that the actor was unavailable."""
        began = time.monotonic()

        def told(future: Any) -> None:
            steady = time.monotonic() - began > _STEADY_SECONDS
            self._on_end(future, 1 if steady else failures + 1)

        with contextlib.suppress(SandboxLostError):
            self.send("wait").future().add_done_callback(told)

    def _on_end(self, future: Any, failures: int) -> None:
        from ray.exceptions import ActorUnavailableError

        try:
            kind, why = _result(future.result())
        except ActorUnavailableError as error:
            if failures <= _UNAVAILABLE_TIMES:  # this is Ray's own thread, which must not call the actor
                threading.Timer(_UNAVAILABLE_SECONDS, self._watch, (failures,)).start()
            else:
                self._mark_lost(SandboxLostError, str(self._explained(error)))
        except Exception as error:
            lost = error if isinstance(error, SwerexException) else self._explained(error)
            self._mark_lost(SandboxLostError, str(lost))
        else:
            limit = {"time": TimeLimitError, "memory": MemoryLimitError}.get(kind)
            self._mark_lost(limit or SandboxLostError, f"{self.name} {'was ended' if limit else 'is lost'}: {why}")

    def _mark_lost(self, kind: type[SandboxLostError], message: str) -> None:
        with self._lock:
            if self.lost is not None or self._ending:
                return
            self.lost = lambda: kind(message)
        self._end_guards()
        # Free the resources that Ray has reserved. This may be Ray's own thread, so another thread does it.
        threading.Thread(target=self.kill, name="swerex-ray-kill", daemon=True).start()

    # Shutdown

    def end(self, seconds: float) -> None:
        """End the environment, gracefully if it ends within `seconds`. Blocks."""
        self._ending = True
        if self._opened and self.lost is None:
            with contextlib.suppress(Exception):
                background.run_blocking(self.ask("close"), seconds)
        if self.lost is None:
            message = f"{self.name} was stopped"
            self.lost = lambda: SandboxLostError(message)
        self._end_guards()
        self.kill()

    def kill(self) -> None:
        """Kill the actor; its supervisor ends the other processes."""
        import ray

        with contextlib.suppress(Exception):
            if self._membership.over() is None:
                ray.kill(self._handle, no_restart=True)


def _short_reason(error: BaseException) -> str:
    """Return Ray's reason without the class, id, process and address of the actor, which it gives for every death."""
    lines = str(error).splitlines()
    told = [line for line in lines if not line.startswith("\t") and "before finishing this task" not in line]
    text = " ".join(" ".join(told or lines).split())
    return text.removeprefix("The actor is dead because ")[:_REASON_LENGTH] or type(error).__name__


def _result(answer: Any) -> Any:
    kind, value = answer
    if kind == "failed":
        raise from_wire(value)
    return value
