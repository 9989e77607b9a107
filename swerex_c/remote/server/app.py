"""The HTTP/JSON server: the endpoints of SWE-ReX as an ASGI application.

    Gate ── known path ──> endpoint ── ResultCache ── Service ──> runtime
      └──── other path ──> FastAPI: documentation, 404, 405, and routes that a user adds

FastAPI only describes the endpoints (OpenAPI). It does not dispatch requests to them: its routing, dependencies and
response validation would take longer than a command in a session. `Gate` checks key and size for every path.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import json
import logging
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, MutableMapping
from typing import Annotated, Any

from fastapi import FastAPI, File, Form, Header, Security, UploadFile
from fastapi.routing import APIRoute
from fastapi.security import APIKeyHeader
from pydantic import BaseModel, Field, TypeAdapter
from starlette.requests import Request
from starlette.responses import Response

from swerex_c import models
from swerex_c._version import __version__
from swerex_c.exceptions import InvalidInputError, ServerRestartedError
from swerex_c.files import tar, zip
from swerex_c.files.local import open_regular
from swerex_c.files.staging import RIGHTS, Staging
from swerex_c.files.writing import check_path
from swerex_c.models import _ExceptionTransfer
from swerex_c.remote.server import auth
from swerex_c.remote.server.multipart import Form as UploadForm
from swerex_c.remote.server.serve import shutdown_on_signal
from swerex_c.remote.server.service import METHODS, InvalidRequestError, Service, validate
from swerex_c.remote.wire.exceptions import to_wire
from swerex_c.remote.wire.idempotency import ResultCache
from swerex_c.remote.wire.packed import packed
from swerex_c.remote.wire.protocol import SERVER_HEADER, UPGRADE
from swerex_c.utils.temporary import temporary_place
from swerex_c.utils.threads import OrderedCalls, in_file_thread

__all__ = ["create_app"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
Endpoint = Callable[[Scope, Receive], Coroutine[Any, Any, "Reply"]]
"""A function that returns the response; `Gate` makes a response of what it raises."""


_CLOSE = (b"connection", b"close")
_JSON = (b"content-type", b"application/json")
_FEED = 1 << 20
"""Bytes of an upload to collect before one write, and bytes of a download to read at once."""

_HASHED_INLINE = 1 << 20
"""Bytes of a body up to which hashing is so fast that it needs no thread."""

_DRAIN_SECONDS = 5.0
"""Seconds to read the rest of a refused body, so that the client can read the refusal."""

_logger = logging.getLogger("swerex_c.server")


class Disconnected(Exception):
    """A disconnect of the client before its request or its response was complete."""


class Refusal(Exception):
    """An error response, raised by an endpoint or by `Gate`."""

    def __init__(self, status: int, detail: Any, headers: Headers | None = None):
        self.reply = Reply(status, _dump({"detail": detail}), headers)


class Reply:
    """A response that is complete in memory."""

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, body: bytes, headers: Headers | None = None):
        self.status = status
        self.body = body
        self.headers = headers or []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [_JSON, (b"content-length", b"%d" % len(self.body)), *self.headers]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


class StreamReply(Reply):
    """A streamed response.

    If it fails halfway, the body stays incomplete, which the client notices.
    """

    __slots__ = ("counted", "pieces")

    def __init__(self, pieces: AsyncGenerator[bytes, None], headers: Headers):
        super().__init__(200, b"", headers)
        self.pieces = pieces
        self.counted = contextlib.ExitStack()
        """Contexts to exit when the whole body was sent; they count the request."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(receive())  # after the request: only a disconnect can come
        try:
            with self.counted:
                await send({"type": "http.response.start", "status": 200, "headers": self.headers})
                async for piece in self.pieces:
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                    if gone.done():
                        raise Disconnected
                await send({"type": "http.response.body", "body": b""})
        except Disconnected:
            pass
        except OSError as error:
            _logger.warning("A download ended early: %s", error)
        finally:
            gone.cancel()
            await self.pieces.aclose()


class DownloadRequest(BaseModel):
    """A request to read a file or a directory as it is."""

    path: str
    """Path of the file or directory; relative to the working directory of the runtime's process."""


class HelloResponse(BaseModel):
    """The response of the root path."""

    message: str = "hello world"


class ErrorResponse(BaseModel):
    """The reason for which a request was refused."""

    detail: Any = None


class ExceptionResponse(BaseModel):
    """The exception that the runtime raised."""

    swerexception: _ExceptionTransfer


