"""Sessions, commands and files on another machine, behind a server of ours or of the original.

Importing this module is quick: the client and its libraries are imported with the first call.
"""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

from swerex_c.exceptions import AuthenticationError, SwerexException
from swerex_c.remote.unspoken import NotFrames
from swerex_c.runtime._base import AbstractRuntime
from swerex_c.utils.log import get_logger

if TYPE_CHECKING:
    import logging
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from contextlib import AbstractContextManager

    import aiohttp
    from pydantic import BaseModel

    from swerex_c.remote.json_client import JsonClient
    from swerex_c.remote.wire_client import WireClient
    from swerex_c.runtime import abstract
    from swerex_c.runtime.config import RemoteRuntimeConfig

__all__ = ["RemoteRuntime", "RemoteRuntimeConfig"]

T = TypeVar("T")

_ORDINARY = (SwerexException, OSError, UnicodeError)
"""What the remote side raises in the normal course of things."""

_REFUSALS = 3
"""Times in a row that a server has to refuse the key before it is believed: another may have had its place before."""


_FRAMES_AGAIN = (5.0, 300.0)
"""Seconds after which frames are tried again with a server that did not speak them, at first and at most; doubled."""


class KeyRefusedError(AuthenticationError, TimeoutError):
    """The server refuses the key, which is known before the time is up that there was to wait for it."""


_making = threading.Lock()
"""Threads that begin at once get the same client: it knows what was done by it, and may have a program of its own."""


def __getattr__(name: str) -> Any:
    """A name that callers import from here, and that lives elsewhere."""
    if name != "RemoteRuntimeConfig":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from swerex_c.runtime.config import RemoteRuntimeConfig

    globals()[name] = RemoteRuntimeConfig
    return RemoteRuntimeConfig


