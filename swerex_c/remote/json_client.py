"""The client of HTTP/JSON, for servers of ours and of the original.

One HTTP session is kept for each event loop, because callers use a new loop for each call as well as one for ever, in
any number of threads. It is closed when its loop shuts down, or at the latest with the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import random
import socket
import stat
import threading
import time
import urllib.request
import uuid
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

import aiohttp
from pydantic import BaseModel, ValidationError

from swerex_c.exceptions import (
    AuthenticationError,
    ConnectionLostError,
    InvalidInputError,
    NotSupportedError,
    ProtocolError,
    ServerLimitError,
    SwerexException,
    UploadError,
)
from swerex_c.remote import archive
from swerex_c.remote.client import ANSWER_LIMIT, MARGIN, Boots, is_loopback, patience, too_long
from swerex_c.remote.protocol import SERVER_HEADER
from swerex_c.remote.transfer import from_wire
from swerex_c.runtime import files
from swerex_c.runtime.abstract import IsAliveResponse, UploadResponse
from swerex_c.utils.progress import Progress

__all__ = ["JsonClient", "check_status"]


RETRIES = 4
"""How often a request is sent again after its connection failed."""

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
_CONNECT_SECONDS = 30.0
_COPY = 256 << 10

_READ_ONLY = {"is_alive", "read_file"}
"""Methods that may be carried out twice."""

_KEEPALIVE = 3.0
"""Seconds that an idle connection is kept: less than the 5 after which uvicorn closes it, because a request on a
connection that is just being closed may or may not have arrived."""

_logger = logging.getLogger("swerex_c.client")

M = TypeVar("M", bound=BaseModel)


class _Lost(Exception):
    """A request that got no answer; `sent` is false if it certainly did not reach the server, `late` is true if the
    time for it is over."""

    def __init__(self, cause: BaseException, *, sent: bool, late: bool = False):
        super().__init__(str(cause) or type(cause).__name__)
        self.sent = sent
        self.late = late


class JsonClient:
    """Calls a server. May be used from any event loop and any thread."""

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, answer_limit: int = ANSWER_LIMIT):
        """
        Args:
            url: the server's, with scheme, port and path prefix if there is one. It may be changed, as may `headers`.
            headers: what every request carries, the key among it.
            answer_limit: bytes of one answer that are taken; files that are downloaded have no limit.
        """
        self._answer_limit = answer_limit
        self.url = url
        self.headers = dict(headers or {})
        self.boot: str | None = None
        """The server process that answered last; None before that, and if it is no server of ours."""
        self.refuses_key = False
        """Whether that was what the last `is_alive` was answered."""
        self._boots = Boots()
        self._pool = _Pool()
        weakref.finalize(self, _Pool.discard_all, self._pool)

    async def is_alive(self, timeout: float) -> IsAliveResponse:
        """Whether the server answers that it is alive, within `timeout` seconds. Raises only what it raises itself."""
        self.refuses_key = False
        try:
            status, headers, body = await self._exchange("GET", "is_alive", None, {}, timeout)
        except (_Lost, SwerexException, TimeoutError) as error:
            reason = str(error) or f"no answer within {timeout} seconds"
            return IsAliveResponse(is_alive=False, message=f"Failed to connect to {self.url}\n{reason}")
        self._note(headers)
        self.refuses_key = status in (401, 403)
        if status == 511:
            check_status(status, body)
        try:
            data = json.loads(body)
            if status == 200:
                return IsAliveResponse.model_validate(data)
            detail = data.get("detail")
        except (ValueError, AttributeError, RecursionError):
            detail = body[:200].decode("utf-8", "replace")
        message = f"Status code {status} from {self.url}/is_alive. Message: {detail}"
        return IsAliveResponse(is_alive=False, message=message)

    async def call(
        self,
        method: str,
        request: BaseModel | None,
        response_type: Callable[..., M],
        *,
        timeout: float | None = None,
        request_id: str | None = None,
        retries: int = RETRIES,
    ) -> M:
        """What a method of the server returns or raises.

        A request whose connection fails is sent again with the same id if that cannot make it run twice: to a server
        of ours, which knows the id; to any other if it did not arrive or changes nothing.

        Args:
            response_type: called with the fields of the answer.
            timeout: how many seconds to wait for the answer; None is the request's own timeout and `MARGIN`, or for
                ever if it has none.

        Raises:
            ConnectionLostError: if there is no answer.
            ServerRestartedError: if the server that had the session, or got the request, is gone.
            AuthenticationError, ServerLimitError, ProtocolError: from the server's refusals and from odd answers.
        """
        body = b"" if request is None else await _encode(request)
        headers = {"X-Request-ID": request_id or str(uuid.uuid4())}
        if request is not None:
            headers["Content-Type"] = "application/json"
        wait = patience(request) if timeout is None else timeout
        status, answer_headers, answer = await self._persist(method, body, headers, wait, retries)
        boot = self._note(answer_headers)
        try:
            check_status(status, answer)
        except Exception as error:
            explained = self._boots.explain(error, request, boot)
            raise explained from (None if explained is error else error)
        self._boots.note(method, request, boot)
        return await _decode(answer, response_type)

    async def upload(self, source: str, target: str, progress: Progress | None = None) -> UploadResponse:
        """Copy a file or a tree to the server's machine, in pieces.

        A server of ours gets modes and symbolic links; to one of the original the links are followed, and it sets no
        modes.

        Raises:
            FileNotFoundError: if there is no source.
            UploadError: if it cannot be copied.
        """
        status = await asyncio.to_thread(os.stat, source)
        tree = stat.S_ISDIR(status.st_mode)
        if not tree and not stat.S_ISREG(status.st_mode):
            raise UploadError(f"Cannot copy {source!r}: it is neither a file nor a directory")
        if self.boot is None:
            await self._get_to_know()
        fields = {"target_path": target, "unzip": "true" if tree else "false"}
        if not tree:
            fields["mode"] = f"{stat.S_IMODE(status.st_mode):o}"
        pieces = self._tree(source) if tree else _read(source)
        size = None if tree else status.st_size
        form = _Form(fields, os.path.basename(os.path.realpath(source)), _count(pieces, size, progress))
        try:
            code, headers, body = await self._exchange("POST", "upload", form.pieces(), form.headers, None)
        except _Lost as error:
            if form.error is not None:
                raise form.error from None
            raise self._lost("upload", error) from error
        self._note(headers)
        check_status(code, body)
        return await _decode(body, UploadResponse)

    def _tree(self, source: str) -> AsyncGenerator[bytes, None]:
        return archive.stream(source, follow_links=self.boot is None, compress=not is_loopback(self.url))

    async def _get_to_know(self) -> None:
        """Learn whether the server is one of ours."""
        with contextlib.suppress(_Lost, SwerexException):
            _, headers, _ = await self._exchange("GET", "is_alive", None, {}, MARGIN)
            self._note(headers)

    async def download(self, source: str, target: str, progress: Progress | None = None) -> None:
        """Copy a file or a tree from the server's machine, by the rules of an upload.

        Raises:
            NotSupportedError: if the server is not one of ours.
            FileNotFoundError: if there is no source.
            UploadError: if it does not fit to what is at the target.
        """
        try:
            await self._download(source, target, progress)
        except _Lost as error:
            raise self._lost("download", error) from error

    async def _download(self, source: str, target: str, progress: Progress | None) -> None:
        body = json.dumps({"path": source}).encode()
        headers = {"Content-Type": "application/json"}
        async with self._request("POST", "download", body, headers, None) as response:
            boot = self._note(response.headers)
            if response.status == 200:
                await self._save(response, source, target, progress)
                return
            refusal = await self._read(response, "download")
        if response.status == 404 and boot is None:
            raise NotSupportedError("The server is not one of swerex_c, and cannot send files: use read_file")
        check_status(response.status, refusal)

    @staticmethod
    async def _save(response: aiohttp.ClientResponse, source: str, target: str, progress: Progress | None) -> None:
        tree = response.headers.get("X-Swerex-Kind") == "tree"
        mode = response.headers.get("X-Swerex-Mode", "")
        size = response.content_length
        with contextlib.ExitStack() as stack:
            place = await asyncio.to_thread(stack.enter_context, files.spool(target))
            path = os.path.join(place, "file")
            file = stack.enter_context(open(path, "xb", 0))
            done = 0
            async for piece in response.content.iter_chunked(_COPY):
                await asyncio.to_thread(file.write, piece)
                done += len(piece)
                if progress is not None:
                    progress(done, size)
            file.close()
            if tree:
                await asyncio.to_thread(archive.unpack, path, target)
                return
            if mode and len(mode) <= 4 and set(mode) <= set("01234567"):
                os.chmod(path, int(mode, 8))
            name = os.path.basename(source.rstrip("/"))
            await asyncio.to_thread(files.move, path, target, name)

    async def close(self) -> None:
        """Close the connections of this event loop at once, and those of others as soon as they can. The client may
        be used again."""
        await self._pool.close()

    # One request

    async def _persist(
        self, method: str, body: bytes, headers: dict[str, str], wait: float | None, retries: int
    ) -> tuple[int, Mapping[str, str], bytes]:
        pause = _FIRST_PAUSE
        boot = self.boot
        sent = False
        begin = time.monotonic()
        for attempt in range(retries + 1):
            left = None if wait is None else max(0.001, wait - (time.monotonic() - begin))
            try:
                return await self._exchange("POST", method, body, headers, left)
            except _Lost as error:
                sent = sent or error.sent
                repeatable = not sent or boot is not None or method in _READ_ONLY
                if attempt == retries or not repeatable or error.late:
                    raise self._lost(method, error) from error
                _logger.debug("%s: %s; trying again in %.1f seconds", method, error, pause)
            if sent and boot is not None and method not in _READ_ONLY:
                headers[SERVER_HEADER] = boot  # so that no other server carries it out a second time
            await asyncio.sleep(pause)
            pause = min(pause * 2 + random.uniform(0, _FIRST_PAUSE), _LONGEST_PAUSE)
        raise AssertionError("the last attempt returns or raises")

    def _lost(self, what: str, error: _Lost) -> ConnectionLostError:
        kind = "did not answer" if error.sent else "cannot be reached"
        return ConnectionLostError(f"The server {self.url} {kind} ({what}): {error}")

    async def _exchange(
        self, verb: str, path: str, data: Any, headers: dict[str, str], wait: float | None
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body of an answer.

        Raises:
            _Lost: if none came within `wait` seconds, or at all.
        """
        async with self._request(verb, path, data, headers, wait) as response:
            return response.status, response.headers, await self._read(response, path)

    async def _read(self, response: aiohttp.ClientResponse, method: str) -> bytes:
        """The body of an answer, which says how long it is, or not, or is compressed."""
        size, limit = response.content_length, self._answer_limit
        if size is not None and size <= limit and "Content-Encoding" not in response.headers:
            return await response.read()
        parts: list[bytes] = []
        left = limit
        if size is None or size <= limit:
            async for part in response.content.iter_any():
                parts.append(part)
                left -= len(part)
                if left < 0:
                    break
        if left < 0 or size is not None and size > limit:
            raise too_long(method, limit)
        return b"".join(parts)

    @contextlib.asynccontextmanager
    async def _request(
        self, verb: str, path: str, data: Any, headers: dict[str, str], wait: float | None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        url = f"{self.url.rstrip('/')}/{path}"
        if self.boot is None:
            # The original closes a connection after some answers without saying so: a request that comes on it
            # meanwhile may or may not have arrived, and cannot be repeated there.
            headers = {**headers, "Connection": "close"}
        limit = aiohttp.ClientTimeout(total=wait, sock_connect=_CONNECT_SECONDS)
        try:
            session = self._pool.session(url)
            async with session.request(
                verb, url, data=data, headers=self.headers | headers, timeout=limit, allow_redirects=False
            ) as response:
                yield response
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise _Lost(error, sent=False) from error
        except aiohttp.InvalidURL as error:
            raise InvalidInputError(f"{url!r} is no address of a server") from error
        except (TimeoutError, aiohttp.ServerTimeoutError) as error:
            text = f"no answer within {wait:.3g} seconds" if wait is not None else str(error)
            raise _Lost(TimeoutError(text), sent=True, late=True) from error
        except aiohttp.ClientError as error:
            raise _Lost(error, sent=True) from error
        except ValueError as error:  # a header that cannot be sent
            if isinstance(error, SwerexException):
                raise
            raise InvalidInputError(f"The request cannot be sent: {error}") from error

    def _note(self, headers: Mapping[str, str]) -> str | None:
        boot = headers.get(SERVER_HEADER)
        self.boot = boot
        return boot


def check_status(status: int, body: bytes) -> None:
    """Raise what the server says was raised there, or why it refused the request."""
    if status == 200:
        return
    try:
        data = json.loads(body)
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict):
        raise ProtocolError(f"The server answered with status {status}: {body[:200].decode('utf-8', 'replace')}")
    if status == 511 and "swerexception" in data:
        raise from_wire(data["swerexception"])
    detail = data.get("detail")
    text = f"The server refused the request with status {status}: {str(detail)[:2000]}"
    if status in (401, 403):
        raise AuthenticationError(text)
    if status in (413, 429):
        raise ServerLimitError(text)
    if status == 422:
        raise InvalidInputError(text)
    raise ProtocolError(text)