def create_app(service: Service, *, own_process: bool = False) -> FastAPI:
    """Create the application of a service, for any ASGI server.

    It reads `service.holder` for every request, so key and runtime may be replaced. On shutdown it closes the runtime.

    Args:
        own_process: whether the process serves this application alone. The application then takes the key from the
            environment if it has none, hides it from other processes, and ends on signals as `serve.run` does.
    """
    endpoints = _Endpoints(service)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with shutdown_on_signal(service) if own_process else contextlib.nullcontext():
            yield
        await service.close()
        await endpoints.result_cache.close()

    app = _App(
        title="swerex_c",
        version=__version__,
        description="Sessions, commands and files, by the API of SWE-ReX",
        lifespan=lifespan,
        dependencies=[Security(APIKeyHeader(name="X-API-Key", auto_error=False))],
        responses=_RESPONSES,
    )
    app.router.route_class = _Route
    table: dict[tuple[str, str], Endpoint] = {}
    for verb, path, endpoint, takes, gives in endpoints.described():
        table[verb, path] = endpoint
        described = _Described(endpoint, takes)
        app.add_api_route(path, described, methods=[verb], response_model=gives, name=path.strip("/") or "root")
    app.add_exception_handler(Exception, _unforeseen)
    app.add_middleware(Gate, service=service, table=table, own_process=own_process)
    app.state.service = service
    app.state.result_cache = endpoints.result_cache
    return app


class _App(FastAPI):
    """The application, with a complete OpenAPI description."""

    def openapi(self) -> dict[str, Any]:
        """Return the description, with the discriminator fields as required ones."""
        described = self.openapi_schema is not None
        description = super().openapi()
        if not described:
            for name, tag in _TAGS.items():
                schema = description["components"]["schemas"][name]
                schema["required"] = [*schema.get("required", []), tag]
        return description


_TAGS = {
    "BashAction": "action_type",
    "BashInterruptAction": "action_type",
    "CreateBashSessionRequest": "session_type",
    "CloseBashSessionRequest": "session_type",
}

_RESPONSES: dict[int | str, dict[str, Any]] = {
    401: {"model": ErrorResponse, "description": "The key is wrong"},
    403: {"model": ErrorResponse, "description": "There is no key"},
    413: {"model": ErrorResponse, "description": "The request is larger than the server takes"},
    422: {"model": ErrorResponse, "description": "The request is not valid"},
    511: {"model": ExceptionResponse, "description": "The runtime raised an exception"},
}


class Gate:
    """The outermost middleware, which checks the key and size of each request.

    It then calls the endpoint or FastAPI.
    """

    def __init__(self, app: Any, service: Service, table: dict[tuple[str, str], Endpoint], own_process: bool):
        self._app = app
        self._own_process = own_process
        self._service = service
        self._table = table
        self._instance_header: tuple[bytes, bytes] = (SERVER_HEADER.lower().encode(), service.instance_id.encode())
        self._single_headers = (
            b"x-api-key", b"content-length", b"transfer-encoding", b"content-type", b"x-request-id",
            self._instance_header[0],
        )  # fmt: skip
        """Names of the request headers that are read; each may occur once."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._live(scope, receive, send)
            elif scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": ""})
            return

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), self._instance_header]
            await send(message)

        path = scope["path"]
        if (root := scope.get("root_path")) and path.startswith(root):
            path = path[len(root) :]
        try:
            self._check(scope, path)
            endpoint = self._table.get((scope["method"], path))
            reply = None if endpoint is None else await endpoint(scope, receive)
        except Disconnected:
            return
        except Refusal as refusal:
            reply = refusal.reply
            if _CLOSE in reply.headers:  # otherwise the client could send a body without end
                await self._drain(receive)
        except Exception as error:
            reply = _failure(error)
        await (reply or self._app)(scope, receive, send_named)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle the lifespan of the application; fail its startup without a key."""
        holder = self._service.holder
        problem = None
        if self._own_process:
            try:
                if not holder.AUTH_TOKEN and (given := auth.take_from_environment()) is not None:
                    holder.AUTH_TOKEN = auth.checked(given, auth.VARIABLE)
            except InvalidInputError as error:
                problem = str(error)
            if holder.AUTH_TOKEN:
                auth.hide(holder.AUTH_TOKEN)
                auth.protect()
        if not holder.AUTH_TOKEN:
            problem = problem or f"A key is needed: set the variable {auth.VARIABLE}, or AUTH_TOKEN before the start"
            await receive()
            await send({"type": "lifespan.startup.failed", "message": problem})
            return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope, path: str) -> None:
        service = self._service
        found = dict.fromkeys(self._single_headers)
        for name, value in scope["headers"]:
            if name in found:
                if found[name] is not None:  # a proxy may have read the other one, or it is a trailer
                    raise Refusal(400, f"The header {name.decode()} may come only once", [_CLOSE])
                found[name] = value
        refused = service.refusal(found[b"x-api-key"])
        if refused is not None:
            raise Refusal(*refused, [_CLOSE])
        size = found[b"content-length"]
        if size is not None and found[b"transfer-encoding"] is not None:
            raise Refusal(400, "Content-Length and Transfer-Encoding exclude each other", [_CLOSE])
        instance_id = found[self._instance_header[0]]
        if instance_id is not None and instance_id != self._instance_header[1]:
            raise ServerRestartedError(
                "The server is not the one that the request was first sent to: it was restarted, "
                "and whether the request was carried out before is not known"
            )
        if size is not None and path != "/upload" and int(size) > service.limits.body:
            raise _too_large(service)
        if path == "/wire":
            raise Refusal(426, f"Upgrade to {UPGRADE}", [(b"upgrade", UPGRADE.encode()), (b"connection", b"upgrade")])

    @staticmethod
    async def _drain(receive: Receive) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_SECONDS):
                while (message := await receive())["type"] == "http.request" and message.get("more_body"):
                    pass


