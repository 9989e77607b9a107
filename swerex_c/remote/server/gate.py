"""The gate before the HTTP/JSON application: it checks the key, the headers and the size of each request.

A refused request never reaches the application, whatever its path. The gate also logs the requests, and fails the
start of an application without a key.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Callable
from email.utils import formatdate
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from swerex_c.exceptions import InvalidInputError, RuntimeClosedError, ServerRestartedError, SwerexException
from swerex_c.remote.server import auth, logs
from swerex_c.remote.server.service import Service
from swerex_c.remote.wire.exceptions import to_wire
from swerex_c.remote.wire.protocol import REQUEST_HEADER, SERVER_HEADER, UPGRADE

__all__ = ["Gate", "failure", "json_response"]

_CLOSE = {"Connection": "close"}

_DRAIN_SECONDS = 5.0
"""Seconds to read the rest of a refused body, so that the client can read the refusal."""


class Gate:
    """ASGI middleware that lets only requests with the key pass; see `create_app` for the arguments.

    The server of this package passes `FirstHead.admit` in the scope, and the gate admits the connection.
    """

    def __init__(self, app: Any, service: Service, own_process: bool):
        self._app = app
        self._own_process = own_process
        self._service = service
        self._instance_header: tuple[bytes, bytes] = (SERVER_HEADER.lower().encode(), service.instance_id.encode())
        self._single_headers = (
            b"x-api-key", b"content-length", b"transfer-encoding", b"content-type", b"x-request-id",
            REQUEST_HEADER.lower().encode(), self._instance_header[0],
        )  # fmt: skip
        """Names of the request headers that are read; each may occur once."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": ""})
        else:
            await self._serve_http(scope, receive, send)

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._require_key()
        except InvalidInputError as error:
            await receive()
            await send({"type": "lifespan.startup.failed", "message": str(error)})
        else:
            await self._app(scope, receive, send)

    def _require_key(self) -> None:
        holder = self._service.holder
        if self._own_process and not holder.AUTH_TOKEN and auth.VARIABLE in os.environ:
            holder.AUTH_TOKEN = auth.checked(os.environ.pop(auth.VARIABLE), auth.VARIABLE)
        if not holder.AUTH_TOKEN:
            raise InvalidInputError(
                f"A key is needed: set the variable {auth.VARIABLE}, or AUTH_TOKEN before the start"
            )
        if self._own_process:
            auth.hide(holder.AUTH_TOKEN)
            auth.protect()

    async def _serve_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        admit: Callable[[], None] | None = scope.get("state", {}).get("admit")
        begin = time.perf_counter()
        status = 0
        task = asyncio.current_task()
        assert task is not None

        async def send_named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                named = [*message.get("headers", ()), self._instance_header]
                if admit is not None:  # other ASGI servers do this themselves
                    named.append((b"date", formatdate(usegmt=True).encode()))
                message["headers"] = named
            await send(message)

        self._service.http_tasks.add(task)
        try:
            path = scope["path"].removeprefix(scope.get("root_path", ""))
            try:
                self._check(scope, path, admit)
            except (HTTPException, SwerexException) as error:
                refused = failure(error, _CLOSE)
                if refused.headers["connection"] == "close":
                    await _drain(receive)
                await refused(scope, receive, send_named)
            else:
                with contextlib.suppress(ClientDisconnect):
                    await self._app(scope, self._counted(path, receive), send_named)
        except asyncio.CancelledError:
            if not self._service.ending:
                raise
            if not status:
                ends = RuntimeClosedError("The server ended before its response: the request may have been carried out")
                await failure(ends, _CLOSE)(scope, receive, send_named)
        finally:
            self._service.http_tasks.discard(task)
            logs.answered(scope, status, time.perf_counter() - begin)

    def _check(self, scope: Scope, path: str, admit: Callable[[], None] | None) -> None:
        """Raise why a request may not pass."""
        service = self._service
        found = dict.fromkeys(self._single_headers)
        for name, value in scope["headers"]:
            if name in found:
                if found[name] is not None:  # a proxy may have read the other one, or it is a trailer
                    raise HTTPException(400, f"The header {name.decode()} may come only once")
                found[name] = value
        if (reason := service.refusal(found[b"x-api-key"])) is not None:
            raise HTTPException(*reason)
        if admit is not None:
            admit()
        size = found[b"content-length"]
        if size is not None and found[b"transfer-encoding"] is not None:
            raise HTTPException(400, "Content-Length and Transfer-Encoding exclude each other")
        if found[self._instance_header[0]] not in (None, self._instance_header[1]):
            msg = (
                "The server is not the one that the request was first sent to: it was restarted, "
                "and whether the request was carried out before is not known"
            )
            raise ServerRestartedError(msg)
        if size is not None and path != "/upload" and int(size) > service.limits.body:
            raise self._too_large()
        if path == "/wire":
            raise HTTPException(426, f"Upgrade to {UPGRADE}", {"Upgrade": UPGRADE, "Connection": "upgrade"})

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"The server takes requests of up to {self._service.limits.body} bytes", _CLOSE)

    def _counted(self, path: str, receive: Receive) -> Receive:
        """Return a `receive` that refuses a body which is too large; those of uploads have no limit."""
        received = 0

        async def counted() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._service.limits.body:
                await _drain(receive)
                raise self._too_large()
            return message

        return receive if path == "/upload" else counted


async def _drain(receive: Receive) -> None:
    """Read the rest of a refused body for some time, because a client that is still sending may not read."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_SECONDS):
            while (message := await receive())["type"] == "http.request" and message.get("more_body"):
                pass


def json_response(status: int, value: Any, headers: dict[str, str] | None = None) -> Response:
    """Return a response in ASCII JSON, in which lone surrogates are escapes."""
    return Response(json.dumps(value).encode(), status, headers, "application/json")


def failure(error: Exception, headers: dict[str, str] | None = None) -> Response:
    """Return the response that carries an exception, or that says why a request is refused: an HTTPException."""
    if isinstance(error, HTTPException):
        return json_response(error.status_code, {"detail": error.detail}, dict(error.headers or headers or {}))
    return json_response(511, {"swerexception": to_wire(error)}, headers)
