"""HTTP requests as they are written, and an ASGI application without a server."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.server_process import KEY, Server


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The exception of a 511."""
        assert self.status == 511, (self.status, self.body[:500])
        transfer: dict[str, Any] = self.json()["swerexception"]
        return transfer


def ask(
    server: Server,
    verb: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
    *,
    key: str | None = KEY,
) -> Answer:
    """One request on a connection of its own; `body` is JSON, or bytes, or pieces of bytes to be sent in chunks."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    sent = dict(headers or {})
    if key is not None:
        sent["X-API-Key"] = key
    if body is not None and not isinstance(body, bytes | Iterable) or isinstance(body, dict | list | str):
        body = json.dumps(body).encode()
        sent.setdefault("Content-Type", "application/json")
    try:
        connection.request(verb, path, body, sent, encode_chunked=not isinstance(body, bytes | None))
        response = connection.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


async def call(app: Any, verb: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
    """One request to an ASGI application in this event loop."""
    given = {"content-type": "application/json", "x-api-key": KEY, **(headers or {})}
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": verb,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "client": ("1.2.3.4", 1),
        "headers": [(k.lower().encode(), v.encode()) for k, v in given.items()],
    }
    messages: list[Any] = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        if messages:
            return messages.pop(0)
        await asyncio.sleep(3600)

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    headers_sent = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
    return Answer(sent[0]["status"], headers_sent, b"".join(message.get("body", b"") for message in sent[1:]))


def form(*parts: tuple[str, str | None, bytes], boundary: str = "xyz") -> tuple[bytes, dict[str, str]]:
    """A form of (name, filename, content), and the headers for it."""
    body = b""
    for name, filename, content in parts:
        of_file = f'; filename="{filename}"' if filename is not None else ""
        body += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{of_file}\r\n\r\n'.encode()
        body += content + b"\r\n"
    return body + f"--{boundary}--\r\n".encode(), {"Content-Type": f"multipart/form-data; boundary={boundary}"}


@contextlib.asynccontextmanager
async def serving(
    handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
) -> AsyncIterator[str]:
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    size = next((int(x.split(b":")[1]) for x in head.split(b"\r\n") if x.lower().startswith(b"content-length")), 0)
    return head, await reader.readexactly(size)
