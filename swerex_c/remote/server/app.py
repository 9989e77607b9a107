"""The HTTP/JSON server: the endpoints of SWE-ReX as a FastAPI application.

    Gate ── FastAPI's router ── handler ── RequestTable ── Service ──> runtime

`Gate` checks the key, the headers and the size of each request, whatever its path. FastAPI describes the endpoints
(OpenAPI) and finds the route; a handler then reads the request itself, because FastAPI's dependencies and response
validation would take longer than a command in a session.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import json
import logging
import os
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, MutableMapping
from email.utils import formatdate
from typing import Annotated, Any, cast

from fastapi import FastAPI, File, Form, Header, Security, UploadFile
from fastapi.routing import APIRoute
from fastapi.security import APIKeyHeader
from pydantic import BaseModel, TypeAdapter
from python_multipart.exceptions import FormParserError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

from swerex_c import models
from swerex_c._version import __version__
from swerex_c.exceptions import InvalidInputError, ServerLimitError, ServerRestartedError
from swerex_c.files import zip
from swerex_c.models import _ExceptionTransfer
from swerex_c.remote.server import auth, logs
from swerex_c.remote.server.connections import FirstHead
from swerex_c.remote.server.serve import shutdown_on_signal
from swerex_c.remote.server.service import METHODS, InvalidRequestError, Service, validate
from swerex_c.remote.wire import file_body
from swerex_c.remote.wire.exceptions import to_wire
from swerex_c.remote.wire.protocol import SERVER_HEADER, UPGRADE

__all__ = ["create_app"]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Handler = Callable[[Request], Coroutine[Any, Any, Response]]

_CLOSE = {"Connection": "close"}

_FEED = 1 << 20
"""Bytes of a form's file to read at once."""

_DRAIN_SECONDS = 5.0
"""Seconds to read the rest of a refused body, so that the client can read the refusal."""

_logger = logging.getLogger("swerex_c.server")


class DownloadRequest(BaseModel):
    """A request to read a file or a directory as it is."""

    path: str
    """Path of the file or directory; relative to the working directory of the runtime's process."""


class UploadForm(BaseModel):
    """The form in which SWE-ReX's client sends a file, or a directory as a zip archive."""

    file: UploadFile
    target_path: str
    unzip: bool = False


class HelloResponse(BaseModel):
    """The response of the root path."""

    message: str = "hello world"


class ErrorResponse(BaseModel):
    """The reason for which a request was refused."""

    detail: Any = None


class ExceptionResponse(BaseModel):
    """The exception that the runtime raised."""

    swerexception: _ExceptionTransfer


