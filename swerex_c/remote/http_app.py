"""The HTTP/JSON server: the endpoints of the original, as an ASGI application.

    Gate ── known path ──> endpoint ── Once ── Service ──> the runtime
      └──── any other ───> FastAPI: the documentation, 404, 405, and what somebody adds

FastAPI describes the endpoints (OpenAPI) and finds none of them for a request: matching, dependencies and validation of
answers would take longer than a command in a session. What a client may do is checked at the gate, for every path.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import json
import logging
import math
import os
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, MutableMapping, Sequence
from typing import Annotated, Any

from fastapi import FastAPI, File, Form, Security, UploadFile
from fastapi.routing import APIRoute
from fastapi.security import APIKeyHeader
from pydantic import BaseModel, Field, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from swerex_c._version import __version__
from swerex_c.exceptions import InvalidInputError, ServerRestartedError
from swerex_c.remote import archive
from swerex_c.remote.direct import at_once
from swerex_c.remote.form import Form as UploadForm
from swerex_c.remote.long_json import LONG, dump, has_long, load
from swerex_c.remote.once import Once
from swerex_c.remote.protocol import SERVER_HEADER, UPGRADE
from swerex_c.remote.service import METHODS, Service
from swerex_c.remote.transfer import to_wire
from swerex_c.runtime import abstract, files
from swerex_c.runtime.abstract import _ExceptionTransfer
from swerex_c.runtime.local import LocalRuntime

__all__ = ["create_app"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
Endpoint = Callable[[Scope, Receive], Coroutine[Any, Any, "Reply"]]

_CLOSE = (b"connection", b"close")
_JSON = (b"content-type", b"application/json")
_FEED = 1 << 20
"""Bytes of an upload that are written at once."""

_HASHED_INLINE = 1 << 20
"""Bytes that are hashed so quickly that a thread is not worth it."""

_DRAIN_SECONDS = 5.0
"""How long the rest of a refused body is read, so that the client gets to read the refusal."""

_logger = logging.getLogger("swerex_c.server")


class Disconnected(Exception):
    """The client has gone before its request was complete."""


class Refusal(Exception):
    """An answer that is no 511."""

    def __init__(self, status: int, detail: Any, headers: Headers | None = None):
        self.reply = Reply(status, _dump({"detail": detail}), headers)


class Reply:
    """An answer that is complete in memory."""

    __slots__ = ("body", "headers", "more", "status")

    def __init__(self, status: int, body: bytes, headers: Headers | None = None, more: Sequence[bytes] = ()):
        """`more`: pieces of the body that come after `body`."""
        self.status = status
        self.body = body
        self.headers = headers or []
        self.more = more

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return len(self.body) + sum(map(len, self.more))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [_JSON, (b"content-length", b"%d" % self.size), *self.headers]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        body = self.body
        for piece in self.more:
            await send({"type": "http.response.body", "body": body, "more_body": True})
            await asyncio.sleep(0)  # between two pieces others have their turn
            body = piece
        await send({"type": "http.response.body", "body": body})


class StreamReply(Reply):
    """An answer in pieces. One that fails halfway ends without its end, which the client notices."""

    __slots__ = ("pieces",)

    def __init__(self, pieces: AsyncGenerator[bytes, None], headers: Headers):
        super().__init__(200, b"", headers)
        self.pieces = pieces

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(receive())  # the request is complete: this can only say that nobody reads on
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.headers})
            async for piece in self.pieces:
                if gone.done():
                    return
                await send({"type": "http.response.body", "body": piece, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        except OSError as error:
            _logger.warning("A download ended early: %s", error)
        finally:
            gone.cancel()
            await self.pieces.aclose()


class DownloadRequest(BaseModel):
    """Read a file or a directory as it is."""

    path: str
    """Where it is; relative to the runtime's process."""


class HelloResponse(BaseModel):
    """What the root answers."""

    message: str = "hello world"


class ErrorResponse(BaseModel):
    """Why a request was refused."""

    detail: Any = None


class ExceptionResponse(BaseModel):
    """What the runtime raised."""

    swerexception: _ExceptionTransfer


def create_app(service: Service) -> FastAPI:
    """The server of a service. It reads `service.place` with every request, so key and runtime may be replaced.

    It works under any ASGI server; when that tells it to shut down it ends what its runtime has started.
    """
    endpoints = _Endpoints(service)

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await service.close()
        await endpoints.once.close()

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
    app.add_middleware(Gate, service=service, table=table)
    app.state.service = service
    app.state.once = endpoints.once
    return app