class _Endpoints:
    """The HTTP endpoints of a service."""

    def __init__(self, service: Service):
        self._service = service
        self.result_cache: ResultCache[Reply] = ResultCache(service.limits, lambda reply: len(reply.body))

    def described(self) -> list[tuple[str, str, Endpoint, Any, Any]]:
        """Return verb, path, endpoint, request type and response model of each endpoint."""
        return [
            ("GET", "/", self._root, None, HelloResponse),
            ("GET", "/is_alive", self._is_alive, None, models.IsAliveResponse),
            self._method("create_session", models.CreateSessionRequest, models.CreateSessionResponse),
            self._method("run_in_session", models.Action, models.Observation),
            self._method("close_session", models.CloseSessionRequest, models.CloseSessionResponse),
            self._method("execute", models.Command, models.CommandResponse),
            self._method("read_file", models.ReadFileRequest, models.ReadFileResponse),
            self._method("write_file", models.WriteFileRequest, models.WriteFileResponse),
            ("POST", "/upload", self._upload, _UPLOAD, models.UploadResponse),
            ("POST", "/download", self._download, DownloadRequest, None),
            self._method("close", None, models.CloseResponse),
            ("POST", "/cancel", self._cancel, _CANCEL, None),
        ]

    def _method(self, name: str, takes: Any, gives: Any) -> tuple[str, str, Endpoint, Any, Any]:
        async def endpoint(scope: Scope, receive: Receive) -> Reply:
            return await self._call(name, scope, receive)

        return "POST", "/" + name, endpoint, takes, gives

    async def _root(self, scope: Scope, receive: Receive) -> Reply:
        return _answer(HelloResponse())

    async def _is_alive(self, scope: Scope, receive: Receive) -> Reply:
        return _answer(await self._service.call("is_alive", None))

    async def _call(self, method: str, scope: Scope, receive: Receive) -> Reply:
        body = await self._body(receive)
        head = _Head(scope)

        async def start() -> Reply:
            try:
                request = await _parse(METHODS[method], head.content_type, body)
                return _answer(await self._service.call(method, request))
            except Refusal as refusal:
                return refusal.reply
            except Exception as error:
                return _failure(error)

        if head.request_id is None:
            return await start()
        what = method, await _digest(body)
        keep = method != "read_file"  # which is safe to repeat
        return await self.result_cache.run(head.request_id, what, start, keep=keep)

    async def _cancel(self, scope: Scope, receive: Receive) -> Reply:
        request_id = _Head(scope).request_id
        if request_id is None:
            raise Refusal(422, [{"type": "missing", "loc": ["header", "x-request-id"], "msg": "Field required"}])
        await self.result_cache.cancel(request_id)
        return Reply(200, b"{}")

    async def _body(self, receive: Receive) -> bytes | bytearray:
        message = await receive()
        body: bytes | bytearray = message.get("body", b"")
        more = message.get("more_body", False)
        if more:
            body = bytearray(body)
        while message["type"] == "http.request":
            if len(body) > self._service.limits.body:
                raise _too_large(self._service)
            if not more:
                return body
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        raise Disconnected

    # Files

    async def _upload(self, scope: Scope, receive: Receive) -> Reply:
        return _answer(await self._service.count("upload", lambda: self._store(scope, receive)))

    async def _store(self, scope: Scope, receive: Receive) -> BaseModel:
        stack, turns = contextlib.ExitStack(), OrderedCalls()
        staging: Staging | None = None

        def open_file(fields: dict[str, str]) -> int:
            nonlocal staging
            # If `target_path` comes after the file, the file may have to be moved across file systems.
            staging = Staging(fields.get("target_path") or os.path.join(temporary_place(), "upload"))
            return stack.enter_context(stack.enter_context(staging).file(""))

        try:
            form = UploadForm(_Head(scope).content_type, open_file)
        except InvalidInputError:
            problems = [_problem("missing", name, "Field required") for name in ("file", "target_path")]
            raise Refusal(422, problems) from None
        try:
            await self._feed(form, receive, turns)
            await turns.call(self._finish, form, staging)
        finally:
            await turns.end(stack.close)
        return models.UploadResponse()

    @staticmethod
    async def _feed(form: UploadForm, receive: Receive, turns: OrderedCalls) -> None:
        more = True
        while more:
            pieces: list[bytes] = []
            size = 0
            while more and size < _FEED:
                message = await receive()
                if message["type"] != "http.request":
                    raise Disconnected
                more = message.get("more_body", False)
                pieces.append(message.get("body", b""))
                size += len(pieces[-1])
            try:
                await turns.call(form.feed, b"".join(pieces))
            except InvalidInputError as error:
                raise Refusal(422, [_problem("value_error", "body", str(error))]) from None

    @staticmethod
    def _finish(form: UploadForm, received: Staging | None) -> None:
        problems = [] if form.complete else [_problem("value_error", "body", "The form has no end")]
        target = form.fields.get("target_path")
        for name, value in (("file", form.file), ("target_path", target)):
            if value is None:
                problems.append(_problem("missing", name, "Field required"))
        archives = [name for name in ("unzip", "untar") if form.fields.get(name, "false").lower() not in _NO]
        for name in archives:
            if form.fields[name].lower() not in _YES:
                problems.append(_problem("bool_parsing", name, "Input should be a valid boolean"))
        mode = form.fields.get("mode", "")
        if len(mode) > 4 or not set(mode) <= set("01234567"):
            problems.append(_problem("value_error", "mode", "Input should be an octal number"))
        if problems or target is None or received is None or form.file is None:
            raise Refusal(422, problems)
        if archives:
            received.commit_archive(target, tar.unpack if "untar" in archives else zip.unpack)
            return
        if mode:
            os.fchmod(form.file, int(mode, 8) & RIGHTS)
        name = os.path.basename(form.filename or "")
        check_path(target)
        received.target = target
        received.commit(name if name not in ("", ".", "..") else "upload")

    async def _download(self, scope: Scope, receive: Receive) -> Reply:
        request = await _parse(_DOWNLOAD, _Head(scope).content_type, await self._body(receive))
        with contextlib.ExitStack() as counted:
            counted.enter_context(self._service.counted("download"))
            reply = await self._open(request.path)
            reply.counted = counted.pop_all()
        return reply

    @staticmethod
    async def _open(path: str) -> StreamReply:
        file, status = await in_file_thread(_open_for_reading, path)
        mode = (b"x-swerex-mode", b"%o" % stat.S_IMODE(status.st_mode))
        if file is not None:
            size = (b"content-length", b"%d" % status.st_size)
            headers = [(b"content-type", b"application/octet-stream"), (b"x-swerex-kind", b"file"), size, mode]
            return StreamReply(_read(file, status.st_size), headers)
        pieces = packed(tar.pack, path)
        first = await anext(pieces)
        headers = [(b"content-type", b"application/x-tar"), (b"x-swerex-kind", b"tree"), mode]
        return StreamReply(_after(first, pieces), headers)