async def _encode(request: BaseModel) -> bytes:
    """JSON in ASCII: with lone surrogates as escapes, and numbers that are infinite as Python writes them."""
    data = request.model_dump()
    content = data.get("content")
    if isinstance(content, str) and len(content) > 1 << 20:
        return await asyncio.to_thread(lambda: json.dumps(data).encode())
    return json.dumps(data).encode()


async def _decode(body: bytes, response_type: Callable[..., M]) -> M:
    try:
        data = json.loads(body) if len(body) < 1 << 20 else await asyncio.to_thread(json.loads, body)
        return response_type(**data)
    except (ValidationError, ValueError, TypeError, RecursionError) as error:
        raise ProtocolError(f"The server's answer cannot be read: {error}") from error


class _Form:
    """A form with a file (multipart/form-data, RFC 7578) that is sent as it is read. The file comes last, because a
    server of ours then knows where it goes."""

    def __init__(self, fields: Mapping[str, str], filename: str, content: AsyncGenerator[bytes, None]):
        boundary = uuid.uuid4().hex
        self.headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
        self.error: Exception | None = None
        """What went wrong with reading the content."""
        self._content = content
        filename = filename.translate({ord("\\"): "\\\\", ord('"'): '\\"', ord("\r"): "_", ord("\n"): "_"})
        head = "".join(
            f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
            for name, value in fields.items()
        ) + (
            f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{filename}"\r\n'
            "Content-Type: application/octet-stream\r\n\r\n"
        )
        self._head = head.encode("utf-8", "surrogateescape")
        self._tail = f"\r\n--{boundary}--\r\n".encode()

    async def pieces(self) -> AsyncIterator[bytes]:
        yield self._head
        try:
            async with contextlib.aclosing(self._content):
                async for piece in self._content:
                    yield piece
        except Exception as error:
            self.error = error
            raise
        yield self._tail


