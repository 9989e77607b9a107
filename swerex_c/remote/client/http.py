"""Client that calls a swerex_c or SWE-ReX server over HTTP/JSON.

Its requests are made in the private event loop, so that callers in any loops and threads share its connections.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import logging
import math
import os
import socket
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from typing import Any, TypeVar

import aiohttp
from pydantic import BaseModel

from swerex_c.exceptions import (
    AuthenticationError,
    ConnectionLostError,
    InvalidInputError,
    NotSupportedError,
    ProtocolError,
    ServerLimitError,
    SwerexException,
)
from swerex_c.files import tar, zip
from swerex_c.models import BashInterruptAction, IsAliveResponse, UploadResponse
from swerex_c.remote.client.base import (
    ANSWER_LIMIT,
    MARGIN,
    ServerInstances,
    advice,
    fields_of,
    http_proxy,
    patience,
    response_of,
    too_long,
)
from swerex_c.remote.wire import file_transfer
from swerex_c.remote.wire.exceptions import from_wire
from swerex_c.remote.wire.protocol import REQUEST_HEADER, SERVER_HEADER
from swerex_c.utils import background
from swerex_c.utils.progress import Progress

__all__ = ["HttpClient", "check_status"]

_PAUSES = (0.1, 0.3, 0.7, 1.5)
"""Seconds before each time that a request is resent after its connection failed."""

_CONNECT_SECONDS = 30.0
"""Timeout to connect a socket, in seconds."""

_READ_ONLY = {"is_alive", "read_file"}
"""Methods that the server may execute twice, because they change nothing."""

_CANCEL_SECONDS = 2.0
"""Maximum seconds that a cancelled call waits until its request has ended, which goes on in the background."""

_KEEPALIVE = 3.0
"""Seconds to keep an idle connection: less than the 5 seconds after which uvicorn closes it."""

_REFUSALS: dict[int, type[SwerexException]] = {
    401: AuthenticationError,
    403: AuthenticationError,
    413: ServerLimitError,
    422: InvalidInputError,
    429: ServerLimitError,
}
"""Errors for the statuses with which a server refuses a request; others break the protocol."""

_UNSENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
"""Causes of a `ConnectionLostError` for a request that certainly did not reach the server."""

_logger = logging.getLogger("swerex_c.client")

M = TypeVar("M", bound=BaseModel)


class HttpClient:
    """Client of one server, for use from any event loop and any thread."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, answer_limit: int = ANSWER_LIMIT):
        """Create a client, which connects at its first call. There is nothing to close.

        Args:
            url: the server's URL, with scheme, port and optional path prefix.
            headers: headers of every request, including the key.
            answer_limit: maximum size of one response, except of downloads, in bytes.
        """
        self._answer_limit = answer_limit
        self.address = url
        self._proxy = http_proxy(url)
        self.headers = dict(headers or {})
        self.instance_id: str | None = None
        """Id of the server process that responded last; None before that, "" if it is not a swerex_c server."""
        self._instances = ServerInstances()
        self._cancelling: set[asyncio.Task[None]] = set()
        """Tasks that tell the server to cancel requests."""

    async def is_alive(self, timeout: float) -> IsAliveResponse:
        """Check whether the server responds within `timeout` seconds; raise its error, or that of the connection."""
        return response_of(IsAliveResponse, await background.run(self._send_once("is_alive", None, {}, timeout)))

    async def call(self, method: str, request: BaseModel | None, response_type: Callable[..., M]) -> M:
        """Call a method of the server, and return or raise its outcome.

        A request whose connection failed is resent if it cannot run twice: to a swerex_c server with the same id, by
        which the server recognizes it; to any other server if the request did not arrive or changes nothing.

        Args:
            response_type: called with the fields of the response.

        Raises:
            ConnectionLostError: if there is no response.
            ServerRestartedError: if the server process that had the session, or got the request, has ended.
            AuthenticationError, ServerLimitError, InvalidInputError, ProtocolError: see `check_status`.
        """
        # ASCII: lone surrogates are escaped, and infinite numbers are written as `json` does.
        body = b"" if request is None else json.dumps(fields_of(request)).encode()
        return response_of(response_type, await background.run(self._call(method, request, body)))

    async def _call(self, method: str, request: BaseModel | None, body: bytes) -> bytes:
        request_id = str(uuid.uuid4())
        headers = _named(request_id)
        if request is not None:
            headers["Content-Type"] = "application/json"
        if isinstance(request, BashInterruptAction) and self._cancelling:
            # An interrupt that overtakes the cancellation of a queued command could let that command start.
            await asyncio.wait(self._cancelling, timeout=_CANCEL_SECONDS)
        try:
            instance_id, status, answer = await self._send_repeatedly(method, body, headers, patience(request))
        except (asyncio.CancelledError, ConnectionLostError) as error:
            if isinstance(error, asyncio.CancelledError) or _is_late(error):
                await self._cancel_request(request_id)
            raise
        try:
            check_status(status, answer)
        except Exception as error:
            raise self._instances.explain(error, request, instance_id) from None
        self._instances.note(method, request, instance_id)
        return answer

    async def upload(self, source: str, target: str, progress: Progress | None = None) -> UploadResponse:
        """Copy a file or directory tree to the server's machine; raise the errors of `file_transfer.open_stream`.

        A swerex_c server keeps modes and symbolic links. For a SWE-ReX server, the client follows symbolic links to
        files, and the server sets no modes.
        """
        return response_of(UploadResponse, await background.run(self._upload(source, target, progress)))

    async def _upload(self, source: str, target: str, progress: Progress | None) -> bytes:
        if not self.instance_id:
            await self._identify_server()
        ours = bool(self.instance_id)
        async with file_transfer.open_stream(source, progress, tar.pack if ours else zip.pack) as pieces:
            body = _Body(pieces)
            data: Any = body.read()
            headers = {file_transfer.TARGET: json.dumps(target)} if ours else {}
            if not ours:
                data = _form(target, data, unzip=json.loads(await anext(pieces))["kind"] == "tree")
            try:
                return await self._send_once("upload", data, headers, None)
            except ConnectionLostError:
                if body.error is not None:
                    raise body.error from None
                raise
            finally:
                await body.end()

    async def _identify_server(self) -> None:
        """Set `instance_id`."""
        with contextlib.suppress(SwerexException):
            await self._exchange("is_alive", None, {}, MARGIN)

    async def download(self, source: str, target: str, progress: Progress | None = None) -> None:
        """Copy a file or directory tree from the server's machine, with modes and symbolic links.

        Raises:
            NotSupportedError: if the server is not a swerex_c server.
        """
        await background.run(self._download(source, target, progress))

    async def _download(self, source: str, target: str, progress: Progress | None) -> None:
        body = json.dumps({"path": source}).encode()
        headers = {"Content-Type": "application/json"}
        async with self._request("download", body, headers, None) as response:
            if response.status == 200:
                name = os.path.basename(os.path.normpath(source))
                await file_transfer.receive(self._pieces(response, "download", None), target, name, progress)
                return
            refusal = await self._read(response, "download", None)
        if response.status == 404 and not self.instance_id:
            raise NotSupportedError("The server is not one of swerex_c, so it cannot send files: use read_file")
        check_status(response.status, refusal)

    async def _send_repeatedly(
        self, method: str, body: bytes, headers: dict[str, str], wait: float | None
    ) -> tuple[str, int, bytes]:
        """Send a request, resend it after each of `_PAUSES` if it cannot run twice, and return the response."""
        instance_id = self.instance_id
        sent = False
        begin = time.monotonic()
        pauses = iter(_PAUSES)
        while True:
            left = None if wait is None else max(0.001, wait - (time.monotonic() - begin))
            try:
                return await self._exchange(method, body, headers, left)
            except ConnectionLostError as error:
                sent = sent or not isinstance(error.__cause__, _UNSENT)
                repeatable = not sent or instance_id or method in _READ_ONLY
                pause = next(pauses, None)
                if pause is None or not repeatable or _is_late(error):
                    raise
                _logger.debug("%s: %s; trying again in %.1f seconds", method, error, pause)
            if sent and instance_id and method not in _READ_ONLY:
                headers[SERVER_HEADER] = instance_id  # so that no other server process executes it a second time
            elif sent and not instance_id:
                # SWE-ReX repeats its first response to an id: a refusal, if the first request was cut off.
                headers["X-Request-ID"] = str(uuid.uuid4())
            await asyncio.sleep(pause)

    async def _cancel_request(self, request_id: str) -> None:
        """Tell the server to cancel a request, and wait up to `_CANCEL_SECONDS` for it."""
        if self.instance_id != "":
            task = asyncio.create_task(self._cancel(request_id))
            self._cancelling.add(task)
            task.add_done_callback(self._cancelling.discard)
            await asyncio.wait([task], timeout=_CANCEL_SECONDS)

    async def _cancel(self, request_id: str) -> None:
        if self.instance_id is None:
            await self._identify_server()
        if self.instance_id:
            with contextlib.suppress(SwerexException):
                await self._send_repeatedly("cancel", b"", _named(request_id), MARGIN)

    async def _send_once(self, method: str, data: Any, headers: dict[str, str], wait: float | None) -> bytes:
        """Send a request once, and return the body of the response, or raise the error that it is."""
        _, status, body = await self._exchange(method, data, headers, wait)
        check_status(status, body)
        return body

    async def _exchange(
        self, method: str, data: Any, headers: dict[str, str], wait: float | None
    ) -> tuple[str, int, bytes]:
        """Send a request, and return the server's instance id, and the status and body of its response."""
        async with self._request(method, data, headers, wait) as response:
            return response.headers.get(SERVER_HEADER, ""), response.status, await self._read(response, method, wait)

    async def _read(self, response: aiohttp.ClientResponse, method: str, wait: float | None) -> bytes:
        """Return the body of a response, which may be compressed or of unknown length, within the limit."""
        parts: list[bytes] = []
        size = 0
        async for part in self._pieces(response, method, wait):
            parts.append(part)
            size += len(part)
            if size > self._answer_limit:
                raise too_long(method, self._answer_limit)
        return b"".join(parts)

    async def _pieces(
        self, response: aiohttp.ClientResponse, method: str, wait: float | None
    ) -> AsyncGenerator[bytes, None]:
        with self._raising_lost(method, wait):
            async for piece in response.content.iter_any():
                yield piece

    @contextlib.contextmanager
    def _raising_lost(self, method: str, wait: float | None) -> Iterator[None]:
        """Convert errors of aiohttp to `ConnectionLostError`. The context must not contain anything else."""
        try:
            yield
        except (TimeoutError, aiohttp.ClientError) as error:
            reason, what = str(error) or type(error).__name__, f"did not answer ({method})"
            if isinstance(error, _UNSENT):
                reason, what = f"{reason}; {advice(error)}", f"cannot be reached ({method})"
            elif isinstance(error, TimeoutError) and wait is not None:
                reason = f"no answer within {wait:.3g} seconds"
            raise ConnectionLostError(f"The server {self.address} {what}: {reason}") from error

    @contextlib.asynccontextmanager
    async def _request(
        self, method: str, data: Any, headers: dict[str, str], wait: float | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Send a request, a POST if there is `data`, and give the response, whose body is not read yet."""
        url = f"{self.address.rstrip('/')}/{method}"
        if not self.instance_id:
            # SWE-ReX closes the connection after some responses without an announcement: a request that was sent on
            # it meanwhile may or may not have arrived, and cannot be resent.
            headers = {**headers, "Connection": "close"}
        limit = aiohttp.ClientTimeout(total=None if wait == math.inf else wait, sock_connect=_CONNECT_SECONDS)
        with self._raising_lost(method, wait):
            try:
                response = await _session().request(
                    "GET" if data is None else "POST", url, data=data, headers=self.headers | headers, timeout=limit,
                    allow_redirects=False, proxy=self._proxy,
                )  # fmt: skip
            except ValueError as error:  # an invalid URL, or a header that cannot be sent
                raise InvalidInputError(f"The request to {url!r} cannot be sent: {error}") from error
        named = response.headers.get(SERVER_HEADER, "")
        if named or not self.instance_id or response.status in (200, 511):  # others may be a proxy's
            self.instance_id = named
        async with response:
            yield response


def _named(request_id: str) -> dict[str, str]:
    return {"X-Request-ID": request_id, REQUEST_HEADER: request_id}


def _is_late(error: BaseException) -> bool:
    """Return whether the timeout of a request has expired that may have reached the server."""
    return isinstance(error.__cause__, TimeoutError) and not isinstance(error.__cause__, _UNSENT)


def check_status(status: int, body: bytes) -> None:
    """Raise the exception that the server sent, or an error for its refusal, unless `status` is 200."""
    if status == 200:
        return
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        text = body[:200].decode("utf-8", "replace")
        hint = "is it a server of swerex_c or SWE-ReX, and are host and port right?"
        raise ProtocolError(f"The server answered with status {status} ({hint}): {text}")
    if status == 511 and "swerexception" in data:
        raise from_wire(data["swerexception"])
    detail = data.get("detail")
    text = f"The server refused the request with status {status}: {str(detail)[:2000]}"
    raise _REFUSALS.get(status, ProtocolError)(text)


class _Body:
    """Pieces of an upload, and the error of reading them, which aiohttp does not raise."""

    def __init__(self, pieces: AsyncIterator[bytes]):
        self._pieces = pieces
        self._reading = asyncio.Lock()
        self.error: Exception | None = None

    async def read(self) -> AsyncIterator[bytes]:
        while True:
            async with self._reading:
                try:
                    piece = await anext(self._pieces, None)
                except Exception as error:
                    self.error = error
                    raise
            if piece is None:
                return
            yield piece

    async def end(self) -> None:
        """Wait until no piece is being read, and let none be read any more: aiohttp may still do so."""
        await self._reading.acquire()


def _form(target: str, content: AsyncIterator[bytes], *, unzip: bool) -> aiohttp.FormData:
    """Return the form in which SWE-ReX's server takes a file, or a directory as a zip archive."""
    try:
        target.encode()
    except UnicodeEncodeError:
        raise InvalidInputError(f"A server of SWE-ReX cannot write to {target!r}: the path is not text") from None
    form = aiohttp.FormData()
    form.add_field("target_path", target)
    form.add_field("unzip", "true" if unzip else "false")
    form.add_field("file", content, filename="file", content_type="application/octet-stream")
    return form


# Connections

_sessions: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}
"""Connections by private event loop: that of this process, and perhaps that of its parent."""


def _session() -> aiohttp.ClientSession:
    """Return the connections of all clients in the private event loop, which is running."""
    loop = asyncio.get_running_loop()
    if loop not in _sessions:
        connector = aiohttp.TCPConnector(
            limit=0, keepalive_timeout=_KEEPALIVE, ttl_dns_cache=60, socket_factory=_socket
        )
        jar, forever = aiohttp.DummyCookieJar(), aiohttp.ClientTimeout(total=None)
        _sessions[loop] = aiohttp.ClientSession(connector=connector, cookie_jar=jar, timeout=forever)
    return _sessions[loop]


async def _close() -> None:
    if (session := _sessions.pop(asyncio.get_running_loop(), None)) is not None:
        await session.close()


@atexit.register
def _close_all() -> None:
    """Close the connections at the exit of the program, because aiohttp warns about open ones."""
    if _sessions:
        with contextlib.suppress(Exception):
            background.run_blocking(_close(), timeout=_CANCEL_SECONDS)


def _socket(info: Any) -> socket.socket:
    """Create a socket that detects a lost peer within two minutes, however long a response takes."""
    made = socket.socket(*info[:3])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 90_000)
    return made