class _App(FastAPI):
    """The application with a description that says one thing more than the models do."""

    def openapi(self) -> dict[str, Any]:
        """The description. What tells kinds of requests apart has a default in Python, and none on the wire."""
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
    429: {"model": ErrorResponse, "description": "Too many requests of this client"},
    511: {"model": ExceptionResponse, "description": "The runtime raised an exception"},
}


class Gate:
    """What every request passes: rate, key, size. Then the endpoint, or FastAPI."""

    def __init__(self, app: Any, service: Service, table: dict[tuple[str, str], Endpoint]):
        self._app = app
        self._service = service
        self._table = table
        self._boot: tuple[bytes, bytes] = (SERVER_HEADER.lower().encode(), service.boot.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            elif scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008, "reason": ""})
            return

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), self._boot]
            await send(message)

        path = scope["path"]
        if (root := scope.get("root_path")) and path.startswith(root):
            path = path[len(root) :]
        try:
            self._check(scope, path)
            endpoint = self._table.get((scope["method"], path))
            if endpoint is None:
                await self._app(scope, receive, send_named)
                return
            reply = await endpoint(scope, receive)
        except Disconnected:
            return
        except Refusal as refusal:
            reply = refusal.reply
            if _CLOSE in reply.headers:  # else it could send a body for as long as it likes
                await self._drain(receive)
        await reply(scope, receive, send_named)

    def _check(self, scope: Scope, path: str) -> None:
        service = self._service
        client = scope.get("client")
        if wait := service.rate.wait(client[0] if client else ""):
            after = (b"retry-after", b"%d" % math.ceil(wait))
            raise Refusal(429, "Too many requests: try again later", [after, _CLOSE])
        key = size = boot = None
        for name, value in scope["headers"]:
            if name == b"x-api-key":
                key = value
            elif name == b"content-length":
                size = value
            elif name == self._boot[0]:
                boot = value
        if (refused := service.refusal(key)) is not None:
            raise Refusal(*refused, [_CLOSE])
        if boot is not None and boot != self._boot[1]:
            error = ServerRestartedError(
                "The server is not the one that the request was first sent to: it was restarted, "
                "and whether the request was carried out before is not known"
            )
            refusal = Refusal(511, "")
            refusal.reply = Reply(511, _dump({"swerexception": to_wire(error)}))
            raise refusal
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
    """The endpoints of a service."""

    def __init__(self, service: Service):
        self._service = service
        self.once: Once[Reply] = Once(service.limits, lambda reply: reply.size)

    def described(self) -> list[tuple[str, str, Endpoint, Any, Any]]:
        """Verb, path, endpoint, what it takes, what it gives."""
        return [
            ("GET", "/", self._root, None, HelloResponse),
            ("GET", "/is_alive", self._is_alive, None, abstract.IsAliveResponse),
            self._method("create_session", abstract.CreateSessionRequest, abstract.CreateSessionResponse),
            self._method("run_in_session", abstract.Action, abstract.Observation),
            self._method("close_session", abstract.CloseSessionRequest, abstract.CloseSessionResponse),
            self._method("execute", abstract.Command, abstract.CommandResponse),
            self._method("read_file", abstract.ReadFileRequest, abstract.ReadFileResponse),
            self._method("write_file", abstract.WriteFileRequest, abstract.WriteFileResponse),
            ("POST", "/upload", self._upload, _UPLOAD, abstract.UploadResponse),
            ("POST", "/download", self._download, DownloadRequest, None),
            self._method("close", None, abstract.CloseResponse),
        ]

    def _method(self, name: str, takes: Any, gives: Any) -> tuple[str, str, Endpoint, Any, Any]:
        async def endpoint(scope: Scope, receive: Receive) -> Reply:
            return await self._call(name, scope, receive)

        return "POST", "/" + name, endpoint, takes, gives

    async def _root(self, scope: Scope, receive: Receive) -> Reply:
        return await _answer(HelloResponse())

    async def _is_alive(self, scope: Scope, receive: Receive) -> Reply:
        try:
            return await _answer(await self._service.call("is_alive", None))
        except Exception as error:
            return await _failure(error)

    async def _call(self, method: str, scope: Scope, receive: Receive) -> Reply:
        body = await self._body(receive)
        head = _Head(scope)

        async def start() -> Reply:
            try:
                request = await _parse(METHODS[method], head.content_type, body)
                return await _answer(await self._begin(method, request))
            except Refusal as refusal:
                return refusal.reply
            except Exception as error:
                return await _failure(error)

        if head.request_id is None:
            return await start()
        try:
            what = method, await _digest(body)
            return await self.once.run(head.request_id, what, start, short=self._is_alone(method))
        except Exception as error:
            return await _failure(error)

    def _begin(self, method: str, request: BaseModel | None) -> Coroutine[Any, Any, BaseModel]:
        """Where there is no other request, a session may wait for a short command by itself, without the loop."""
        alone = self._is_alone(method)
        work = self._service.call(method, request)
        return at_once(work) if alone else work

    def _is_alone(self, method: str) -> bool:
        service = self._service
        return service.in_flight == 0 and method == "run_in_session" and type(service.runtime) is LocalRuntime

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
        try:
            answer: BaseModel = await self._service.count("upload", self._store(scope, receive))
            return await _answer(answer)
        except (Disconnected, Refusal):
            raise
        except Exception as error:
            return await _failure(error)

    async def _store(self, scope: Scope, receive: Receive) -> BaseModel:
        with contextlib.ExitStack() as stack:
            place = ""

            def open_file(fields: dict[str, str]) -> Any:
                nonlocal place
                # A client that does not say where to before it sends the file has it moved across file systems.
                target = fields.get("target_path") or os.path.join(_temporary_directory(), "upload")
                place = os.path.join(stack.enter_context(files.spool(target)), "file")
                return stack.enter_context(open(place, "xb", 0))

            try:
                form = UploadForm(_Head(scope).content_type, open_file)
            except InvalidInputError:
                problems = [_problem("missing", name, "Field required") for name in ("file", "target_path")]
                raise Refusal(422, problems) from None
            try:
                await self._feed(form, receive)
            except InvalidInputError as error:
                raise Refusal(422, [_problem("value_error", "body", str(error))]) from None
            except BaseException:
                await asyncio.to_thread(stack.close)
                raise
            await asyncio.to_thread(self._finish, form, place)
            await asyncio.to_thread(stack.close)
        return abstract.UploadResponse()

    @staticmethod
    async def _feed(form: UploadForm, receive: Receive) -> None:
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
            await asyncio.to_thread(form.feed, b"".join(pieces))

    @staticmethod
    def _finish(form: UploadForm, place: str) -> None:
        form.close()
        problems = [] if form.complete else [_problem("value_error", "body", "The form has no end")]
        target = form.fields.get("target_path")
        for name, value in (("file", form.file), ("target_path", target)):
            if value is None:
                problems.append(_problem("missing", name, "Field required"))
        unzip = form.fields.get("unzip", "false").lower()
        if unzip not in _YES | _NO:
            problems.append(_problem("bool_parsing", "unzip", "Input should be a valid boolean"))
        mode = form.fields.get("mode", "")
        if mode and not (mode.isascii() and mode.isdigit() and len(mode) <= 4 and set(mode) <= set("01234567")):
            problems.append(_problem("value_error", "mode", "Input should be an octal number"))
        if problems or target is None:
            raise Refusal(422, problems)
        if unzip in _YES:
            archive.unpack(place, target)
            return
        if mode:
            os.chmod(place, int(mode, 8))
        name = os.path.basename(form.filename or "")
        files.move(place, target, name if name not in ("", ".", "..") else "upload")

    async def _download(self, scope: Scope, receive: Receive) -> Reply:
        body = await self._body(receive)
        try:
            request = await _parse(_DOWNLOAD, _Head(scope).content_type, body)
            reply: Reply = await self._service.count("download", self._open(request.path))
            return reply
        except Exception as error:
            if isinstance(error, Refusal):
                raise
            return await _failure(error)

    @staticmethod
    async def _open(path: str) -> Reply:
        file, status = await asyncio.to_thread(_open_for_reading, path)
        mode = (b"x-swerex-mode", b"%o" % stat.S_IMODE(status.st_mode))
        if file is not None:
            size = (b"content-length", b"%d" % status.st_size)
            headers = [(b"content-type", b"application/octet-stream"), (b"x-swerex-kind", b"file"), size, mode]
            return StreamReply(_read(file, status.st_size), headers)
        pieces = archive.stream(path)
        first = await anext(pieces)
        headers = [(b"content-type", b"application/zip"), (b"x-swerex-kind", b"tree"), mode]
        return StreamReply(_after(first, pieces), headers)


