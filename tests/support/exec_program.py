"""Programs of a pod for tests, which are processes of this machine, behind the exec protocol of Kubernetes.

In `v5.channel.k8s.io` over WebSocket the first byte of a message is its channel: 0 is standard input, 1 and 2 are the
outputs, 3 is the status at the end, 4 the terminal's size, and 255 says that another channel is at its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import struct
import subprocess
import termios
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

from tests.support.wait import until_ready

STDIN, STDOUT, STDERR, STATUS, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
PIECE = 32768


class ExecProgram:
    """One exec: a program of this machine, and the connection that carries its streams."""

    def __init__(
        self, socket: web.WebSocketResponse, request: web.Request, directory: Path, all: set[subprocess.Popen[bytes]]
    ) -> None:
        self.socket, self.directory, self.all = socket, directory, all
        self.argv = request.query.getall("command")
        self.tty = request.query.get("tty") == "true"
        self.input = request.query.get("stdin") == "true"
        self.writing = asyncio.Lock()
        self.terminal: int | None = None

    async def run(self) -> None:
        try:
            program = self._start()
        except OSError as error:
            await self.end(126, f"{self.argv[0]}: {error.strerror}", {"reason": "InternalError"})
            return
        self.all.add(program)
        if self.tty:
            assert self.terminal is not None
            outputs = [asyncio.ensure_future(self._carry(self.terminal, STDOUT))]
        else:
            assert program.stdout is not None and program.stderr is not None
            outputs = [
                asyncio.ensure_future(self._carry(program.stdout.fileno(), STDOUT)),
                asyncio.ensure_future(self._carry(program.stderr.fileno(), STDERR)),
            ]
        typed = asyncio.ensure_future(self._typed(program))
        try:
            code = await asyncio.to_thread(program.wait)
            # What was printed before the end arrives before the status.
            await asyncio.wait(outputs, timeout=0.2 if self.tty else 2)
            await self.end(code if code >= 0 else 128 - code)
        finally:
            for task in (typed, *outputs):
                task.cancel()
            await asyncio.gather(typed, *outputs, return_exceptions=True)
            self.all.discard(program)
            self._close(program)

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {"PATH": os.environ["PATH"], "HOME": str(self.directory), "HOSTNAME": self.directory.name}
        if not self.tty:
            return subprocess.Popen(
                self.argv,
                stdin=subprocess.PIPE if self.input else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self.directory,
                env=environment,
                start_new_session=True,
            )
        self.terminal, inner = pty.openpty()
        os.set_blocking(self.terminal, False)
        # A terminal of its own takes a process between: what is started here may not run code before its program.
        helper = 'exec 3<&- <>"$0" >&0 2>&0; exec "$@"'
        try:
            return subprocess.Popen(
                ["sh", "-c", helper, os.ttyname(inner), *self.argv],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=inner,
                cwd=self.directory,
                env={**environment, "TERM": "xterm"},
                start_new_session=True,
            )
        finally:
            os.close(inner)

    def _close(self, program: subprocess.Popen[bytes]) -> None:
        for stream in (program.stdin, program.stdout, program.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        if self.terminal is not None:
            os.close(self.terminal)

    async def _carry(self, fd: int, channel: int) -> None:
        os.set_blocking(fd, False)
        while True:
            await until_ready(fd)
            try:
                data = os.read(fd, PIECE)
            except BlockingIOError:
                continue
            except OSError:
                return
            if not data:
                return
            await self._send(channel, data)

    async def _typed(self, program: subprocess.Popen[bytes]) -> None:
        async for message in self.socket:
            if message.type != WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel == STDIN and data:
                await self._write(program, data)
            elif channel == CLOSE and data and data[0] == STDIN and program.stdin is not None:
                with contextlib.suppress(OSError):
                    program.stdin.close()
            elif channel == RESIZE and self.terminal is not None:
                size = json.loads(data)
                fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size["Height"], size["Width"], 0, 0))
        # The client is gone: as in a cluster, the program stays, and its input is at its end.
        if program.stdin is not None:
            with contextlib.suppress(OSError):
                program.stdin.close()

    async def _write(self, program: subprocess.Popen[bytes], data: bytes) -> None:
        fd = self.terminal if self.terminal is not None else program.stdin.fileno() if program.stdin else -1
        while data:
            try:
                os.set_blocking(fd, False)
                data = data[os.write(fd, data) :]
            except BlockingIOError:
                await until_ready(fd, write=True)
            except (OSError, ValueError):
                return

    async def _send(self, channel: int, data: bytes) -> None:
        async with self.writing:
            with contextlib.suppress(ConnectionError):
                await self.socket.send_bytes(bytes([channel]) + data)

    async def end(self, code: int, message: str = "", more: dict[str, Any] | None = None) -> None:
        status: dict[str, Any] = {"metadata": {}, "status": "Success"}
        if code:
            causes = [{"reason": "ExitCode", "message": str(code)}]
            message = message or f"command terminated with non-zero exit code: {code}"
            status = {
                **status, "status": "Failure", "reason": "NonZeroExitCode", "message": message,
                "details": {"causes": causes}, **(more or {}),
            }  # fmt: skip
        await self._send(STATUS, json.dumps(status).encode())
        with contextlib.suppress(ConnectionError, TimeoutError):
            await asyncio.wait_for(self.socket.close(), 5)