_YES = {"true", "1", "yes", "on", "t", "y"}
_NO = {"false", "0", "no", "off", "f", "n"}
_DOWNLOAD = TypeAdapter(DownloadRequest)
_CANCEL = [
    inspect.Parameter(
        "x_request_id",
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[str, Header(min_length=1, description="That of the request to end")],
    )
]
_UPLOAD = [
    inspect.Parameter("file", inspect.Parameter.KEYWORD_ONLY, annotation=UploadFile, default=File()),
    inspect.Parameter("target_path", inspect.Parameter.KEYWORD_ONLY, annotation=str, default=Form()),
    inspect.Parameter("unzip", inspect.Parameter.KEYWORD_ONLY, annotation=bool, default=Form(False)),
    inspect.Parameter(
        "untar",
        inspect.Parameter.KEYWORD_ONLY,
        annotation=bool,
        default=Form(False, description="Whether the file is a tar archive of a directory, to unpack"),
    ),
    inspect.Parameter(
        "mode",
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[str | None, Field(pattern="^[0-7]{0,4}$")],
        default=Form(None, description="The mode of the file, octal"),
    ),
]


class _Described:
    """An endpoint with a signature, from which FastAPI makes the OpenAPI description."""

    def __init__(self, endpoint: Endpoint, takes: Any):
        self.endpoint = endpoint
        if isinstance(takes, list):
            parameters = takes
        elif takes is None:
            parameters = []
        else:
            parameters = [inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY, annotation=takes)]
        self.__signature__ = inspect.Signature(parameters)

    async def __call__(self, request: Request) -> Response:
        reply: Any = await self.endpoint(request.scope, request.receive)
        return reply  # type: ignore[no-any-return]


