"""The HTTP/JSON server: the endpoints of SWE-ReX as an ASGI application.

    Gate ── Starlette's router ── handler ── RequestTable ── Service ──> runtime

A handler reads and validates its request itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import signal
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import Any, cast

from pydantic import BaseModel, TypeAdapter
from python_multipart.exceptions import FormParserError
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from swerex_c import models
from swerex_c.files import zip
from swerex_c.files.staging import Staging
from swerex_c.files.writing import copy_contents
from swerex_c.remote.server.gate import Gate, failure, json_response
from swerex_c.remote.server.process import first_signal
from swerex_c.remote.server.service import METHODS, STREAMING_METHODS, InvalidRequestError, Service, problem, validate
from swerex_c.remote.wire import file_transfer
from swerex_c.remote.wire.protocol import REQUEST_HEADER
from swerex_c.utils.threads import in_thread_settled

__all__ = ["create_app"]

Handler = Callable[[Request], Coroutine[Any, Any, Any]]
"""Function that returns the response to a request, or its model."""

_GRACEFUL_SECONDS = 5.0
"""Maximum number of seconds from a signal to the end of the process."""

_END_SECONDS = 2.0
"""Seconds that a cancelled request waits for the thread that saves its form."""

_logger = logging.getLogger("swerex_c.server")


class _UploadForm(BaseModel, arbitrary_types_allowed=True):
    """The form in which SWE-ReX's client sends a file, or a directory as a zip archive."""

    file: UploadFile
    target_path: str
    unzip: bool = False


def create_app(service: Service, *, own_process: bool = False, metrics: bool = False) -> Starlette:
    """Create the application of a service, for any ASGI server.

    It reads `service.holder` for every request, so key and runtime may be replaced. On shutdown it closes the runtime.

    Args:
        own_process: whether the process serves this application alone. The application then takes the key from the
            environment if it has none, hides it from other processes, and ends on signals as `process.run` does.
        metrics: whether it answers /metrics.

    Raises:
        NotAvailableError: if `metrics` is set and prometheus-client is not installed.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        with _shutdown_on_signal(service) if own_process else contextlib.nullcontext():
            yield
        await service.close()

    app = Starlette(
        routes=_Handlers(service).routes(), lifespan=lifespan, exception_handlers={HTTPException: _no_endpoint}
    )
    if metrics:
        from swerex_c.remote.server.metrics import endpoint

        app.add_route("/metrics", endpoint(service))
    app.add_middleware(Gate, service=service, own_process=own_process)
    return app


@contextlib.contextmanager
def _shutdown_on_signal(service: Service) -> Iterator[None]:
    """Shut the service down on a signal, then call the ASGI server's handler, which waits for open requests.

    It would wait for a client that stalls in the middle of a request, too: such requests are cancelled in time.
    """
    tasks: list[asyncio.Task[None]] = []
    numbers: list[int] = []
    if threading.current_thread() is threading.main_thread():  # others cannot handle signals
        numbers = [number for number in (signal.SIGTERM, signal.SIGINT) if callable(signal.getsignal(number))]

    def begin() -> None:
        seconds = _GRACEFUL_SECONDS * 0.8
        tasks.append(asyncio.create_task(service.shutdown(seconds)))
        asyncio.get_running_loop().call_later(seconds, cancel_requests)

    def cancel_requests() -> None:
        for task in service.http_tasks:
            task.cancel()

    with first_signal(numbers, begin, _GRACEFUL_SECONDS, chain=True):
        yield


class _Handlers:
    """The handlers of a service's endpoints."""

    def __init__(self, service: Service):
        self._service = service

    def routes(self) -> list[Route]:
        handlers: dict[str, Handler] = {"": self._root, **{name: partial(self._call, name) for name in METHODS}}
        handlers |= {"upload": self._upload, "download": self._download, "cancel": self._cancel}
        return [
            Route(f"/{path}", partial(_respond, handler), methods=["GET" if path in ("", "is_alive") else "POST"])
            for path, handler in handlers.items()
        ]

    async def _root(self, request: Request) -> Any:
        return json_response(200, {"message": "hello world"})

    async def _call(self, method: str, request: Request) -> Any:
        body = await request.body()

        async def work() -> Response:
            # The table keeps a response. It would not count the memory that an exception holds.
            return await _outcome(self._execute(method, request, body))

        request_id = _request_id(request)
        if request_id is None:
            return await work()
        keep = method not in ("is_alive", "read_file")  # which are safe to repeat
        return await self._service.requests.run(request_id, work, keep=keep)

    async def _execute(self, method: str, request: Request, body: bytes) -> BaseModel:
        with self._service.counted(method):
            return await self._service.call(method, _parse(METHODS[method], request, body))

    async def _cancel(self, request: Request) -> Any:
        request_id = _request_id(request)
        if request_id is None:
            missing = {"type": "missing", "loc": ["header", "x-request-id"], "msg": "Field required"}
            return json_response(422, {"detail": [missing]})
        await self._service.requests.cancel(request_id)
        return json_response(200, {})

    # Files

    async def _upload(self, request: Request) -> Any:
        with self._service.counted("upload"):
            if (target := request.headers.get(file_transfer.TARGET)) is not None:
                await file_transfer.receive(request.stream(), _text(target))
                return models.UploadResponse()
            kind = request.headers.get("content-type", "")
            if kind.partition(";")[0].strip().lower() != "multipart/form-data":
                validate(_FORM, {})  # to say what is missing
            try:
                async with request.form(max_files=1, max_fields=8) as fields:
                    await in_thread_settled(_END_SECONDS, _save, validate(_FORM, dict(fields)))
            except (HTTPException, FormParserError) as error:  # old versions of Starlette raise the latter
                text = f"The form cannot be read: {getattr(error, 'detail', error)}"
                raise InvalidRequestError([problem("value_error", (), text)]) from None
            return models.UploadResponse()

    async def _download(self, request: Request) -> Any:
        stream = self._stream(_parse(STREAMING_METHODS["download"], request, await request.body()).path)
        await anext(stream)  # raises the errors of opening
        return _Download(stream, media_type="application/octet-stream")

    async def _stream(self, path: str) -> AsyncGenerator[bytes, None]:
        """Yield nothing once the source is open, then the body of a download; it counts as a request until then."""
        with self._service.counted("download"):
            async with file_transfer.open_stream(path) as pieces:
                yield b""
                try:
                    async for piece in pieces:
                        yield piece
                except Exception as error:
                    _logger.warning("A download ended early: %s", error)
                    raise ClientDisconnect from None  # the body stays incomplete, which the client notices


