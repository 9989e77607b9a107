"""A driver's side of an environment's actor: calls of it, and what became of it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from types import TracebackType
from typing import Any, TypeVar

from swerex_c.exceptions import (
    DeploymentStartupError,
    MemoryLimitError,
    PlaceLostError,
    ProtocolError,
    SwerexException,
    TimeLimitError,
)
from swerex_c.remote.transfer import from_wire
from swerex_c.runtime._ray_session import Membership

__all__ = ["ActorLink", "explained"]

_KNOCK_SECONDS = 2.0
"""How long a connection to the node may take, when the actor cannot be reached."""

_UNAVAILABLE_TIMES = 3
"""How often in a row Ray has to say that the actor cannot be reached until it counts as lost."""

_AGAIN_SECONDS = 5.0
"""A wait that does not fail for so long is one that goes on."""

_STILL_SECONDS = 1.0
"""How often one who waits for Ray looks whether it is still there."""

_MOST_WORDS = 600

T = TypeVar("T")


def explained(error: BaseException, name: str) -> SwerexException:
    """What Ray raised for a call of an actor, as an error of ours.

    Args:
        name: of the actor and its node.
    """
    from ray import exceptions

    words = _words(error)
    if isinstance(error, exceptions.RuntimeEnvSetupError):
        return DeploymentStartupError(f"Ray cannot prepare the runtime_env for {name}: {words}")
    if isinstance(error, exceptions.RayTaskError):
        return ProtocolError(f"{name} does not answer as it should: {words}")
    return PlaceLostError(f"{name} is lost: {words}")


def _words(error: BaseException) -> str:
    """The reason that Ray gives, without what it says of every actor that died: its class, number, process, address."""
    lines = str(error).splitlines()
    told = [line for line in lines if not line.startswith("\t") and "before finishing this task" not in line]
    text = " ".join(" ".join(told or lines).split())
    return text.removeprefix("The actor is dead because ")[:_MOST_WORDS] or type(error).__name__


class _Guard:
    """A call of the environment: it raises when the environment is lost, whatever it waits for."""

    __slots__ = ("_before", "_link", "_loop", "_struck", "_task")

    def __init__(self, link: ActorLink):
        self._link = link
        self._struck = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._before = task.cancelling()
        self._loop = asyncio.get_running_loop()
        self._link._guards.add(self)
        if self._link.lost is not None:
            self._link._guards.discard(self)
            raise self._link.lost()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._link._guards.discard(self)
        if not self._struck:
            return
        if self._task.uncancel() <= self._before and error is not None and self._link.lost is not None:
            raise self._link.lost() from None

    def strike(self) -> None:
        """The environment is lost. Thread-safe."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self in self._link._guards:
            self._struck = True
            self._task.cancel()