def create_app(service: Service, *, own_process: bool = False, metrics: bool = False) -> FastAPI:
    """Create the application of a service, for any ASGI server.

    It reads `service.holder` for every request, so key and runtime may be replaced. On shutdown it closes the runtime.

    Args:
        own_process: whether the process serves this application alone. The application then takes the key from the
            environment if it has none, hides it from other processes, and ends on signals as `serve.run` does.
        metrics: whether it answers /metrics.

    Raises:
        NotAvailableError: if `metrics` is set and prometheus-client is not installed.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        with shutdown_on_signal(service) if own_process else contextlib.nullcontext():
            yield
        await service.close()
        await service.requests.close()

    app = _App(
        title="swerex_c",
        version=__version__,
        description="Sessions, commands and files, by the API of SWE-ReX",
        lifespan=lifespan,
        dependencies=[Security(APIKeyHeader(name="X-API-Key", auto_error=False))],
        responses=_RESPONSES,
    )
    app.router.route_class = _Route
    for verb, path, handler, takes, gives in _Handlers(service).described():
        app.add_api_route(
            path, _Endpoint(handler, takes), methods=[verb], response_model=gives, name=path.strip("/") or "root"
        )
    if metrics:
        from swerex_c.remote.server.metrics import endpoint

        app.add_route("/metrics", endpoint(service), include_in_schema=False)
    app.add_exception_handler(Exception, _unforeseen)
    app.add_middleware(Gate, service=service, own_process=own_process)
    app.state.service = service
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


class _Endpoint:
    """A handler with a signature, from which FastAPI makes the OpenAPI description."""

    def __init__(self, handler: Handler, takes: Any):
        self.handler = handler
        if not isinstance(takes, dict):
            takes = {} if takes is None else {"request": (takes, inspect.Parameter.empty)}
        self.__signature__ = inspect.Signature(
            [
                inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=kind, default=default)
                for name, (kind, default) in takes.items()
            ]
        )

    async def __call__(self) -> None:
        """Make the object a coroutine function for FastAPI; the route calls `handler`."""


class _Route(APIRoute):
    """A route whose endpoint reads the request itself, if it is an `_Endpoint`."""

    def get_route_handler(self) -> Handler:
        endpoint = self.endpoint
        return endpoint.handler if isinstance(endpoint, _Endpoint) else super().get_route_handler()


class Gate:
    """Middleware that checks the key, the headers and the size of each request, and logs the request.

    It admits the connection of a request with the key, if the server is ours and so passes the `FirstHead` on.
    """

    def __init__(self, app: Any, service: Service, own_process: bool):
        self._app = app
        self._own_process = own_process
        self._service = service
        self._instance_header: tuple[bytes, bytes] = (SERVER_HEADER.lower().encode(), service.instance_id.encode())
        self._single_headers = (
            b"x-api-key", b"content-length", b"transfer-encoding", b"content-type", b"x-request-id",
            self._instance_header[0],
        )  # fmt: skip
        """Names of the request headers that are read; each may occur once."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": ""})
        else:
            await self._logged(scope, receive, send)

    async def _logged(self, scope: Scope, receive: Receive, send: Send) -> None:
        begin = time.perf_counter()
        status = 0

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                named = [*message.get("headers", ()), self._instance_header]
                if not self._own_process:  # other ASGI servers do this themselves
                    named.append((b"date", formatdate(usegmt=True).encode()))
                message["headers"] = named
            await send(message)

        try:
            await self._answer(scope, receive, send_named)
        finally:
            logs.answered(scope, status, time.perf_counter() - begin)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", ""))
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._service.limits.body and path != "/upload":
                await _drain(receive)
                raise _too_large(self._service)
            return message

        try:
            self._check(scope, path)
        except HTTPException as refusal:
            if refusal.headers is _CLOSE:
                await _drain(receive)
            await _refusal(refusal)(scope, receive, send)
        except (ServerLimitError, ServerRestartedError) as error:
            await _failure(error, _CLOSE)(scope, receive, send)
        else:
            with contextlib.suppress(ClientDisconnect):
                await self._app(scope, counted, send)

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
                    raise HTTPException(400, f"The header {name.decode()} may come only once", _CLOSE)
                found[name] = value
        refused = service.refusal(found[b"x-api-key"])
        if refused is not None:
            raise HTTPException(*refused, _CLOSE)
        connection: FirstHead | None = scope.get("state", {}).get("connection")
        if connection is not None:
            connection.admit()
        size = found[b"content-length"]
        if size is not None and found[b"transfer-encoding"] is not None:
            raise HTTPException(400, "Content-Length and Transfer-Encoding exclude each other", _CLOSE)
        instance_id = found[self._instance_header[0]]
        if instance_id is not None and instance_id != self._instance_header[1]:
            raise ServerRestartedError(
                "The server is not the one that the request was first sent to: it was restarted, "
                "and whether the request was carried out before is not known"
            )
        if size is not None and path != "/upload" and int(size) > service.limits.body:
            raise _too_large(service)
        if path == "/wire":
            raise HTTPException(426, f"Upgrade to {UPGRADE}", {"Upgrade": UPGRADE, "Connection": "upgrade"})