_YES = {"true", "1", "yes", "on", "t", "y"}
_NO = {"false", "0", "no", "off", "f", "n"}
_DOWNLOAD = TypeAdapter(DownloadRequest)
_UPLOAD = [
    inspect.Parameter("file", inspect.Parameter.KEYWORD_ONLY, annotation=UploadFile, default=File()),
    inspect.Parameter("target_path", inspect.Parameter.KEYWORD_ONLY, annotation=str, default=Form()),
    inspect.Parameter("unzip", inspect.Parameter.KEYWORD_ONLY, annotation=bool, default=Form(False)),
    inspect.Parameter(
        "mode",
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[str | None, Field(pattern="^[0-7]{0,4}$")],
        default=Form(None, description="The mode of the file, octal"),
    ),
]


class _Described:
    """An endpoint with the signature that FastAPI makes its description of."""

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
    """A route whose endpoint reads the request itself."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        endpoint = self.endpoint
        return endpoint.__call__ if isinstance(endpoint, _Described) else super().get_route_handler()


class _Head:
    """What an endpoint wants to know of a request's head."""

    __slots__ = ("content_type", "request_id")

    def __init__(self, scope: Scope):
        self.content_type = ""
        self.request_id: str | None = None
        for name, value in scope["headers"]:
            if name == b"x-request-id":
                # A long one is as good as its hash, which costs less to keep.
                short = len(value) <= 200
                self.request_id = (value.decode("latin-1") if short else hashlib.blake2b(value).hexdigest()) or None
            elif name == b"content-type":
                self.content_type = value.decode("latin-1")