async def _read(path: str) -> AsyncGenerator[bytes, None]:
    with await asyncio.to_thread(open, path, "rb", 0) as file:
        while data := await asyncio.to_thread(file.read, _COPY):
            yield data


async def _count(
    pieces: AsyncGenerator[bytes, None], size: int | None, progress: Progress | None
) -> AsyncGenerator[bytes, None]:
    done = 0
    async with contextlib.aclosing(pieces):
        async for piece in pieces:
            yield piece
            done += len(piece)
            if progress is not None:
                progress(done, size)


# Sessions


class _Pool:
    """An HTTP session for each event loop that needs one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[int, _Kept] = {}

    def session(self, url: str) -> aiohttp.ClientSession:
        """The session of the running loop."""
        loop = asyncio.get_running_loop()
        kept = self._kept.get(id(loop))
        if kept is None or kept.loop is not loop or kept.session.closed:
            kept = _Kept(loop, is_loopback(url))
            with self._lock:
                closed = [number for number, other in self._kept.items() if other.loop.is_closed()]
                discarded = [self._kept.pop(number) for number in closed]
                self._kept[id(loop)] = kept
            for other in discarded:
                other.discard()
            kept.hook(self._forget)
        return kept.session

    def _forget(self, kept: _Kept) -> None:
        with self._lock:
            if self._kept.get(id(kept.loop)) is kept:
                del self._kept[id(kept.loop)]

    async def close(self) -> None:
        running = asyncio.get_running_loop()
        with self._lock:
            everything = list(self._kept.values())
            self._kept.clear()
        for kept in everything:
            if kept.loop is running:
                await kept.session.close()
            else:
                kept.discard()

    def discard_all(self) -> None:
        with self._lock:
            everything = list(self._kept.values())
            self._kept.clear()
        for kept in everything:
            kept.discard()


class _Kept:
    """A session and its loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, direct: bool):
        """`direct`: without a proxy whatever the environment says, as for a server on this machine."""
        self.loop = loop
        self._connector = aiohttp.TCPConnector(
            limit=0, keepalive_timeout=_KEEPALIVE, ttl_dns_cache=60, socket_factory=_socket
        )
        # Reading the environment's settings takes time with every request, so only where there are any.
        self.session = aiohttp.ClientSession(
            connector=self._connector,
            trust_env=not direct and bool(urllib.request.getproxies()),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
        )

    def hook(self, forget: Callable[[_Kept], None]) -> None:
        """Have the session closed when the loop shuts down, as loops do with generators that were begun in them."""

        async def until_shutdown() -> AsyncGenerator[None, None]:
            try:
                yield
            finally:
                forget(self)
                await self.session.close()

        generator = until_shutdown()
        with contextlib.suppress(StopIteration):
            generator.__anext__().send(None)
        self._generator = generator

    def discard(self) -> None:
        """Close the session from outside of its loop, running or closed, without a word."""
        if self.loop.is_closed():
            self._close_now()
            return
        try:
            self.loop.call_soon_threadsafe(self._close_now)
        except RuntimeError:  # closed just now
            self._close_now()
            return
        if not self.loop.is_running():
            self.session.detach()

    def _close_now(self) -> None:
        self.session.detach()
        with contextlib.suppress(Exception):
            self._connector._close()


def _socket(info: Any) -> socket.socket:
    """A socket that notices within two minutes that its peer is gone, however long an answer takes."""
    made = socket.socket(*info[:3])
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 90000)):
        if hasattr(socket, option):
            with contextlib.suppress(OSError):
                made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made