class _Handlers:
    """The handlers of a service's endpoints."""

    def __init__(self, service: Service):
        self._service = service

    def described(self) -> list[tuple[str, str, Handler, Any, Any]]:
        """Return verb, path, handler, request type and response model of each endpoint."""
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

    def _method(self, name: str, takes: Any, gives: Any) -> tuple[str, str, Handler, Any, Any]:
        async def handler(request: Request) -> Response:
            return await self._call(name, request)

        return "POST", "/" + name, handler, takes, gives

    async def _root(self, request: Request) -> Response:
        return _answer(HelloResponse())

    async def _is_alive(self, request: Request) -> Response:
        return await _outcome(self._service.call("is_alive", None))

    async def _call(self, method: str, request: Request) -> Response:
        body = await request.body()
        request_id = _request_id(request)

        async def work() -> Response:
            return await _outcome(self._execute(method, request, body))

        if request_id is None:
            return await work()
        keep = method != "read_file"  # which is safe to repeat
        return await _once(self._service.requests.run(request_id, hash((method, body)), work, _size, keep=keep))

    async def _execute(self, method: str, request: Request, body: bytes) -> BaseModel:
        return await self._service.call(method, _parse(METHODS[method], request, body))

    async def _cancel(self, request: Request) -> Response:
        request_id = _request_id(request)
        if request_id is None:
            raise _invalid([{"type": "missing", "loc": ["header", "x-request-id"], "msg": "Field required"}])
        await self._service.requests.cancel(request_id)
        return _json(200, {})

    # Files

    async def _upload(self, request: Request) -> Response:
        return await _outcome(self._service.count("upload", lambda: self._store(request)))

    @staticmethod
    async def _store(request: Request) -> BaseModel:
        headers = request.headers
        if file_body.TARGET in headers:
            target, name = _text(headers[file_body.TARGET]), _text(headers.get(file_body.NAME, '"upload"'))
            unpack = file_body.unpacker(headers)
            await file_body.store(request.stream(), target, unpack, headers.get(file_body.MODE), _base(name))
            return models.UploadResponse()
        kind = headers.get("content-type", "")
        if kind.partition(";")[0].strip().lower() != "multipart/form-data":
            raise _invalid([_problem("missing", (name,), "Field required") for name in ("file", "target_path")])
        try:
            async with request.form(max_files=1, max_fields=8) as fields:
                form = _validated(_FORM, dict(fields))
                pieces, unpack = _pieces(form.file), zip.unpack if form.unzip else None
                await file_body.store(pieces, form.target_path, unpack, None, _base(form.file.filename or ""))
        except (HTTPException, FormParserError) as error:  # old versions of Starlette raise what the parser did
            if isinstance(error, HTTPException) and error.status_code != 400:
                raise
            detail = error.detail if isinstance(error, HTTPException) else error
            raise _invalid([_problem("value_error", (), f"The form cannot be read: {detail}")]) from None
        return models.UploadResponse()

    async def _download(self, request: Request) -> Response:
        path = _parse(_DOWNLOAD, request, await request.body()).path
        stream = self._stream(path)
        try:
            headers: Any = await anext(stream)
        except Exception as error:
            return _failure(error)
        return _Download(stream, headers=headers, media_type="application/octet-stream")

    async def _stream(self, path: str) -> AsyncGenerator[Any, None]:
        """Yield the headers of a download, then its body, counted as one request until the body is sent."""
        with self._service.counted("download"):
            async with file_body.open_source(path) as (headers, size, pieces):
                yield headers if size is None else {**headers, "Content-Length": str(size)}
                try:
                    async for piece in pieces:
                        yield piece
                except Exception as error:
                    _logger.warning("A download ended early: %s", error)
                    raise ClientDisconnect from None  # the body stays incomplete, which the client notices


