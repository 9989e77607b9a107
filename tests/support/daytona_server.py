"""A Daytona of the tests' own: API and toolbox, over HTTP and WebSocket as the SDK speaks them.

Its sandboxes are directories and processes of this machine, with real terminals. What it does follows the toolbox's
source (apps/daemon of daytonaio/daytona, v0.190) where that matters to us: the shell is a login shell, a client for
which 256 messages wait is cut off, input waits in a queue of 1,024, a message has 64 KiB at most, a terminal is ended
with the tree of its processes, and the clients of a program that has ended are cut off without waiting for what it
printed last. The answers' fields are the ones that the SDK's models want.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from aiohttp import WSMsgType, web

from tests.support import needs
from tests.support.fake_cloud import STDOUT, LoopThread, Program, abort, serve

QUEUE = 256
MESSAGE = 64 * 1024
PAGE = 2
"""Sandboxes of an answer to a list."""


class Terminal:
    """A shell on a terminal, and the WebSocket that looks at it until that breaks."""

    def __init__(self, sandbox: Sandbox, name: str, size: tuple[int, int], client: web.WebSocketResponse) -> None:
        self.sandbox, self.name, self.client = sandbox, name, client
        variables = sandbox.environment() | {"TERM": "xterm-256color"}
        self.program = Program(sandbox.shell, variables, sandbox.directory, size)
        self.outputs: asyncio.Queue[bytes] = asyncio.Queue(maxsize=QUEUE)
        self.inputs: asyncio.Queue[bytes] = asyncio.Queue(maxsize=1024)
        self.looking, self.over = True, False
        self.passing = [asyncio.create_task(it) for it in (self._read(), self._write())]
        self.reaping = asyncio.create_task(self._reap())

    async def _read(self) -> None:
        while data := await self.program.read(STDOUT, 32 * 1024):
            if self.looking and self.outputs.full():
                self.looking = False
                self.sandbox.world.counts["dropped"] += 1
                self.closing = asyncio.create_task(self.client.close(code=1008, message=b"slow consumer"))
            elif self.looking:
                self.outputs.put_nowait(data)

    async def _write(self) -> None:
        while True:
            await self.program.write(await self.inputs.get())

    async def _show(self) -> None:
        with contextlib.suppress(Exception):
            while True:
                data = await self.outputs.get()
                await asyncio.sleep(self.sandbox.world.lag)
                await self.client.send_bytes(data)

    async def _reap(self) -> None:
        code = await self.program.wait()
        await self._close(code if code >= 0 else 128 - code)

    async def _close(self, code: int) -> None:
        if self.over:
            return
        self.over = True
        self.sandbox.terminals.pop(self.name, None)
        for task in self.passing:
            task.cancel()
        await asyncio.gather(*self.passing, return_exceptions=True)
        if self.looking:
            reason = {"exitCode": code} | ({"exitReason": "non-zero exit"} if code else {})
            with contextlib.suppress(Exception):
                await self.client.send_str(json.dumps({"type": "control", "status": "exited", **reason}))
                await self.client.close(code=1000 if code == 0 else 1011, message=json.dumps(reason).encode())
        self.program.close()

    async def kill(self) -> None:
        needs.kill_tree(self.program.process.pid)
        await self._close(137)

    async def attach(self) -> None:
        """Pass on what the client types, and show it the output, until it is gone; the terminal goes on."""
        showing = asyncio.create_task(self._show())
        try:
            await self.client.send_str(json.dumps({"type": "control", "status": "connected"}))
            async for message in self.client:
                if message.type == WSMsgType.BINARY:
                    await self.inputs.put(message.data)
        finally:
            showing.cancel()
            self.looking = False


class Sandbox:
    """A directory, and what runs in it."""

    def __init__(self, world: DaytonaWorld, body: dict[str, Any]) -> None:
        self.world = world
        self.id = secrets.token_hex(8)
        self.name = body.get("name") or f"sandbox-{self.id}"
        self.body = body
        self.state = "creating"
        self.reason: str | None = None
        self.directory = world.directory / self.id
        self.directory.mkdir()
        self.image = body.get("buildInfo", {}).get("dockerfileContent", "").partition("FROM ")[2].strip()
        self.terminals: dict[str, Terminal] = {}
        self.shell = [{"dash": "dash", "zsh": "zsh"}.get(self.image, "/bin/bash"), "-i", "-l"]
        profile = "PS1='sandbox$ '\n" + ("echo hello; sleep 1\n" if "greeting" in self.image else "")
        self.path = f"{world.programs}:{os.environ['PATH']}"
        if "bare" in self.image:  # of all programs there are a few
            programs = self.directory / "bin"
            programs.mkdir()
            self.path = str(programs)
            profile += f"PATH={programs}\n"  # /etc/profile has set another
            for name in self.image.rpartition("+")[2].split(","):
                if "busybox" in self.image and name not in ("bash", "busybox", "python3"):
                    os.symlink("busybox", programs / name)
                    continue
                found = os.path.realpath(sys.executable) if name == "python3" else shutil.which(name)
                os.symlink(found or "/", programs / name)
        (self.directory / ".profile").write_text(profile)
        (self.directory / ".zshrc").write_text("setopt SHARE_HISTORY\nHISTFILE=~/.zsh_history SAVEHIST=99\n")

    def environment(self) -> dict[str, str]:
        place = {"PATH": self.path, "HOME": str(self.directory), "USER": "daytona", "LANG": "C.UTF-8"}
        return place | {"DAYTONA_SANDBOX_ID": self.id, **self.body.get("env", {})}

    def told(self) -> dict[str, Any]:
        body = self.body
        return {
            "id": self.id,
            "organizationId": "org",
            "name": self.name,
            "user": "daytona",
            "env": body.get("env", {}),
            "labels": body.get("labels", {}),
            "target": body.get("target") or "us",
            **dict.fromkeys(("public", "networkBlockAll", "kvm"), False),
            **dict.fromkeys(("cpu", "gpu", "memory", "disk"), 1),
            "state": self.state,
            "errorReason": self.reason,
            "toolboxProxyUrl": f"{self.world.url}/toolbox",
        }

    async def begin(self) -> None:
        """Become what the image says."""
        await asyncio.sleep(self.world.build)
        if self.state != "creating":
            return
        if "missing" in self.image:
            self.state, self.reason = "build_failed", "manifest for this image not found"
        elif "broken" in self.image:
            self.state, self.reason = "error", "the runner has no room"
        else:
            self.state = "started"

    async def end(self, state: str) -> None:
        self.state = state
        for terminal in list(self.terminals.values()):
            await terminal.kill()
        await asyncio.to_thread(needs.kill_all, f"DAYTONA_SANDBOX_ID={self.id}")


class DaytonaWorld:
    """The server: what it was asked for, what it has, and what goes wrong.

    Args:
        directory: where the sandboxes' own are.
        programs: what is first in their PATH.
    """

    def __init__(self, directory: Path, programs: Path, key: str) -> None:
        self.directory, self.programs, self.key = directory, programs, key
        self.sandboxes: dict[str, Sandbox] = {}
        self.begin()
        self._thread = LoopThread("daytona")
        self._thread.do(self._serve())

    async def _serve(self) -> None:
        application = web.Application(middlewares=[self.guard], client_max_size=1 << 30)
        route = application.router
        route.add_post("/api/sandbox", self.create)
        route.add_get("/api/sandbox", self.list)
        route.add_get("/api/sandbox/{id}", self.get)
        route.add_delete("/api/sandbox/{id}", self.delete)
        route.add_get("/toolbox/{id}/process/pty/create-connect", self.create_terminal)
        route.add_delete("/toolbox/{id}/process/pty/{name}", self.delete_terminal)
        self._runner, port = await serve(application)
        self.url = f"http://127.0.0.1:{port}"

    def close(self) -> None:
        self.clear()
        self._thread.do(self._runner.cleanup())
        self._thread.end()

    # What tests look at and order, from their own threads

    def begin(self) -> None:
        """Forget the requests and the orders of the test before."""
        self.asked: list[dict[str, Any]] = []  # the bodies of the requests for a new sandbox
        self.counts: Counter[str] = Counter()
        self.build = self.delay = self.lag = 0.0  # seconds
        self.refusal: dict[str, Any] | None = None

    def all(self) -> list[Sandbox]:
        return list(self.sandboxes.values())

    def lose(self, sandbox: str, state: str, reason: str | None = None) -> None:
        """Have a sandbox end as it does by itself, and be in a state afterwards; "gone": there is none any more."""

        async def lose() -> None:
            lost = self.sandboxes[sandbox]
            await lost.end("destroyed" if state == "gone" else state)
            lost.reason = reason
            if state == "gone":
                del self.sandboxes[sandbox]

        self._thread.do(lose())

    def clear(self) -> None:
        """End what a test has left that failed, so that others do not fail for it."""
        for sandbox in self.all():
            self.lose(sandbox.id, "gone")

    def cut(self, sandbox: str) -> None:
        """Break the connections of a sandbox's terminals, which go on."""
        self._thread.call(lambda: [abort(it.client) for it in self.sandboxes[sandbox].terminals.values()])

    @web.middleware
    async def guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        resource = request.match_info.route.resource
        self.counts[f"{request.method} {resource.canonical if resource else request.path}"] += 1
        if request.headers.get("Authorization") != f"Bearer {self.key}":
            return problem(401, "Invalid credentials")
        try:
            return await handler(request)
        except web.HTTPNotFound as error:
            return problem(404, error.text or "")

    def find(self, request: web.Request) -> Sandbox:
        name = request.match_info["id"]
        for sandbox in self.sandboxes.values():
            if name in (sandbox.id, sandbox.name):
                return sandbox
        raise web.HTTPNotFound(text=f"Sandbox with ID or name {name} not found")

    # ---- the API

    async def create(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append(body)
        if self.refusal is not None:
            return problem(self.refusal["status"], self.refusal["message"])
        sandbox = Sandbox(self, body)
        self.sandboxes[sandbox.id] = sandbox
        asyncio.create_task(sandbox.begin())
        await asyncio.sleep(self.delay)
        return web.json_response(sandbox.told())

    async def get(self, request: web.Request) -> web.Response:
        return web.json_response(self.find(request).told())

    async def list(self, request: web.Request) -> web.Response:
        wanted = json.loads(request.query.get("labels", "{}"))
        at = int(request.query.get("cursor", "0"))
        found = [it for it in self.sandboxes.values() if wanted.items() <= it.body.get("labels", {}).items()]
        more = str(at + PAGE) if len(found) > at + PAGE else None
        return web.json_response({"items": [it.told() for it in found[at : at + PAGE]], "nextCursor": more})

    async def delete(self, request: web.Request) -> web.Response:
        sandbox = self.find(request)
        if self.refusal is not None and self.refusal.get("deletes"):
            return problem(self.refusal["status"], self.refusal["message"])
        await sandbox.end("destroyed")
        del self.sandboxes[sandbox.id]
        shutil.rmtree(sandbox.directory, ignore_errors=True)
        return web.json_response(sandbox.told())

    # ---- the toolbox

    async def create_terminal(self, request: web.Request) -> web.StreamResponse:
        sandbox, query = self.find(request), request.query
        if sandbox.state != "started":
            return problem(400, "bad request: sandbox is not running")
        socket = web.WebSocketResponse(max_msg_size=MESSAGE, protocols=["X-Daytona-Pty-Exit-Control"])
        await socket.prepare(request)
        size = int(query["rows"]), int(query["cols"])
        terminal = sandbox.terminals[query["id"]] = Terminal(sandbox, query["id"], size, socket)
        await terminal.attach()
        return socket

    async def delete_terminal(self, request: web.Request) -> web.Response:
        terminal = self.find(request).terminals.pop(request.match_info["name"], None)
        if terminal is None:
            return problem(404, "PTY session not found")
        await terminal.kill()
        return web.json_response({"message": "PTY session deleted"})


def problem(status: int, message: str) -> web.Response:
    return web.json_response({"statusCode": status, "message": message}, status=status)
