"""A runtime behind a server of this package or of SWE-ReX.

Its sessions, commands and files are those of the server's machine. This module imports quickly: the client and its
libraries are imported with the first call.
"""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack
from urllib.parse import urlsplit, urlunsplit

import swerex_c
from swerex_c.exceptions import AuthenticationError, InvalidInputError, NotSupportedError, SwerexException
from swerex_c.interfaces import AbstractRuntime, reject_text
from swerex_c.remote.client.base import NotFrames, http_proxy
from swerex_c.utils.load import ConfigSignature, handed_on
from swerex_c.utils.log import get_logger

if TYPE_CHECKING:
    import logging
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    import aiohttp
    from pydantic import BaseModel

    import swerex_c.models  # a runtime's configuration imports it
    from swerex_c import models
    from swerex_c.remote.client.frames import FrameClient
    from swerex_c.remote.client.http import HttpClient
    from swerex_c.runtime.config import RemoteRuntimeConfig, RemoteRuntimeKeywords

__all__ = ["RemoteRuntime", "RemoteRuntimeConfig"]

T = TypeVar("T")
M = TypeVar("M", bound="BaseModel")

_ORDINARY = (SwerexException, OSError, UnicodeError)
"""Exceptions that the server raises in normal operation, and whose traceback is not logged."""

_REFUSALS = 3
"""Number of refusals of the key in a row before it counts as wrong: an earlier server may have had the same address."""


class KeyRefusedError(AuthenticationError, TimeoutError):
    """The server's refusal of the key, raised before the timeout has passed."""


@functools.lru_cache(256)
def _address(host: str, port: int | None) -> str:
    host = host.rstrip("/")
    try:
        parts = urlsplit(host)
    except ValueError as error:
        raise InvalidInputError(f"{host!r} is not the address of a server: {error}") from None
    return host if port is None else urlunsplit(parts._replace(netloc=f"{parts.netloc}:{port}"))


__getattr__ = functools.partial(handed_on, __name__)