class ActorLink:
    """An actor with an environment. May be used from any event loop and any thread.

    Nothing is asked of Ray when this process has left the cluster of the actor: that would begin another one.
    """

    def __init__(self, handle: Any, membership: Membership):
        """membership: that in which the actor was asked for."""
        self._handle = handle
        self._membership = membership
        self.name = f"The environment in actor {self.actor_id}"
        self.address: tuple[str, int] | None = None
        """Where the environment's server listens."""
        self.lost: Callable[[], PlaceLostError] | None = None
        """Makes the error that says what became of the environment; None as long as nothing has."""
        self._guards: set[_Guard] = set()
        self._lock = threading.Lock()
        self._ending = False

    def opened(self, facts: dict[str, Any]) -> None:
        """The environment is there; from now on it is watched."""
        self.name = f"The environment in actor {facts['actor']} on node {facts['node']} ({facts['ip']})"
        self.address = (facts["ip"], facts["port"])
        self._watch(self.handle.do.remote("wait"))

    @property
    def handle(self) -> Any:
        """The actor, to be called now.

        Raises:
            PlaceLostError: as `check_ray`.
        """
        self.check_ray()
        return self._handle

    @property
    def actor_id(self) -> str:
        return str(self._handle._actor_id.hex())

    # Calls

    async def ask(self, name: str, *args: Any) -> Any:
        """Call a method of the actor's `Host`, and return or raise what it does."""
        from ray.exceptions import RayError

        ref = self.send(name, *args)
        try:
            return _opened(await self.waited(asyncio.wrap_future(ref.future())))
        except RayError as error:
            raise self.explained(error) from None
        except asyncio.CancelledError:
            self._cancel(ref)
            raise

    async def waited(self, work: Awaitable[T]) -> T:
        """What comes of something that Ray is to tell. It tells nothing of what was under way when it was shut down.

        Raises:
            PlaceLostError: as `check_ray`.
        """
        waiting = asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait((waiting,), timeout=_STILL_SECONDS))[0]:
                self.check_ray()
            return waiting.result()
        finally:
            waiting.cancel()

    def ask_blocking(self, name: str, *args: Any) -> Any:
        """The same for threads."""
        return self.answer(self.send(name, *args))

    def send(self, name: str, *args: Any) -> Any:
        """Begin a call; Ray's reference to its answer."""
        import ray

        handle = self.handle
        try:
            return handle.do.remote(name, *args)
        except ray.exceptions.RayError as error:
            raise self.explained(error) from None

    def check_ray(self) -> None:
        """
        Raises:
            PlaceLostError: if this process has left the cluster, which has ended all that it had there.
        """
        if (why := self._membership.over()) is None:
            return
        message = f"{self.name} is lost: {why}"
        self._lose(PlaceLostError, message)
        raise PlaceLostError(message) if self.lost is None else self.lost()

    def explained(self, error: BaseException) -> SwerexException:
        """What Ray raised, as an error of ours."""
        if (why := self._membership.over()) is not None:
            return PlaceLostError(f"{self.name} is lost: {why}")
        return explained(error, self.name)

    def answer(self, ref: Any) -> Any:
        """Wait for the answer to `send`. Blocks."""
        import ray

        self.check_ray()
        try:
            return _opened(ray.get(ref))
        except ray.exceptions.RayError as error:
            raise self.explained(error) from None
        except SystemExit:  # Ray's way to end threads that wait when it is shut down
            raise PlaceLostError(f"{self.name} is lost: Ray was shut down in this process") from None

    def _cancel(self, ref: Any) -> None:
        import ray

        with contextlib.suppress(Exception):
            if self._membership.over() is None:
                ray.cancel(ref)

    # What became of it

    def guard(self) -> _Guard:
        """A block that raises the error of a lost environment as soon as it is lost."""
        return _Guard(self)

    def _watch(self, ref: Any) -> None:
        ref.future().add_done_callback(self._told)

    def _told(self, future: Any) -> None:
        from ray.exceptions import ActorUnavailableError

        if self._ending or self.lost is not None:
            return
        try:
            ended = _opened(future.result())
        except ActorUnavailableError as error:
            threading.Thread(target=self._look, args=(error,), name="swerex-ray-look", daemon=True).start()
        except Exception as error:
            lost = error if isinstance(error, SwerexException) else self.explained(error)
            self._lose(PlaceLostError, str(lost))
        else:
            self._ended(ended)

    def _look(self, error: BaseException) -> None:
        """The actor does not answer just now: find out whether it will. In a thread."""
        import ray

        for _ in range(_UNAVAILABLE_TIMES):
            if self._ending or self.lost is not None or self._membership.over() is not None:
                return
            if self.address is not None:
                try:
                    socket.create_connection(self.address, _KNOCK_SECONDS).close()
                except ConnectionRefusedError:
                    break
                except OSError:
                    pass  # it may be out of reach for the driver alone
            try:
                ref = self.handle.do.remote("wait")
                if not ray.wait([ref], timeout=_AGAIN_SECONDS)[0]:
                    self._watch(ref)
                    return
                self._ended(_opened(ray.get(ref)))
                return
            except ray.exceptions.ActorUnavailableError as again:
                error = again
                time.sleep(0.2)
            except Exception as found:
                error = found
                break
        self._lose(PlaceLostError, str(self.explained(error)))

    def _ended(self, how: dict[str, Any]) -> None:
        why = how.get("ended")
        if why == "time":
            seconds = how["limit"]
            self._lose(TimeLimitError, f"{self.name} was ended: it has reached its time limit of {seconds:g} seconds")
        elif why == "memory":
            limit = how["limit"]
            self._lose(MemoryLimitError, f"{self.name} was ended: it took more than its memory limit of {limit} bytes")
        elif why == "server":
            status = how["status"]
            said = f"was killed by signal {-status}" if status < 0 else f"ended with exit code {status}"
            self._lose(PlaceLostError, f"{self.name} is lost: the process that ran it {said}")
        elif why == "node":
            self._lose(PlaceLostError, f"{self.name} is lost: Ray's process on the node has ended, so the node has")
        elif why == "keeper":
            self._lose(PlaceLostError, f"{self.name} is lost: the process that keeps it was killed")
        else:
            self._lose(PlaceLostError, f"{self.name} was ended ({why})")

    def _lose(self, kind: type[PlaceLostError], message: str) -> None:
        with self._lock:
            if self.lost is not None or self._ending:
                return
            self.lost = lambda: kind(message)
        for guard in list(self._guards):
            guard.strike()
        # What Ray has reserved for it is given back. Not in Ray's own thread, which this may be.
        threading.Thread(target=self.kill, name="swerex-ray-kill", daemon=True).start()

    # The end

    def end(self, seconds: float) -> None:
        """End the environment, in good order within so many seconds if that is possible. Blocks."""
        import ray

        self._ending = True
        if self.lost is None and self._membership.over() is None and self.address is not None:
            with contextlib.suppress(Exception):
                ray.get(self.handle.do.remote("close"), timeout=seconds)
        if self.lost is None:
            message = f"{self.name} was stopped"
            self.lost = lambda: PlaceLostError(message)
        for guard in list(self._guards):
            guard.strike()
        self.kill()

    def kill(self) -> None:
        """End the actor; its keeper ends the rest."""
        import ray

        with contextlib.suppress(Exception):
            if self._membership.over() is None:
                ray.kill(self._handle, no_restart=True)


def _opened(answer: Any) -> Any:
    kind, value = answer
    if kind == "failed":
        raise from_wire(value)
    return value


@contextlib.contextmanager
def translated(link: ActorLink) -> Iterator[None]:
    """What Ray raises within is raised as an error of ours."""
    from ray.exceptions import RayError

    try:
        yield
    except RayError as error:
        raise link.explained(error) from None