class _Download(StreamingResponse):
    """A body that is closed with the response, which old versions of Starlette leave to the garbage collector."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async with contextlib.aclosing(cast("AsyncGenerator[Any, None]", self.body_iterator)):
            await super().__call__(scope, receive, send)


_FORM = TypeAdapter(_UploadForm)


def _request_id(request: Request) -> bytes | None:
    name = request.headers.get(REQUEST_HEADER) or request.headers.get("x-request-id", "")
    return hashlib.blake2b(name.encode("latin-1")).digest() if name else None  # of limited size


def _parse(adapter: TypeAdapter[Any] | None, request: Request, body: bytes) -> Any:
    if adapter is None:
        return None
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise InvalidRequestError([problem("model_attributes_type", (), "The body has to be application/json")])
    try:
        payload = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError([problem("json_invalid", (), f"JSON decode error: {error}")]) from None
    return validate(adapter, payload)


def _text(value: str) -> str:
    try:
        text = json.loads(value)
    except (ValueError, RecursionError):
        text = None
    if not isinstance(text, str):
        raise HTTPException(422, f"A header of the upload is not a JSON string: {value[:200]}")
    return text


def _save(form: _UploadForm) -> None:
    with Staging(form.target_path) as staging:
        if form.unzip:
            zip.unpack(form.file.file, staging)
        else:
            with staging.file("") as fd:
                copy_contents(form.file.file, fd)
        staging.commit(form.file.filename)


async def _respond(handler: Handler, request: Request) -> Response:
    return await _outcome(handler(request))


async def _outcome(work: Awaitable[Any]) -> Response:
    """Return the response for what `work` returns or raises."""
    try:
        result = await work
    except ClientDisconnect:
        raise
    except InvalidRequestError as error:
        return json_response(422, {"detail": [{**each, "loc": ["body", *each["loc"]]} for each in error.problems]})
    except Exception as error:
        return failure(error)
    if isinstance(result, Response):
        return result
    try:
        return Response(result.__pydantic_serializer__.to_json(result), media_type="application/json")
    except Exception:  # it holds lone surrogates, which UTF-8 cannot encode
        return json_response(200, result.model_dump())


async def _no_endpoint(request: Request, error: Exception) -> Response:
    return failure(error)