class RemoteRuntime(AbstractRuntime):
    """A runtime behind a server, which several event loops and threads may use at once."""

    __signature__ = ConfigSignature("swerex_c.runtime.config:RemoteRuntimeConfig")

    # Class attributes, as there are subclasses that set only `_config` and `logger`, without this constructor.
    _refusals = 0
    """Number of times in a row that the server has refused the key of `is_alive`."""
    _answered_over_http = False
    """True once a server that did not support frames has answered."""

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Unpack[RemoteRuntimeKeywords]):
        """Create the runtime from the fields of `RemoteRuntimeConfig`."""
        from swerex_c.runtime.config import RemoteRuntimeConfig

        self._config = RemoteRuntimeConfig(**kwargs)
        self.logger = logger or get_logger("rex-runtime")
        if not self._config.host.startswith(("http://", "https://", "unix://")):
            self.logger.warning("Host %s does not start with http, adding http://", self._config.host)
            self._config.host = f"http://{self._config.host}"

    @classmethod
    def from_config(cls, config: RemoteRuntimeConfig) -> Self:
        return cls(**config.model_dump())

    @property
    def _headers(self) -> dict[str, str]:
        return {"X-API-Key": self._config.auth_token} if self._config.auth_token else {}

    @property
    def _api_url(self) -> str:
        """Return the server's address, without a trailing slash."""
        return _address(self._config.host, self._config.port)

    def _setting(self, name: str) -> Any:
        """Return a field of the configuration, or its default if a subclass has a configuration of its own."""
        if name in vars(self._config):
            return vars(self._config)[name]
        from swerex_c.runtime.config import RemoteRuntimeConfig

        return RemoteRuntimeConfig.model_fields[name].default

    @property
    def _speaks_frames(self) -> bool:
        return not self._answered_over_http and self._setting("wire") != "json"

    def _client(self, kind: str, make: Callable[[str, dict[str, str]], T]) -> T:
        """Return the client of a kind for the current address and headers, which callers may change at any time."""
        url, headers = self._api_url, self._headers
        peer = url, *headers.items()
        clients = vars(self).setdefault("_clients", {})
        client: T | None = clients.get((kind, peer))
        if client is None:
            for other in [key for key in list(clients) if key[1] != peer]:
                clients.pop(other, None)
            # Concurrent threads get the same client, which keeps state; it does not connect before its first call.
            client = clients.setdefault((kind, peer), make(url, headers))
        return client

    @property
    def _frames(self) -> FrameClient:
        """Client for frames; raise NotFrames for a proxy of the environment, which does not pass frames."""
        return self._client("frames", self._new_frame_client)

    def _new_frame_client(self, url: str, headers: dict[str, str]) -> FrameClient:
        from swerex_c.remote.client.connect import Address
        from swerex_c.remote.client.frames import FrameClient

        command = self._setting("command")
        if command is None and self._setting("wire") == "auto" and http_proxy(url):
            raise NotFrames("a proxy is between")
        address = Address(command=tuple(command)) if command else Address.of(url, headers)
        return FrameClient(address, self._setting("reconnect_timeout"), self._setting("answer_limit"))

    def _new_http_client(self, url: str, headers: dict[str, str]) -> HttpClient:
        from swerex_c.remote.client.http import HttpClient

        return HttpClient(url, headers, self._setting("answer_limit"))

    def _check_fallback(self, error: Exception) -> None:
        """Raise NotSupportedError if HTTP may not take the place of frames, which the server does not support."""
        only_frames = self._setting("wire") == "msgpack" or self._setting("command") is not None
        if only_frames or self._api_url.startswith("unix:"):
            raise NotSupportedError(f"The server {self._api_url} does not speak msgpack frames: {error}") from None
        self.logger.debug("The server %s does not speak frames: %s; trying HTTP/JSON", self._api_url, error)

    # Errors

    def _handle_transfer_exception(self, exc_transfer: models._ExceptionTransfer) -> None:
        """Raise the exception that was raised on the server."""
        from swerex_c.remote.wire.exceptions import from_wire

        with self._logged():
            raise from_wire(exc_transfer.model_dump())

    async def _handle_response_errors(self, response: aiohttp.ClientResponse) -> None:
        """Raise the exception in an HTTP response, or why the request was refused."""
        from swerex_c.remote.client.http import check_status

        if response.status == 200:
            return
        body = await response.read()
        with self._logged():
            check_status(response.status, body)

    @contextlib.contextmanager
    def _logged(self) -> Iterator[None]:
        """Log the server's traceback of an unexpected exception; each exception has it as `remote_traceback`."""
        try:
            yield
        except Exception as error:
            remote = getattr(error, "remote_traceback", None)
            if remote and not isinstance(error, _ORDINARY):
                self.logger.critical("Traceback of the server:\n%s", remote)
            raise

    # Requests

    async def _with_client(self, call: Callable[[FrameClient | HttpClient], Awaitable[T]]) -> T:
        """Return the result of `call` with the client for frames if the server supports frames, else with HTTP's."""
        with self._logged():
            if self._speaks_frames:
                try:
                    return await call(self._frames)
                except NotFrames as error:
                    self._check_fallback(error)
            answer = await call(self._client("http", self._new_http_client))
            if getattr(answer, "is_alive", True):
                self._answered_over_http = True
            return answer

    async def _request(
        self, endpoint: str, payload: BaseModel | None, output_class: Callable[..., M], num_retries: int = 0
    ) -> M:
        """Send a request to an endpoint and return the response.

        Args:
            output_class: called with the fields of the response.
            num_retries: not used: a request is always resent if it cannot run twice.
        """
        reject_text(payload, endpoint)
        return await self._with_client(lambda client: client.call(endpoint, payload, output_class))

    async def is_alive(self, *, timeout: float | None = None) -> models.IsAliveResponse:
        """Check whether the server responds.

        Only errors of the server itself are raised; others become the message of the response.
        """
        seconds = self._config.timeout if timeout is None else timeout

        async def ask(client: FrameClient | HttpClient) -> models.IsAliveResponse:
            refusals, self._refusals = self._refusals, 0
            try:
                return await client.is_alive(seconds)
            except SwerexException as error:
                if hasattr(error, "extra_info"):  # it came from the server
                    raise
                self._refusals = refusals + 1 if isinstance(error, AuthenticationError) else 0
                message = f"Failed to connect to {client.address}\n{error}"
                return swerex_c.models.IsAliveResponse(is_alive=False, message=message)

        return await self._with_client(ask)

    async def wait_until_alive(self, *, timeout: float = 60.0) -> None:
        """Wait until the server responds.

        Raises:
            TimeoutError: if the server does not respond within `timeout` seconds; if it refuses the key at every
                attempt, much sooner and as an AuthenticationError too.
        """
        from swerex_c.utils.wait import _wait_until_alive

        seconds, self._refusals = timeout, 0

        async def is_alive(timeout: float | None) -> models.IsAliveResponse:
            answer = await self.is_alive(timeout=timeout)
            if self._refusals >= _REFUSALS:
                raise KeyRefusedError(
                    f"Runtime did not start within {seconds}s, and would not have: the server is there and refuses the "
                    f"key. The last await response was:\n{answer.message}"
                )
            return answer

        await _wait_until_alive(is_alive, timeout=timeout)

    async def create_session(self, request: models.CreateSessionRequest | None = None) -> models.CreateSessionResponse:
        request = swerex_c.models.CreateBashSessionRequest() if request is None else request
        return await self._request("create_session", request, swerex_c.models.CreateBashSessionResponse)

    async def run_in_session(self, action: models.Action) -> models.Observation:
        import asyncio

        if isinstance(action, swerex_c.models.BashInterruptAction):
            await asyncio.sleep(0)  # the server learns first of commands that were cancelled just before
        return await self._request("run_in_session", action, swerex_c.models.BashObservation)

    async def stream_in_session(self, action: models.Action) -> AsyncIterator[str | models.BashObservation]:
        """Run a command and yield its complete output as it arrives, then its observation.

        A reader that is far behind makes the command wait for it, within the command's timeout.
        A server that does not support frames returns the output in one piece, when the command is finished.
        """
        if self._speaks_frames:
            try:
                stream = self._frames.stream(action, swerex_c.models.BashObservation)
                with self._logged():
                    async with contextlib.aclosing(stream):
                        async for item in stream:
                            yield item
                return
            except NotFrames as error:
                self._check_fallback(error)
        observation = await self.run_in_session(action)
        if observation.output:
            yield observation.output
        yield observation

    async def close_session(self, request: models.CloseSessionRequest) -> models.CloseSessionResponse:
        return await self._request("close_session", request, swerex_c.models.CloseBashSessionResponse)

    async def execute(self, command: models.Command) -> models.CommandResponse:
        return await self._request("execute", command, swerex_c.models.CommandResponse)

    async def read_file(self, request: models.ReadFileRequest) -> models.ReadFileResponse:
        return await self._request("read_file", request, swerex_c.models.ReadFileResponse)

    async def write_file(self, request: models.WriteFileRequest) -> models.WriteFileResponse:
        return await self._request("write_file", request, swerex_c.models.WriteFileResponse)

    async def upload(self, request: models.UploadRequest) -> models.UploadResponse:
        """Copy a file or a tree to the server's machine, with modes and links if the server is one of this package.

        A long upload shows its progress if standard error is a terminal.
        """
        from swerex_c.utils.progress import shown

        reject_text(request, "upload")
        self.logger.debug("Uploading %s to %s", request.source_path, request.target_path)
        source, target = request.source_path, request.target_path
        with shown(f"Uploading {source}") as progress:
            return await self._with_client(lambda client: client.upload(source, target, progress))

    async def download(self, source_path: str, target_path: str) -> None:
        """Copy a file or a tree from the server's machine; raise NotSupportedError if it is a server of SWE-ReX."""
        from swerex_c.utils.progress import shown

        self.logger.debug("Downloading %s to %s", source_path, target_path)
        with shown(f"Downloading {source_path}") as progress:
            await self._with_client(lambda client: client.download(source_path, target_path, progress))

    async def close(self) -> models.CloseResponse:
        """End all sessions and commands of the server, and the connections to it."""
        try:
            return await self._request("close", None, swerex_c.models.CloseResponse)
        finally:
            for (kind, _), client in list(vars(self).get("_clients", {}).items()):
                if kind == "frames":
                    await client.close()