class _Route(APIRoute):
    """A route whose endpoint parses the request itself."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        endpoint = self.endpoint
        return endpoint.__call__ if isinstance(endpoint, _Described) else super().get_route_handler()


class _Head:
    """The headers of a request that endpoints use."""

    __slots__ = ("content_type", "request_id")

    def __init__(self, scope: Scope):
        self.content_type = ""
        self.request_id: str | None = None
        for name, value in scope["headers"]:
            if name == b"x-request-id":
                # The hash of a long id identifies it as well and takes less memory.
                short = len(value) <= 200
                self.request_id = (value.decode("latin-1") if short else hashlib.blake2b(value).hexdigest()) or None
            elif name == b"content-type":
                self.content_type = value.decode("latin-1")


async def _parse(adapter: TypeAdapter[Any] | None, content_type: str, body: bytes | bytearray) -> Any:
    """Return the validated request, or raise a `Refusal` with problems in the format of FastAPI."""
    if adapter is None:
        return None
    kind = content_type.partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise Refusal(422, [_problem("model_attributes_type", "body", "The body has to be application/json")])
    try:
        payload = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refusal(422, [_problem("json_invalid", "body", f"JSON decode error: {error}")]) from None
    try:
        return validate(adapter, payload)
    except InvalidRequestError as error:
        raise Refusal(422, [{**problem, "loc": ["body", *problem["loc"]]} for problem in error.problems]) from None


def _problem(kind: str, field: str, text: str) -> dict[str, Any]:
    return {"type": kind, "loc": ["body"] if field == "body" else ["body", field], "msg": text}


async def _digest(body: bytes | bytearray) -> bytes:
    if len(body) <= _HASHED_INLINE:
        return hashlib.blake2b(body, digest_size=16).digest()
    return await asyncio.to_thread(lambda: hashlib.blake2b(body, digest_size=16).digest())


def _dump(value: Any) -> bytes:
    """Encode a value as ASCII JSON, in which lone surrogates are escapes."""
    return json.dumps(value).encode()


def _answer(model: BaseModel) -> Reply:
    try:
        body = model.__pydantic_serializer__.to_json(model)
    except Exception:  # it holds lone surrogates, which UTF-8 cannot encode
        body = _dump(model.model_dump())
    return Reply(200, body)


def _failure(error: Exception) -> Reply:
    return Reply(511, _dump({"swerexception": to_wire(error)}))


def _too_large(service: Service) -> Refusal:
    return Refusal(413, f"The server takes requests of up to {service.limits.body} bytes", [_CLOSE])


async def _unforeseen(request: Request, error: Exception) -> Response:
    reply = _failure(error)
    return Response(reply.body, reply.status, media_type="application/json")


def _open_for_reading(path: str) -> tuple[Any, os.stat_result]:
    """Open a file for reading; return it, or None for a directory, and its status.

    Raises:
        InvalidInputError: if the path is neither a file nor a directory.
    """
    check_path(path)
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        return None, status
    if not stat.S_ISREG(status.st_mode):
        raise InvalidInputError(f"Cannot download {path!r}: it is neither a file nor a directory")
    file = open_regular(path)
    return file, os.fstat(file.fileno())


async def _read(file: Any, size: int) -> AsyncGenerator[bytes, None]:
    """Yield exactly `size` bytes of a file in pieces, then close it.

    Raises:
        OSError: if the file has become shorter.
    """
    try:
        while size:
            data = await in_file_thread(file.read, min(size, _FEED))
            if not data:
                raise OSError(f"{file.name!r} became shorter while it was sent")
            size -= len(data)
            yield data
    finally:
        file.close()


async def _after(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    try:
        yield first
        async for piece in rest:
            yield piece
    finally:
        await rest.aclose()
