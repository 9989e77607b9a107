"""HTTP requests as they are written, and their answers."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from tests.support.server_process import KEY


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


def ask(server: Any, verb: str, path: str, body: Any = None, headers: Any = None, *, key: str | None = KEY) -> Answer:
    """Send one request on a connection of its own; `body` is JSON, bytes, or pieces to be sent in chunks."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    sent = dict(headers or {})
    if key is not None:
        sent["X-API-Key"] = key
    if isinstance(body, dict | list | str):
        body = json.dumps(body).encode()
        sent.setdefault("Content-Type", "application/json")
    try:
        connection.request(verb, path, body, sent, encode_chunked=not isinstance(body, bytes | None))
        response = connection.getresponse()
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
    finally:
        connection.close()


def form(*parts: tuple[str, str | None, bytes], boundary: str = "xyz") -> tuple[bytes, dict[str, str]]:
    """Return a form of (name, filename, content), and its headers."""
    body = b""
    for name, filename, content in parts:
        of_file = f'; filename="{filename}"' if filename is not None else ""
        body += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"{of_file}\r\n\r\n'.encode()
        body += content + b"\r\n"
    return body + f"--{boundary}--\r\n".encode(), {"Content-Type": f"multipart/form-data; boundary={boundary}"}


@contextlib.asynccontextmanager
async def serving(handle: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]) -> AsyncIterator[str]:
    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def read_request(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    size = next((int(x.split(b":")[1]) for x in head.split(b"\r\n") if x.lower().startswith(b"content-length")), 0)
    return head, await reader.readexactly(size)
