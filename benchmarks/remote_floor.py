"""The servers without logic that the remote benchmark compares with: python remote_floor.py echo|local|copy|text

    echo    frames in, the same frames out: what asyncio, msgpack and two processes cost whatever a server does
    local   a frame in, a `true` in a session of LocalRuntime, a frame with the microseconds that this took out
    copy    so many bytes in or out over a socket, from memory to memory, as fast as asyncio does it
    text    the same, and the end that gets them makes one string of them

Prints its port, and serves on 127.0.0.1 until it is ended.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import time
from typing import Any

from swerex_c._core import FrameDecoder, FrameEncoder

BLOCK = bytes(256 << 10)
ORDER = struct.Struct(">cQ")
"""What a copy begins with: b"<" (to the server) or b">" (from it), and how many bytes."""


class Frames(asyncio.Protocol):
    """Both ends of a connection with frames; `frame` is for the subclass."""

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.feed = FrameDecoder().feed
        self.encode = FrameEncoder().encode

    def data_received(self, data: bytes) -> None:
        for frame in self.feed(data):
            self.frame(frame)

    def frame(self, frame: Any) -> None:
        """One frame has come."""


class Echo(Frames):
    def frame(self, frame: Any) -> None:
        self.transport.write(self.encode(frame))


class Local(Frames):
    """Carries a command out in its own process, as a server does: after a wait, in a task of its own."""

    def __init__(self) -> None:
        from swerex_c.runtime.abstract import BashAction, CreateBashSessionRequest
        from swerex_c.runtime.local import LocalRuntime

        self.runtime = LocalRuntime()
        self.request = CreateBashSessionRequest(startup_timeout=10)
        self.action = BashAction
        self.tasks: set[asyncio.Task[None]] = set()
        self.opened = False

    def frame(self, frame: Any) -> None:
        task = asyncio.get_running_loop().create_task(self.carry_out(frame[0], frame[1]))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def carry_out(self, number: int, text: str) -> None:
        if not self.opened:
            self.opened = True
            await self.runtime.create_session(self.request)
        start = time.perf_counter_ns()
        answer = await self.runtime.run_in_session(self.action(command=text, check="silent"))
        took = (time.perf_counter_ns() - start) / 1e3
        self.transport.write(self.encode([number, took, answer.output, answer.exit_code]))


class Copy(asyncio.Protocol):
    """Takes orders one after the other.  `done` is for the other end, which has sent one."""

    def __init__(self) -> None:
        self.head = b""
        self.taking = self.giving = 0
        self.paused = False
        self.done: asyncio.Future[None] | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def pause_writing(self) -> None:
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        self.give()

    def give(self) -> None:
        while self.giving and not self.paused:
            size = min(len(BLOCK), self.giving)
            self.giving -= size
            self.transport.write(BLOCK if size == len(BLOCK) else BLOCK[:size])

    def data_received(self, data: bytes) -> None:
        if self.taking:
            self.keep(data)
            self.taking -= len(data)
            if not self.taking:
                self.taken()
            return
        self.head += data
        if self.done is None and len(self.head) >= ORDER.size:
            direction, size = ORDER.unpack_from(self.head)
            rest = len(self.head) - ORDER.size
            self.head = b""
            if direction == b">":
                self.giving = size
                self.give()
            else:
                self.taking = size - rest
        elif self.done is not None:
            self.taken()

    def keep(self, data: bytes) -> None:
        """What came. A copy drops it."""

    def taken(self) -> None:
        if self.done is None:
            self.transport.write(b".")
        else:
            self.head = b""
            self.done.set_result(None)

    async def order(self, direction: bytes, size: int) -> None:
        """From the other end: send or fetch so many bytes."""
        self.done = asyncio.get_running_loop().create_future()
        self.transport.write(ORDER.pack(direction, size))
        if direction == b">":
            self.taking = size
        else:
            self.giving = size
            self.give()
        await self.done


class Text(Copy):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []

    def keep(self, data: bytes) -> None:
        self.parts.append(data.decode())

    def taken(self) -> None:
        self.text = "".join(self.parts)
        self.parts.clear()
        super().taken()


async def main(kind: str) -> None:
    server = await asyncio.get_running_loop().create_server(
        {"echo": Echo, "local": Local, "copy": Copy, "text": Text}[kind], "127.0.0.1"
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