async def _parse(adapter: TypeAdapter[Any] | None, content_type: str, body: bytes | bytearray) -> Any:
    """The validated request. What is wrong with it is answered as FastAPI does."""
    if adapter is None:
        return None
    kind = content_type.partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise Refusal(422, [_problem("model_attributes_type", "body", "The body has to be application/json")])
    try:
        payload = json.loads(body) if len(body) < LONG else await asyncio.to_thread(load, body)
    except (ValueError, RecursionError) as error:
        raise Refusal(422, [_problem("json_invalid", "body", f"JSON decode error: {error}")]) from None
    try:
        return adapter.validate_python(payload)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        detail = [{"type": p["type"], "loc": ["body", *p["loc"]], "msg": p["msg"]} for p in problems[:100]]
        raise Refusal(422, detail) from None


def _problem(kind: str, field: str, text: str) -> dict[str, Any]:
    return {"type": kind, "loc": ["body"] if field == "body" else ["body", field], "msg": text}


async def _digest(body: bytes | bytearray) -> bytes:
    if len(body) <= _HASHED_INLINE:
        return hashlib.blake2b(body, digest_size=16).digest()
    return await asyncio.to_thread(lambda: hashlib.blake2b(body, digest_size=16).digest())


def _dump(value: Any) -> bytes:
    """JSON in ASCII, which lone surrogates go through as escapes."""
    return json.dumps(value).encode()


async def _answer(model: BaseModel) -> Reply:
    if has_long(model.__dict__):
        return await _long(200, model.model_dump())
    try:
        body = model.__pydantic_serializer__.to_json(model)
    except Exception:  # it holds what UTF-8 cannot carry
        body = _dump(model.model_dump())
    return Reply(200, body)


async def _long(status: int, value: Any) -> Reply:
    pieces = await asyncio.to_thread(lambda: list(dump(value)))
    return Reply(status, pieces[0], more=pieces[1:])


async def _failure(error: Exception) -> Reply:
    wire = to_wire(error)
    if has_long(wire):
        return await _long(511, {"swerexception": wire})
    return Reply(511, _dump({"swerexception": wire}))


def _too_large(service: Service) -> Refusal:
    return Refusal(413, f"The server takes requests of up to {service.limits.body} bytes", [_CLOSE])


async def _unforeseen(request: Request, error: Exception) -> Response:
    reply = await _failure(error)
    return Response(reply.body, reply.status, media_type="application/json")


def _temporary_directory() -> str:
    import tempfile

    return tempfile.gettempdir()


def _open_for_reading(path: str) -> tuple[Any, os.stat_result]:
    """An open file, or None for a directory.

    Raises:
        InvalidInputError: if it is neither.
    """
    if "\0" in path:
        raise InvalidInputError(f"A path cannot hold a NUL byte: {path!r}")
    status = os.stat(path)
    if stat.S_ISDIR(status.st_mode):
        return None, status
    if not stat.S_ISREG(status.st_mode):
        raise InvalidInputError(f"Cannot download {path!r}: it is neither a file nor a directory")
    file = open(path, "rb", 0)
    return file, os.fstat(file.fileno())


async def _read(file: Any, size: int) -> AsyncGenerator[bytes, None]:
    """Exactly so many bytes of a file.

    Raises:
        OSError: if it has become shorter.
    """
    try:
        while size:
            data = await asyncio.to_thread(file.read, min(size, _FEED))
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
