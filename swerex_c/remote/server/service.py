"""Service of a runtime: key check, limits and counts, for HTTP and for frames."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol

from pydantic import BaseModel, TypeAdapter, ValidationError

from swerex_c.exceptions import InvalidInputError, ServerLimitError
from swerex_c.interfaces import AbstractRuntime
from swerex_c.models import (
    Action,
    CloseSessionRequest,
    Command,
    CreateSessionRequest,
    ReadFileRequest,
    WriteFileRequest,
)
from swerex_c.remote.server import logs
from swerex_c.remote.server.limits import Limits
from swerex_c.remote.server.requests import RequestTable
from swerex_c.utils.wait import settle

__all__ = ["METHODS", "STREAMING_METHODS", "InvalidRequestError", "Service", "problem", "validate"]

_ACTION: TypeAdapter[Any] = TypeAdapter(Action)

METHODS: dict[str, TypeAdapter[Any] | None] = {
    "is_alive": None,
    "create_session": TypeAdapter(CreateSessionRequest),
    "run_in_session": _ACTION,
    "close_session": TypeAdapter(CloseSessionRequest),
    "execute": TypeAdapter(Command),
    "read_file": TypeAdapter(ReadFileRequest),
    "write_file": TypeAdapter(WriteFileRequest),
    "close": None,
}
"""Methods of runtimes that a client may call, with the validator of the request; None: there is no request."""


class _UploadTarget(BaseModel):
    target_path: str


class _DownloadSource(BaseModel):
    path: str


STREAMING_METHODS: dict[str, TypeAdapter[Any]] = {
    "stream_in_session": _ACTION,
    "upload": TypeAdapter(_UploadTarget),
    "download": TypeAdapter(_DownloadSource),
}
"""Methods whose requests or responses are streams, with the validator of the request."""

_MOST_MEMBERS = 1000
"""Size of a list or object above which member types are checked first: pydantic makes one error for each member."""

_MOST_PROBLEMS = 100
_MOST_PROBLEM = 500
"""Maximum length of the text of one problem, in characters: some texts repeat the input."""


class InvalidRequestError(InvalidInputError):
    """A request that is not valid for its method. `problems` has the format of FastAPI, without the input."""

    def __init__(self, problems: list[dict[str, Any]]):
        self.problems = problems
        super().__init__("; ".join(f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in problems)[:2000])


def validate(adapter: TypeAdapter[Any] | None, payload: Any) -> Any:
    """Validate a payload and return its model; return None if `adapter` is None, because the method takes none.

    Raises:
        InvalidRequestError: with the first problems, each of bounded length, whatever the size of the payload.
    """
    if adapter is None:
        return None
    for name, value in payload.items() if isinstance(payload, dict) else ():
        if isinstance(value, list | dict) and len(value) > _MOST_MEMBERS:
            members = itertools.chain(value, value.values()) if isinstance(value, dict) else value
            if not all(isinstance(member, str) for member in members):  # no model accepts other types there
                raise InvalidRequestError([problem("string_type", (name,), "Input should hold valid strings only")])
    try:
        return adapter.validate_python(payload)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)[:_MOST_PROBLEMS]
        problems = [problem(p["type"], p["loc"], p["msg"]) for p in found]
    raise InvalidRequestError(problems)


def problem(kind: str, where: tuple[int | str, ...], text: str) -> dict[str, Any]:
    """Return a problem of bounded length in the format of FastAPI."""
    loc = [part[:_MOST_PROBLEM] if isinstance(part, str) else part for part in where]
    return {"type": kind, "loc": loc, "msg": text[:_MOST_PROBLEM]}


class RuntimeHolder(Protocol):
    """A holder of a runtime and a key, which may be replaced at any time, such as the module `swerex_c.server`."""

    runtime: AbstractRuntime
    AUTH_TOKEN: str


class Service:
    """A runtime with a server's key, limits and counts, used by one event loop."""

    def __init__(self, holder: RuntimeHolder, limits: Limits | None = None):
        self.holder = holder
        self.limits = limits or Limits()
        self.observe: Callable[[str, float, bool], object] = lambda method, seconds, failed: None
        """Called when a request has ended, with its method, its seconds, and whether it failed."""
        self.instance_id = uuid.uuid4().hex
        """Id of this server instance; it changes with each restart."""
        self.requests = RequestTable(self.limits)
        self.in_flight = 0
        self.connections = 0
        self.http_tasks: set[asyncio.Task[Any]] = set()
        """Tasks of the ASGI server that handle requests."""
        self.ending = False
        self._creating: list[str] = []
        """Names of the sessions that are being created."""

    @property
    def runtime(self) -> AbstractRuntime:
        return self.holder.runtime

    def refusal(self, key: bytes | None) -> tuple[int, str] | None:
        """Return HTTP status and reason if a client is refused, else None; a wrong key takes as long as the right one.

        Args:
            key: value of the header X-API-Key, or None.
        """
        wanted = self.holder.AUTH_TOKEN
        if not wanted:
            return 403, "The server has no key, so it refuses every request"
        if hmac.compare_digest(wanted.encode(), key or b""):
            return None
        return (401, "Invalid API Key") if key else (403, "Not authenticated")

    async def call(self, method: str, request: BaseModel | None) -> BaseModel:
        """Call a method of `METHODS` with the validated request, and return or raise its outcome.

        Raises:
            ServerLimitError: if too many sessions are open.
        """
        if method == "close":
            return await self.close()
        if method == "create_session":
            return await self._create_session(request)
        run: Callable[..., Awaitable[BaseModel]] = getattr(self.runtime, method)
        return await (run() if request is None else run(request))

    async def _create_session(self, request: Any) -> BaseModel:
        occupied = {*getattr(self.runtime, "sessions", ()), *self._creating}
        if len(occupied) >= self.limits.sessions:
            msg = f"The server allows {self.limits.sessions} sessions at the same time: close some first"
            raise ServerLimitError(msg)
        self._creating.append(request.session)
        try:
            return await self.runtime.create_session(request)
        finally:
            self._creating.remove(request.session)

    @contextlib.contextmanager
    def counted(self, method: str) -> Iterator[None]:
        """Count a request, within the limit on those in flight.

        `is_alive` does not count as in flight, so that a server at its limit still answers that it is alive.

        Raises:
            ServerLimitError: if too many requests are in flight.
        """
        limited = method != "is_alive"
        if limited and self.in_flight >= self.limits.requests:
            msg = f"The server allows {self.limits.requests} requests at the same time: try again later"
            raise ServerLimitError(msg)
        self.in_flight += limited
        begin, failed = time.perf_counter(), True
        try:
            yield
            failed = False
        finally:
            self.in_flight -= limited
            self.observe(method, time.perf_counter() - begin, failed)

    async def close(self) -> BaseModel:
        """Replace the runtime by one of the same kind, and close it with all sessions and commands.

        A cancellation takes effect after that, because otherwise it would never be completed.
        """
        return await settle(self._close())

    async def _close(self) -> BaseModel:
        runtime = self.runtime
        try:
            if not self.ending:
                config = getattr(runtime, "_config", None)
                options = config.model_dump(exclude={"type"}) if isinstance(config, BaseModel) else {}
                self.holder.runtime = type(runtime)(**options)
        finally:
            answer = await runtime.close()
        return answer

    async def shutdown(self, seconds: float) -> None:
        """Close the runtime for good, because the server ends, and wait up to `seconds` for requests.

        Running and later requests get the error that this causes.
        """
        self.ending = True
        try:
            async with asyncio.timeout(seconds):
                await self.runtime.close()
                while self.in_flight:
                    await asyncio.sleep(0.005)
        except TimeoutError:
            logs.LOGGER.warning("Some requests did not end in time")
        except Exception:
            logs.LOGGER.exception("Cannot close the runtime")
