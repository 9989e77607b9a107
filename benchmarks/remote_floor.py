"""The servers without logic that others are compared with: remote_floor.py echo|local|copy|text|http|files [SOCKET]

    echo    frames in, the same frames out: what asyncio, msgpack and two processes cost whatever a server does
    local   a frame in, a `true` in a session of LocalRuntime, a frame with the microseconds that this took out
    copy    so many bytes in or out over a socket, from memory to memory, as fast as asyncio does it
    text    the same, and the end that gets them makes one string of them
    files   the copy with files at both ends: read, sent, received, and written by a thread of its own; no event loop
    http    what the original's client asks, answered without a look at it: what HTTP and that client cost by themselves

Prints its port, and serves on 127.0.0.1, and on a unix socket of that name (not files), until it is ended. On
uvloop if ", uvloop" stands behind the word (not files).
"""

from __future__ import annotations

import asyncio
import queue
import re
import socket
import socketserver
import struct
import sys
import threading
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
            self.take(data)
            return
        self.head += data
        if self.done is None and len(self.head) >= ORDER.size:
            direction, size = ORDER.unpack_from(self.head)
            rest, self.head = self.head[ORDER.size :], b""
            if direction == b">":
                self.giving = size
                self.give()
            else:
                self.taking = size
                self.take(rest)
        elif self.done is not None:
            self.taken()

    def take(self, data: bytes) -> None:
        self.keep(data)
        self.taking -= len(data)
        if not self.taking:
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


def send_file(sock: socket.socket, path: str) -> None:
    block = bytearray(BLOCK)
    with open(path, "rb", buffering=0) as file:
        while size := file.readinto(block):
            sock.sendall(memoryview(block)[:size])


def receive_file(sock: socket.socket, path: str, size: int) -> None:
    """One thread receives while another writes."""
    empty: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
    full: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
    for _ in range(8):
        empty.put(bytearray(len(BLOCK)))

    def write() -> None:
        with open(path, "wb", buffering=0) as file:
            while (data := full.get()) is not None:
                file.write(data)
                empty.put(data.obj)  # type: ignore[arg-type]

    writer = threading.Thread(target=write)
    writer.start()
    while size:
        block = memoryview(empty.get())[:size]
        have = 0
        while have < len(block) and (came := sock.recv_into(block[have:])):
            have += came
        size = size - have if have == len(block) else 0
        full.put(block[:have])
    full.put(None)
    writer.join()


class Files(socketserver.StreamRequestHandler):
    """Orders as for `Copy`, each with a line that names the file."""

    def handle(self) -> None:
        self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while order := self.rfile.readline():
            direction, size, path = order.decode().rstrip("\n").split(" ", 2)
            if direction == ">":
                send_file(self.request, path)
            else:
                self.request.sendall(b"+")  # from now on no line is read: nothing of the file is taken for one
                receive_file(self.request, path, int(size))
                self.request.sendall(b".")


def serve_files() -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Files) as server:
        server.daemon_threads = True
        print(server.server_address[1], flush=True)
        server.serve_forever()


class Http(asyncio.Protocol):
    """One request, one answer, and the end of the connection, which the original's client wants."""

    ANSWERS = {
        b"/is_alive": b'{"is_alive":true,"message":""}',
        b"/create_session": b'{"output":"","session_type":"bash"}',
        b"/run_in_session": (
            b'{"session_type":"bash","output":"","exit_code":0,"failure_reason":"","expect_string":""}'
        ),
    }

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        head, found, body = self.data.partition(b"\r\n\r\n")
        size = re.search(rb"(?i)content-length: *(\d+)", head)
        if not found or len(body) < (int(size[1]) if size else 0):
            return
        answer = self.ANSWERS[head.split(b" ", 2)[1]]
        self.transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s"
            % (len(answer), answer)
        )
        self.transport.close()


async def main(kind: str, unix: str) -> None:
    loop = asyncio.get_running_loop()
    protocol = {"echo": Echo, "local": Local, "copy": Copy, "text": Text, "http": Http}[kind]
    server = await loop.create_server(protocol, "127.0.0.1")
    beside = await loop.create_unix_server(protocol, unix) if unix else None
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.gather(*(it.serve_forever() for it in (server, beside) if it))


def serve(kind: str, unix: str) -> None:
    factory = None
    if kind.endswith(", uvloop"):
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main(kind.removesuffix(", uvloop"), unix))


if __name__ == "__main__":
    if sys.argv[1] == "files":
        serve_files()
    else:
        serve(sys.argv[1], "".join(sys.argv[2:3]))
