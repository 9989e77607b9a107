"""Clients of servers: `RemoteRuntime` of a package with the API of SWE-ReX, and the other ends of `remote_floor.py`."""

from __future__ import annotations

import asyncio
import importlib
import itertools
import os
import socket
import subprocess
from typing import Any

from engines.base import Engine, Place
from engines.runtimes import OnUvloop, Runtime
from measuring.engine import Answer

__all__ = ["Bare", "Copy", "Echo", "Files", "Here", "Local", "Ours", "Remote", "UvloopEcho", "UvloopOurs"]


class Remote(Runtime):
    """`RemoteRuntime` of a package, over HTTP."""

    def make_runtime(self, options: dict[str, Any]) -> None:
        """Nothing yet: a client needs to know where its server is."""

    async def end(self) -> None:
        """Leave the sessions to the end of their server, which other clients use."""

    async def connect(self, place: Place, key: str) -> None:
        remote: Any = importlib.import_module(f"{self.package}.runtime.remote")
        # More than its 0.15 s, so that what is slow counts as slow and not as a wrong answer.
        self.runtime = remote.RemoteRuntime(host="http://127.0.0.1", port=place["port"], auth_token=key, timeout=10.0)


class Here(Runtime):
    """`LocalRuntime` in the client's own process."""

    async def connect(self, place: Place, key: str) -> None:
        """To nobody."""


class Ours(Remote):
    """Ours, over frames or over HTTP/JSON."""

    def __init__(self, wire: str) -> None:
        super().__init__("swerex_c")
        self.wire = wire

    async def connect(self, place: Place, key: str) -> None:
        from swerex_c.runtime.remote import RemoteRuntime

        where: dict[str, Any] = {"host": "http://127.0.0.1", **place}
        if "unix" in place:
            where = {"host": f"unix://{place['unix']}"}
        self.runtime = RemoteRuntime(auth_token=key, wire=self.wire, timeout=10.0, **where)
        await self.alive()


class UvloopOurs(OnUvloop, Ours):
    pass


async def dial(kind: Any, place: Place) -> Any:
    """The protocol of a new connection to the place."""
    loop = asyncio.get_running_loop()
    if "unix" in place:
        return (await loop.create_unix_connection(kind, place["unix"]))[1]
    return (await loop.create_connection(kind, "127.0.0.1", place["port"]))[1]


class Echo(Engine):
    """The other end of `remote_floor.py echo`: frames of the same content as ours, and nothing that keeps them."""

    run_fields: dict[str, Any] = {"command": "true", "session": "default", "check": "silent", "action_type": "bash"}

    async def connect(self, place: Place, key: str) -> None:
        from remote_floor import Frames

        waiting: dict[int, asyncio.Future[Any]] = {}

        class End(Frames):
            def frame(self, frame: Any) -> None:
                waiting.pop(frame[1]).set_result(frame)

        self.end = await dial(End, place)
        self.waiting = waiting
        self.numbers = itertools.count()
        self.create_future = asyncio.get_running_loop().create_future

    async def send(self, method: str, fields: dict[str, Any]) -> Any:
        number = next(self.numbers)
        future = self.waiting[number] = self.create_future()
        end = self.end
        end.transport.write(end.encode([1, number, method, fields, number]))
        return await future

    async def alive(self) -> bool:
        frame = await self.send("is_alive", {})
        return bool(frame[2] == "is_alive")

    async def open(self, key: str) -> None:
        """There are no sessions."""

    async def run(self, key: str, text: str) -> Answer:
        frame = await self.send("run_in_session", {**self.run_fields, "command": text})
        return "", 0 if frame[3]["command"] == text else None


class UvloopEcho(OnUvloop, Echo):
    pass


class Local(Engine):
    """The other end of `remote_floor.py local`."""

    async def connect(self, place: Place, key: str) -> None:
        from remote_floor import Frames

        waiting: list[asyncio.Future[Any]] = []

        class End(Frames):
            def frame(self, frame: Any) -> None:
                waiting.pop().set_result(frame)

        self.loop = asyncio.get_running_loop()
        self.end = await dial(End, place)
        self.waiting = waiting
        self.last = 0.0

    async def open(self, key: str) -> None:
        """There is one session, at the other end."""

    async def run(self, key: str, text: str) -> Answer:
        self.waiting.append(future := self.loop.create_future())
        self.end.transport.write(self.end.encode([1, text]))
        _, self.last, output, code = await future
        return output, code

    def took(self) -> float | None:
        return self.last


class Copy(Engine):
    """The other end of `remote_floor.py copy`, or `text`."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    async def connect(self, place: Place, key: str) -> None:
        import remote_floor

        self.end = await dial(getattr(remote_floor, self.kind), place)

    async def execute(self, text: str) -> None:
        """As many bytes as the file has that the command would print."""
        await self.end.order(b">", os.path.getsize(text.rpartition(" ")[2]))

    async def move(self, how: str, path: str, copy: str, content: str) -> None:
        await self.end.order(b">" if how in ("read", "download") else b"<", os.path.getsize(path))

    async def copied(self, copy: str) -> None:
        """There is no file."""


class Files(Engine):
    """The other end of `remote_floor.py files`."""

    async def connect(self, place: Place, key: str) -> None:
        self.sock = socket.create_connection(("127.0.0.1", place["port"]))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def move(self, how: str, path: str, copy: str, content: str) -> None:
        from remote_floor import receive_file, send_file

        size = os.path.getsize(path)
        if how == "upload":
            self.sock.sendall(f"< {size} {copy}\n".encode())
            assert self.sock.recv(1) == b"+"
            send_file(self.sock, path)
            assert self.sock.recv(1) == b"."
        else:
            self.sock.sendall(f"> {size} {path}\n".encode())
            receive_file(self.sock, copy, size)


class Bare(Engine):
    """The command in this process, by `subprocess`: what it takes without any session, limit or server."""

    async def connect(self, place: Place, key: str) -> None:
        """To nobody."""

    async def execute(self, text: str) -> Answer:
        done = subprocess.run(["/bin/sh", "-c", text], stdin=subprocess.DEVNULL, capture_output=True, check=False)
        return done.stdout.decode(errors="backslashreplace"), done.returncode