class RemoteRuntime(AbstractRuntime):
    """A runtime behind a server. May be used from any event loop and any thread, also from several at once."""

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Any):
        """See `RemoteRuntimeConfig` for the keyword arguments."""
        from swerex_c.runtime.config import RemoteRuntimeConfig

        self._config = RemoteRuntimeConfig(**kwargs)
        self.logger = logger or get_logger("rex-runtime")
        self._json_client: JsonClient | None = None
        self._wire_client: WireClient | None = None
        self._wire_key: tuple[Any, ...] = ()
        self._speaks_frames = self._config.wire != "json"
        self._frames_again = math.inf
        """When to try frames with a server that did not speak them, which another one may have been, or one that is
        about to end; in monotonic time."""
        self._frames_pause = 0.0
        if not self._config.host.startswith(("http://", "https://", "unix://")):
            self.logger.warning("Host %s does not start with http, adding http://", self._config.host)
            self._config.host = f"http://{self._config.host}"

    @classmethod
    def from_config(cls, config: RemoteRuntimeConfig) -> Self:
        return cls(**config.model_dump())

    def _get_timeout(self, timeout: float | None = None) -> float:
        return self._config.timeout if timeout is None else timeout

    @property
    def _headers(self) -> dict[str, str]:
        """What every request carries."""
        return {"X-API-Key": self._config.auth_token} if self._config.auth_token else {}

    @property
    def _api_url(self) -> str:
        """The server's address, without a slash at its end."""
        host = self._config.host.rstrip("/")
        if self._config.port is None:
            return host
        parts = urlsplit(host)
        return urlunsplit(parts._replace(netloc=f"{parts.netloc}:{self._config.port}"))

    @property
    def _wire(self) -> WireClient | None:
        """The client of the frames; None if the server, or what is on the way to it, knows only HTTP."""
        if not self._speaks_frames:
            if time.monotonic() < self._frames_again:
                return None
            self._speaks_frames = True
        config = self._config
        key = (config.host, config.port, config.auth_token)
        if self._wire_client is None or self._wire_key != key:
            with _making:
                if self._wire_client is None or self._wire_key != key:
                    self._wire_client = self._new_wire()
                    self._wire_key = key
        return self._wire_client

    def _new_wire(self) -> WireClient | None:
        from swerex_c.remote.dial import Address, behind_proxy
        from swerex_c.remote.wire_client import WireClient

        config = self._config
        if config.command is not None:
            return WireClient(Address(command=tuple(config.command)), config.reconnect_timeout, config.answer_limit)
        address = Address.of(self._api_url, self._headers)
        if config.wire == "auto" and behind_proxy(self._api_url):
            self._speaks_frames = False
            return None
        return WireClient(address, config.reconnect_timeout, config.answer_limit)

    def _fall_back(self, error: Exception) -> None:
        """The server speaks no frames: go on with JSON, or raise if that is not wanted."""
        if self._config.wire == "msgpack" or self._config.command is not None or self._api_url.startswith("unix:"):
            from swerex_c.exceptions import NotSupportedError

            raise NotSupportedError(f"The server {self._api_url} does not speak msgpack frames: {error}") from None
        if not self._speaks_frames:  # a call that began with this one has noted it
            return
        self._frames_pause = min(2 * self._frames_pause, _FRAMES_AGAIN[1]) or _FRAMES_AGAIN[0]
        self._frames_again = time.monotonic() + self._frames_pause
        self._speaks_frames = False
        self.logger.debug(
            "The server %s speaks HTTP/JSON only: %s; frames are tried again in %g seconds",
            self._api_url,
            error,
            self._frames_pause,
        )

    @property
    def _client(self) -> JsonClient:
        url, headers = self._api_url, self._headers
        if self._json_client is None:
            from swerex_c.remote.json_client import JsonClient

            with _making:
                self._json_client = self._json_client or JsonClient(url, headers, self._config.answer_limit)
        client = self._json_client
        if client.url != url or client.headers != headers:
            client.url, client.headers = url, headers
        return client

    # Errors

    def _handle_transfer_exception(self, exc_transfer: abstract._ExceptionTransfer) -> None:
        """Raise what was raised on the remote side."""
        from swerex_c.remote.transfer import from_wire

        error = from_wire(exc_transfer.model_dump())
        self._log_remote(error)
        raise error

    async def _handle_response_errors(self, response: aiohttp.ClientResponse) -> None:
        """Raise what an HTTP answer says was raised, or why the request was refused."""
        from swerex_c.remote.json_client import check_status

        if response.status == 200:
            return
        body = await response.read()
        with self._logged():
            check_status(response.status, body)

    def _log_remote(self, error: Exception) -> None:
        """Tell where an error is from that should not be; all of them have it as `remote_traceback`."""
        remote = getattr(error, "remote_traceback", None)
        if remote and not isinstance(error, _ORDINARY):
            self.logger.critical("Traceback of the server:\n%s", remote)

    def _logged(self) -> AbstractContextManager[None]:
        """Log the remote traceback of what is raised within."""
        import contextlib

        @contextlib.contextmanager
        def logged() -> Iterator[None]:
            try:
                yield
            except Exception as error:
                self._log_remote(error)
                raise

        return logged()

    # Requests

    async def _by(
        self, frames: Callable[[WireClient], Awaitable[T]], json: Callable[[JsonClient], Awaitable[T]]
    ) -> T:
        """Do one of the two: the first where the server speaks frames, the second where it does not."""
        try:
            if (wire := self._wire) is not None:
                try:
                    answer = await frames(wire)
                    self._frames_pause = 0.0
                    return answer
                except NotFrames as error:
                    self._fall_back(error)
            return await json(self._client)
        except Exception as error:
            self._log_remote(error)
            raise

    async def _request(
        self, endpoint: str, payload: BaseModel | None, output_class: Callable[..., Any], num_retries: int = 0
    ) -> Any:
        """What an endpoint answers to a request.

        Args:
            output_class: called with the fields of the answer.
            num_retries: how often to try again, if it is more than is tried anyway, when the connection fails; only
                what cannot run twice by that is sent again.
        """

        def by_json(client: JsonClient) -> Awaitable[Any]:
            from swerex_c.remote.json_client import RETRIES

            return client.call(endpoint, payload, output_class, retries=max(num_retries, RETRIES))

        return await self._by(lambda wire: wire.call(endpoint, payload, output_class), by_json)

    async def is_alive(self, *, timeout: float | None = None) -> abstract.IsAliveResponse:
        """Whether the server answers. Only what it raises itself is raised; everything else is no, and why."""
        seconds = self._get_timeout(timeout)
        return await self._by(lambda wire: wire.is_alive(seconds), lambda client: client.is_alive(seconds))

    async def wait_until_alive(self, *, timeout: float = 60.0) -> None:
        """Wait until the server answers.

        Raises:
            TimeoutError: if it does not within `timeout` seconds. One that is an AuthenticationError as well: much
                sooner, if the server is there and refuses the key at every try.
        """
        from swerex_c.utils.wait import _wait_until_alive

        refused, seconds = 0, timeout

        async def is_alive(timeout: float | None) -> abstract.IsAliveResponse:
            nonlocal refused
            answer = await self.is_alive(timeout=timeout)
            client = self._wire_client if self._speaks_frames else self._json_client
            refused = refused + 1 if client is not None and client.refuses_key else 0
            if refused == _REFUSALS:
                raise KeyRefusedError(
                    f"Runtime did not start within {seconds}s, and would not have: the server is there and refuses the "
                    f"key. The last await response was:\n{answer.message}"
                )
            return answer

        await _wait_until_alive(is_alive, timeout=timeout)

    async def create_session(self, request: abstract.CreateSessionRequest) -> abstract.CreateSessionResponse:
        """Start a session and read its startup files."""
        from swerex_c.runtime.abstract import CreateBashSessionResponse

        answer: CreateBashSessionResponse = await self._request("create_session", request, CreateBashSessionResponse)
        return answer

    async def run_in_session(self, action: abstract.Action) -> abstract.Observation:
        """Run a command in its session; see `AbstractRuntime.run_in_session`."""
        from swerex_c.runtime.abstract import BashObservation

        answer: BashObservation = await self._request("run_in_session", action, BashObservation)
        return answer

    async def stream_in_session(self, action: abstract.Action) -> AsyncIterator[str | abstract.BashObservation]:
        """Run a command and yield its output as it comes, all of it; at last its observation.

        A reader that is far behind makes the command wait for it, within the command's timeout.
        A server that speaks no frames gives the output in one piece, when the command is finished.
        """
        from swerex_c.runtime.abstract import BashObservation

        if (wire := self._wire) is not None:
            try:
                with self._logged():
                    async for item in wire.stream(action, BashObservation):
                        yield item
                return
            except NotFrames as error:
                self._fall_back(error)
        observation = await self.run_in_session(action)
        if observation.output:
            yield observation.output
        yield observation

    async def close_session(self, request: abstract.CloseSessionRequest) -> abstract.CloseSessionResponse:
        """End a session with everything it started."""
        from swerex_c.runtime.abstract import CloseBashSessionResponse

        answer: CloseBashSessionResponse = await self._request("close_session", request, CloseBashSessionResponse)
        return answer

    async def execute(self, command: abstract.Command) -> abstract.CommandResponse:
        """Run a command outside of all sessions, with its standard input at the end."""
        from swerex_c.runtime.abstract import CommandResponse

        answer: CommandResponse = await self._request("execute", command, CommandResponse)
        return answer

    async def read_file(self, request: abstract.ReadFileRequest) -> abstract.ReadFileResponse:
        """Read a text file. A relative path is relative to the server's process."""
        from swerex_c.runtime.abstract import ReadFileResponse

        answer: ReadFileResponse = await self._request("read_file", request, ReadFileResponse)
        return answer

    async def write_file(self, request: abstract.WriteFileRequest) -> abstract.WriteFileResponse:
        """Write a text file, and the directories above it."""
        from swerex_c.runtime.abstract import WriteFileResponse

        answer: WriteFileResponse = await self._request("write_file", request, WriteFileResponse)
        return answer

    async def upload(self, request: abstract.UploadRequest) -> abstract.UploadResponse:
        """Copy a file or a tree to the server's machine; onto an existing directory it is merged.

        Modes and symbolic links are kept where the server is one of ours. Shows how far it is if standard error is a
        terminal and it takes long.
        """
        from swerex_c.utils.progress import shown

        self.logger.debug("Uploading %s to %s", request.source_path, request.target_path)
        source, target = request.source_path, request.target_path
        with shown(f"Uploading {source}") as progress:
            return await self._by(
                lambda wire: wire.upload(source, target, progress),
                lambda client: client.upload(source, target, progress),
            )

    async def download(self, source_path: str, target_path: str) -> None:
        """Copy a file or a tree from the server's machine, by the rules of `upload` the other way round.

        Raises:
            NotSupportedError: if the server is not one of ours.
        """
        from swerex_c.utils.progress import shown

        self.logger.debug("Downloading %s to %s", source_path, target_path)
        with shown(f"Downloading {source_path}") as progress:
            await self._by(
                lambda wire: wire.download(source_path, target_path, progress),
                lambda client: client.download(source_path, target_path, progress),
            )

    async def close(self) -> abstract.CloseResponse:
        """End all sessions and commands of the server, and the connections to it."""
        from swerex_c.runtime.abstract import CloseResponse

        try:
            answer: CloseResponse = await self._request("close", None, CloseResponse)
            return answer
        finally:
            if self._wire_client is not None:
                await self._wire_client.close()
            if self._json_client is not None:
                await self._json_client.close()
