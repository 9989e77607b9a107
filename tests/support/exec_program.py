"""Programs of a pod for tests, which are processes of this machine, behind the exec protocol of Kubernetes.

In `v5.channel.k8s.io` over WebSocket the first byte of a message is its channel: 0 is standard input, 1 and 2 are the
outputs, 3 is the status at the end, 4 the terminal's size, and 255 says that another channel is at its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

from tests.support.fake_cloud import Program

STDIN, STATUS, RESIZE, CLOSE = 0, 3, 4, 255
PIECE = 32768


class ExecProgram:
    """One exec: a program of this machine, and the connection that carries its streams."""

    def __init__(self, socket: web.WebSocketResponse, request: web.Request, directory: Path, all: set[Program]) -> None:
        self.socket, self.directory, self.all = socket, directory, all
        self.argv = request.query.getall("command")
        self.tty = request.query.get("tty") == "true"
        self.writing = asyncio.Lock()

    async def run(self) -> None:
        variables = {"PATH": os.environ["PATH"], "HOME": str(self.directory), "HOSTNAME": self.directory.name}
        if self.tty:
            variables["TERM"] = "xterm"
        program = Program(self.argv, variables, self.directory, (0, 0) if self.tty else None)
        self.all.add(program)
        outputs = [asyncio.ensure_future(self._carry(program, stream)) for stream in program.outputs]
        typed = asyncio.ensure_future(self._typed(program))
        try:
            code = await program.wait()
            # What was printed before the end arrives before the status.
            await asyncio.wait(outputs, timeout=0.2 if self.tty else 2)
            await self.end(code if code >= 0 else 128 - code)
        finally:
            for task in (typed, *outputs):
                task.cancel()
            await asyncio.gather(typed, *outputs, return_exceptions=True)
            self.all.discard(program)
            program.close()

    async def _carry(self, program: Program, stream: int) -> None:
        while data := await program.read(stream, PIECE):
            await self._send(stream, data)

    async def _typed(self, program: Program) -> None:
        async for message in self.socket:
            if message.type != WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel == STDIN:
                await program.write(data)
            elif channel == CLOSE and data[:1] == bytes([STDIN]):
                program.end_input()
            elif channel == RESIZE and self.tty:
                size = json.loads(data)
                program.resize(size["Height"], size["Width"])
        # The client is gone: as in a cluster, the program stays, and its input is at its end.
        program.end_input()

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