class _Download(StreamingResponse):
    """A body that is closed with the response; old versions of Starlette leave it to the garbage collector."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with contextlib.aclosing(cast("AsyncGenerator[Any, None]", self.body_iterator)):
            await super().__call__(scope, receive, send)


_DOWNLOAD = TypeAdapter(DownloadRequest)
_FORM = TypeAdapter(UploadForm)
_CANCEL = {
    "x_request_id": (
        Annotated[str, Header(min_length=1, description="That of the request to end")],
        inspect.Parameter.empty,
    )
}
_UPLOAD = {"file": (UploadFile, File()), "target_path": (str, Form()), "unzip": (bool, Form(False))}


async def _drain(receive: Receive) -> None:
    """Read the rest of a refused body for some time, because a client that is still sending may not read."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            while (message := await receive())["type"] == "http.request" and message.get("more_body"):
                pass


def _request_id(request: Request) -> str | None:
    name = request.headers.get("x-request-id", "")
    # The hash of a long id identifies it as well and takes less memory.
    return (name if len(name) <= 200 else hashlib.blake2b(name.encode("latin-1")).hexdigest()) or None


def _parse(adapter: TypeAdapter[Any] | None, request: Request, body: bytes) -> Any:
    """Return the validated request; raise an HTTPException with problems in the format of FastAPI."""
    if adapter is None:
        return None
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise _invalid([_problem("model_attributes_type", (), "The body has to be application/json")])
    try:
        payload = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise _invalid([_problem("json_invalid", (), f"JSON decode error: {error}")]) from None
    return _validated(adapter, payload)


def _validated(adapter: TypeAdapter[Any], payload: Any) -> Any:
    try:
        return validate(adapter, payload)
    except InvalidRequestError as error:
        raise _invalid([{**problem, "loc": ["body", *problem["loc"]]} for problem in error.problems]) from None


def _invalid(problems: Any) -> HTTPException:
    return HTTPException(422, problems)


def _problem(kind: str, where: tuple[str, ...], text: str) -> dict[str, Any]:
    return {"type": kind, "loc": ["body", *where], "msg": text}


def _text(value: str) -> str:
    """Return the text that a header contains as JSON."""
    try:
        text = json.loads(value)
    except (ValueError, RecursionError):
        text = None
    if not isinstance(text, str):
        raise HTTPException(422, f"A header of the upload is not a JSON string: {value[:200]}")
    return text


def _base(name: str) -> str:
    base = os.path.basename(name)
    return base if base not in ("", ".", "..") else "upload"


async def _pieces(file: UploadFile) -> AsyncIterator[bytes]:
    while data := await file.read(_FEED):
        yield data


async def _outcome(work: Awaitable[BaseModel]) -> Response:
    """Return the response for what `work` returns or raises."""
    try:
        return _answer(await work)
    except HTTPException as refusal:
        return _refusal(refusal)
    except ClientDisconnect:
        raise
    except Exception as error:
        return _failure(error)


async def _once(response: Awaitable[Response]) -> Response:
    try:
        return await response
    except Exception as error:  # of the table
        return _failure(error)


def _size(response: Response) -> int:
    return len(response.body)


def _json(status: int, value: Any, headers: dict[str, str] | None = None) -> Response:
    """Return a response in ASCII JSON, in which lone surrogates are escapes."""
    return Response(json.dumps(value).encode(), status, headers, "application/json")


def _answer(model: BaseModel) -> Response:
    try:
        return Response(model.__pydantic_serializer__.to_json(model), media_type="application/json")
    except Exception:  # it holds lone surrogates, which UTF-8 cannot encode
        return _json(200, model.model_dump())


def _failure(error: Exception, headers: dict[str, str] | None = None) -> Response:
    return _json(511, {"swerexception": to_wire(error)}, headers)


def _refusal(error: HTTPException) -> Response:
    return _json(error.status_code, {"detail": error.detail}, dict(error.headers or {}))


def _too_large(service: Service) -> HTTPException:
    return HTTPException(413, f"The server takes requests of up to {service.limits.body} bytes", _CLOSE)


async def _unforeseen(request: Request, error: Exception) -> Response:
    return _failure(error)
