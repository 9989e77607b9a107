"""What a server does with a request, whichever way it came."""

from __future__ import annotations

import asyncio
import hmac
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from pydantic import BaseModel, TypeAdapter, ValidationError

from swerex_c.exceptions import InvalidInputError, ServerLimitError
from swerex_c.remote.limits import Limits
from swerex_c.remote.rate import Rate
from swerex_c.runtime.abstract import (
    AbstractRuntime,
    Action,
    CloseSessionRequest,
    Command,
    CreateSessionRequest,
    ReadFileRequest,
    WriteFileRequest,
)
from swerex_c.runtime.local import LocalRuntime

__all__ = ["METHODS", "Place", "Service", "Tally"]

METHODS: dict[str, TypeAdapter[Any] | None] = {
    "is_alive": None,
    "create_session": TypeAdapter(CreateSessionRequest),
    "run_in_session": TypeAdapter(Action),
    "close_session": TypeAdapter(CloseSessionRequest),
    "execute": TypeAdapter(Command),
    "read_file": TypeAdapter(ReadFileRequest),
    "write_file": TypeAdapter(WriteFileRequest),
    "close": None,
}
"""What a client may call by name and what validates its request; None: it takes none. Each is a method of runtimes."""


_STARTS = ("create_session", "execute")
"""Those that start a program."""


class Place(Protocol):
    """Where the runtime and the key are kept; both may be replaced at any time. The module `swerex_c.server` is one."""

    runtime: AbstractRuntime
    AUTH_TOKEN: str


class Tally:
    """How often a method was called and what came of it; `seconds` is the sum of the calls' durations."""

    __slots__ = ("buckets", "errors", "finished", "seconds")

    BOUNDS = (1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0)
    """Upper bounds of the buckets but the last, in seconds."""

    def __init__(self) -> None:
        self.finished = 0
        self.errors = 0
        self.seconds = 0.0
        self.buckets = [0] * (len(self.BOUNDS) + 1)

    def add(self, seconds: float, failed: bool) -> None:
        self.finished += 1
        self.errors += failed
        self.seconds += seconds
        for i, bound in enumerate(self.BOUNDS):
            if seconds <= bound:
                self.buckets[i] += 1
                return
        self.buckets[-1] += 1


class _Counted:
    """One request, while it is carried out: within the limit of those in flight, and in the tally of its method.

    Whether a server is alive is not among those in flight: one that has no room for more is, and says so.
    """

    __slots__ = ("_begin", "_method", "_service")

    def __init__(self, service: Service, method: str):
        self._service = service
        self._method = method

    def __enter__(self) -> None:
        service = self._service
        if self._method != "is_alive":
            if service.in_flight >= service.limits.requests:
                msg = f"The server allows {service.limits.requests} requests at the same time: try again later"
                raise ServerLimitError(msg)
            service.in_flight += 1
        self._begin = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._method != "is_alive":
            self._service.in_flight -= 1
        self._service.tallies[self._method].add(time.perf_counter() - self._begin, kind is not None)


class Service:
    """A runtime with what a server adds to it: a key, limits and counts. One event loop uses it."""

    def __init__(self, place: Place, limits: Limits | None = None):
        self.place = place
        self.limits = limits or Limits()
        self.rate = Rate(self.limits.rate)
        self.tallies = {name: Tally() for name in [*METHODS, "upload", "download", "stream_in_session"]}
        self.boot = uuid.uuid4().hex
        """Names this server process: after a restart it is another."""
        self.in_flight = 0
        self.connections = 0
        self.ending = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._starts: asyncio.Lock

    @property
    def runtime(self) -> AbstractRuntime:
        return self.place.runtime

    @property
    def session_count(self) -> int:
        return len(getattr(self.place.runtime, "sessions", ()))

    def refusal(self, key: bytes | None) -> tuple[int, str] | None:
        """The HTTP status and the reason for which a client is turned away, and None if it is let in. Takes as long for
        a wrong key as for the right one. `key`: as its header has it."""
        wanted = self.place.AUTH_TOKEN
        if not wanted or hmac.compare_digest(wanted.encode(), key or b""):
            return None
        return (401, "Invalid API Key") if key else (403, "Not authenticated")

    async def call(self, method: str, request: BaseModel | None) -> BaseModel:
        """Do what a method of `METHODS` does, with its validated request. Raises what the runtime raises."""
        with _Counted(self, method):
            if method in _STARTS:
                await self._before_start(method)
            if method == "close":
                return await self.close()
            run: Callable[..., Awaitable[BaseModel]] = getattr(self.place.runtime, method)
            return await (run() if request is None else run(request))

    def alive(self) -> dict[str, Any] | None:
        """The fields of what `is_alive` answers, where that needs no waiting; None: ask the runtime."""
        runtime = self.place.runtime
        if type(runtime) is not LocalRuntime:
            return None
        begin = time.perf_counter()
        call = runtime.is_alive()
        try:
            call.send(None)
        except StopIteration as end:
            self.tallies["is_alive"].add(time.perf_counter() - begin, False)
            fields: dict[str, Any] = end.value.__dict__
            return fields
        except Exception:
            return None
        call.close()
        return None

    async def _before_start(self, method: str) -> None:
        if method == "create_session" and self.session_count >= self.limits.sessions:
            msg = f"The server allows {self.limits.sessions} sessions at the same time: close some first"
            raise ServerLimitError(msg)
        await self._turn()

    async def _turn(self) -> None:
        """Wait until no other program is started in this turn of the event loop.

        To start one takes a millisecond or two. Who asks for a hundred at once waits for them; the others do not.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop, self._starts = loop, asyncio.Lock()
        async with self._starts:
            await asyncio.sleep(0)

    async def count(self, method: str, work: Coroutine[Any, Any, Any]) -> Any:
        """Await something else that is done for a client: within the limit of requests in flight, and counted."""
        try:
            with _Counted(self, method):
                return await work
        finally:
            work.close()  # it did not begin if there was no room for it

    async def close(self) -> BaseModel:
        """End all sessions and commands. A runtime of the same kind takes the closed one's place, for new clients."""
        runtime = self.place.runtime
        answer = await runtime.close()
        if self.place.runtime is runtime and not self.ending:
            config = getattr(runtime, "_config", None)
            options = {} if config is None else config.model_dump(exclude={"type"})
            self.place.runtime = type(runtime)(**options)
        return answer

    async def shutdown(self) -> None:
        """End all sessions and commands for good, because the server ends. What runs is answered with the error that it
        ends with, and so is what comes after."""
        self.ending = True
        await self.place.runtime.close()

    @staticmethod
    def validate(method: str, payload: Any) -> BaseModel | None:
        """The request of a method, from what a client sent.

        Raises:
            InvalidInputError: if there is no such method, or the payload is not what it takes.
        """
        if method not in METHODS:
            raise InvalidInputError(f"There is no method {method[:100]!r}")
        adapter = METHODS[method]
        if adapter is None:
            return None
        try:
            request: BaseModel = adapter.validate_python(payload)
        except ValidationError as error:
            raise InvalidInputError(f"The request for {method} is not valid: {error}") from None
        return request
