"""A Modal of the tests' own: it speaks the protocol of the SDK, and its sandboxes run their commands on this machine.

The protocol is that of the classes that come with the SDK, for sandboxes of both kinds ("V1" and "V2"): apps, images,
secrets and sandboxes at one address, and at another what each sandbox's worker does, the "task command router".
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from google.protobuf.json_format import MessageToDict
from grpclib import GRPCError, Status
from grpclib.protocol import H2Protocol
from grpclib.server import Handler, Server
from modal_proto import api_grpc, api_pb2, task_command_router_grpc, task_command_router_pb2

from tests.support.fake_cloud import STDERR, STDOUT, LoopThread, Program
from tests.support.needs import kill_all

KEPT = 8 << 20
"""Bytes of a stream that may be unread; then the program has to wait."""


class Stream:
    """What a program has printed."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.asked = 0
        self.ended = False
        self.changed = asyncio.Condition()

    async def add(self, data: bytes) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.data) - self.asked < KEPT)
            self.data += data
            self.ended = not data
            self.changed.notify_all()

    async def read(self, offset: int) -> bytes:
        """Return bytes from there on; b"" at the end."""
        async with self.changed:
            self.asked = max(self.asked, offset)
            self.changed.notify_all()
            await self.changed.wait_for(lambda: self.ended or offset < len(self.data))
            return bytes(self.data[offset : offset + 65536])


class Exec:
    """A program, what it has printed, and how much of its input it has got."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.outputs = {stream: Stream() for stream in (STDOUT, STDERR)}
        self.written = 0
        self.writing = asyncio.Lock()
        self.tasks = [asyncio.create_task(self._read(stream)) for stream in self.outputs]

    async def _read(self, stream: int) -> None:
        data = b"..."
        while data:
            data = await self.program.read(stream) if stream in self.program.outputs else b""
            await self.outputs[stream].add(data)

    async def write(self, offset: int, data: bytes, eof: bool) -> None:
        """What is sent again is not written again."""
        async with self.writing:
            assert offset <= self.written, f"{offset} comes after {self.written}"
            data = data[self.written - offset :]
            while data:
                count = await self.program.write_some(data)
                self.written += count
                data = data[count:]
            if eof:
                self.program.end_input()

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.program.close()


class Sandbox:
    """A directory, a mark that all that runs for it has in its environment, and how it ended."""

    def __init__(
        self, number: str, root: Path, argv: Sequence[str], variables: Mapping[str, str], tags: dict[str, str], app: str
    ) -> None:
        self.id, self.task = f"sb-{number}", f"ta-{number}V"
        self.directory = root / self.id
        self.directory.mkdir()
        self.tags, self.app = tags, app
        self.created = time.time()
        self.status = self.code = 0
        self.ended = asyncio.Event()
        self.vanished = False
        self.execs: dict[str, Exec] = {}
        own = {"PATH": os.environ["PATH"], "HOME": str(self.directory), "TMPDIR": str(self.directory)}
        self.variables = own | dict(variables) | {"MODAL_SANDBOX_ID": self.id}
        self.main = Exec(Program(argv, self.variables, self.directory))
        self.watching = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        """Ends when the main program does."""
        code = await self.main.program.wait()
        await self.end("SUCCESS" if code == 0 else "FAILURE", code if code >= 0 else 128 - code)

    async def end(self, status: str, code: int) -> None:
        """Kill all that runs in it."""
        if self.ended.is_set():
            return
        self.status = api_pb2.GenericResult.GenericStatus.Value(f"GENERIC_STATUS_{status}")
        self.code = code
        self.ended.set()
        await asyncio.to_thread(kill_all, f"MODAL_SANDBOX_ID={self.id}")
        if self.watching is not asyncio.current_task():
            self.watching.cancel()
        for each in (self.main, *self.execs.values()):
            await each.close()
        shutil.rmtree(self.directory, ignore_errors=True)


class ModalWorld:
    """The server: what it was asked for, what it has, and what goes wrong."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.faults: dict[str, dict[str, Any]] = {}
        self.sandboxes: dict[str, Sandbox] = {}
        self.secrets: dict[str, dict[str, str]] = {}
        self.images: set[str] = set()
        self._thread = LoopThread("modal")
        self._servers: list[Server] = []
        self._thread.do(self._serve())

    async def _serve(self) -> None:
        urls = []
        bases = {task_command_router_grpc.TaskCommandRouterBase: Router, api_grpc.ModalClientBase: Plane}
        for base, kind in bases.items():
            server = Server([service(base, kind(self))])
            await server.start("127.0.0.1", 0)
            assert server._server is not None and server._server.sockets is not None
            urls.append(f"http://127.0.0.1:{server._server.sockets[0].getsockname()[1]}")
            self._servers.append(server)
        self.router, self.url = urls

    def close(self) -> None:
        async def close() -> None:
            for sandbox in self.sandboxes.values():
                await sandbox.end("TERMINATED", 0)
            for server in self._servers:
                server.close()

        self._thread.do(close())
        self._thread.end()

    # What tests look at and order, from their own threads

    def begin(self) -> None:
        """Forget the requests and the orders of the test before."""
        self.requests.clear()
        self.faults.clear()

    def calls(self, name: str) -> list[dict[str, Any]]:
        return [request for called, request in list(self.requests) if called == name]

    def fault(self, name: str, **fault: Any) -> None:
        """Have the next `times` (1) calls of a name fail or be late, before or `after` they are carried out."""
        self.faults[name] = fault

    def running(self) -> list[str]:
        return [name for name, sandbox in list(self.sandboxes.items()) if not sandbox.ended.is_set()]

    def end(self, sandbox: str, status: str, code: int = 0) -> None:
        self._thread.do(self.sandboxes[sandbox].end(status, code))

    def vanish(self, sandbox: str) -> None:
        """The sandbox's machine is gone; only the sandbox's own state is told, as lost."""
        self.sandboxes[sandbox].vanished = True
        self.end(sandbox, "INTERNAL_FAILURE")

    def break_connections(self) -> None:
        """As of a network that breaks off."""
        loop = self._thread.loop
        served = [it for it in gc.get_objects() if isinstance(it, H2Protocol) and isinstance(it.handler, Handler)]
        transports = [it.connection._transport for it in served]
        # Those of another test are closed.
        self._thread.call(lambda: [it.abort() for it in transports if it._loop is loop])

    # What the services share

    def jwt(self, task: str) -> str:
        claims = json.dumps({"exp": time.time() + 3600, "task": task}).encode()
        return f"e30.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.x"

    def of_task(self, task: str) -> Sandbox:
        return next(sandbox for sandbox in self.sandboxes.values() if sandbox.task == task)

    def env(self, request: Any) -> dict[str, str]:
        """The variables that a request brings: its own, and those of secrets."""
        found = dict(getattr(request, "env", {}))
        for source in getattr(request, "secret_sources", ()):
            found |= self.secrets[source.secret_id] if source.secret_id else dict(source.env.contents)
        return found

    def result(self, sandbox: Sandbox) -> api_pb2.GenericResult:
        return api_pb2.GenericResult(status=sandbox.status, exitcode=sandbox.code)

    async def before(self, name: str, message: Any) -> dict[str, Any] | None:
        """Note a call, and do what was ordered for the next of its kind."""
        self.requests.append((name, MessageToDict(message, preserving_proto_field_name=True)))
        fault = self.faults.get(name)
        if fault is None:
            return None
        fault["times"] = fault.get("times", 1) - 1
        if fault["times"] <= 0:
            del self.faults[name]
        if not fault.get("after"):
            await self.do(fault)
        return fault

    async def do(self, fault: dict[str, Any]) -> None:
        await asyncio.sleep(fault.get("delay", 0))
        if "status" in fault:
            raise GRPCError(Status[fault["status"]], fault.get("message", "as ordered"))


_ENVIRONMENT = api_pb2.EnvironmentMetadata(
    name="main", settings=api_pb2.EnvironmentSettings(image_builder_version="2025.06")
)
_MOUNT = api_pb2.MountHandleMetadata(content_checksum_sha256_hex="0")
ALWAYS = {
    "AppGetOrCreate": api_pb2.AppGetOrCreateResponse(app_id="ap-" + "a" * 22),
    "EnvironmentGetOrCreate": api_pb2.EnvironmentGetOrCreateResponse(environment_id="en-1", metadata=_ENVIRONMENT),
    "MountBatchedCheckExistence": api_pb2.MountBatchedCheckExistenceResponse(),
    "MountGetOrCreate": api_pb2.MountGetOrCreateResponse(mount_id="mo-1", handle_metadata=_MOUNT),
}
"""The methods that answer every request with the same."""


def service(base: Any, own: Router | Plane) -> Any:
    """A service of all the protocol's methods NAME, by `_NAME`, which may be for both versions, or by `ALWAYS`."""
    world = own.world

    def method(name: str) -> Any:
        async def call(self: Any, stream: Any) -> None:
            message = await stream.recv_message()
            found = getattr(own, f"_{name}", None) or getattr(own, f"_{name.removesuffix('V2')}", None)
            own.authorized(stream.metadata)
            fault = await world.before(name, message)
            answer = await found(message, stream) if found else ALWAYS[name]
            if fault is not None and fault.get("after"):
                await world.do(fault)
            if answer is not None:
                await stream.send_message(answer)

        return call

    names = [name for name in dir(base) if not name.startswith("_")]
    return type("Service", (base,), {name: method(name) for name in names})()


class Plane:
    """Apps, images, secrets, sandboxes."""

    def __init__(self, world: ModalWorld) -> None:
        self.world = world

    def authorized(self, metadata: Any) -> None:
        if metadata.get("x-modal-token-secret") != "as-right":
            raise GRPCError(Status.UNAUTHENTICATED, "Token validation failed")

    async def _AuthTokenGet(self, request: Any, stream: Any) -> Any:
        return api_pb2.AuthTokenGetResponse(token=self.world.jwt(""))

    async def _SecretGetOrCreate(self, request: Any, stream: Any) -> Any:
        identity = f"st-{uuid.uuid4().hex[:22]}"
        self.world.secrets[identity] = dict(request.env_dict)
        metadata = api_pb2.SecretMetadata(keys=list(request.env_dict))
        return api_pb2.SecretGetOrCreateResponse(secret_id=identity, metadata=metadata)

    async def _ImageGetOrCreate(self, request: Any, stream: Any) -> Any:
        identity = f"im-{uuid.uuid5(uuid.NAMESPACE_OID, request.image.SerializeToString().hex()).hex[:22]}"
        built = identity in self.world.images
        self.world.images.add(identity)
        result = api_pb2.GenericResult(status=1) if built else None
        return api_pb2.ImageGetOrCreateResponse(image_id=identity, result=result)

    async def _ImageJoinStreaming(self, request: Any, stream: Any) -> None:
        failing = self.world.faults.pop("build", None)
        result = api_pb2.GenericResult(status=1)
        if failing is not None:
            await asyncio.sleep(failing.get("delay", 0))
            if "message" in failing:
                result = api_pb2.GenericResult(status=2, exception=failing["message"])
        await stream.send_message(
            api_pb2.ImageJoinStreamingResponse(entry_id="1", task_logs=[api_pb2.TaskLogs(data="Step 1\n")])
        )
        await stream.send_message(api_pb2.ImageJoinStreamingResponse(entry_id="2", result=result, eof=True))

    def new(self, request: Any, old: bool) -> Sandbox:
        number = uuid.uuid4().hex[:22] if old else uuid.uuid4().hex
        tags = {tag.tag_name: tag.tag_value for tag in request.tags}
        if not all(re.fullmatch(r"[\w-]{1,63}", text) for tag in tags.items() for text in tag):
            raise GRPCError(Status.INVALID_ARGUMENT, "A tag has letters, digits, - and _, 63 at most")
        argv = list(request.definition.entrypoint_args)
        sandbox = Sandbox(number, self.world.root, argv, self.world.env(request), tags, request.app_id)
        self.world.sandboxes[sandbox.id] = sandbox
        return sandbox

    async def _SandboxCreateV2(self, request: Any, stream: Any) -> Any:
        sandbox = self.new(request, old=False)
        return api_pb2.SandboxCreateV2Response(
            sandbox_id=sandbox.id,
            task_id=sandbox.task,
            command_router_access=api_pb2.CommandRouterAccess(url=self.world.router, jwt=self.world.jwt(sandbox.task)),
        )

    async def _SandboxCreate(self, request: Any, stream: Any) -> Any:
        return api_pb2.SandboxCreateResponse(sandbox_id=self.new(request, old=True).id)

    async def _SandboxGetTaskId(self, request: Any, stream: Any) -> Any:
        return api_pb2.SandboxGetTaskIdResponse(task_id=self.world.sandboxes[request.sandbox_id].task)

    async def _SandboxWait(self, request: Any, stream: Any) -> Any:
        sandbox = self.world.sandboxes[request.sandbox_id]
        with contextlib.suppress(TimeoutError):
            if request.timeout:
                await asyncio.wait_for(sandbox.ended.wait(), request.timeout)
        return api_pb2.SandboxWaitResponse(result=self.world.result(sandbox))

    async def _SandboxTerminate(self, request: Any, stream: Any) -> Any:
        sandbox = self.world.sandboxes[request.sandbox_id]
        before = self.world.result(sandbox)
        await sandbox.end("TERMINATED", 0)
        return api_pb2.SandboxTerminateResponse(existing_result=before)

    async def _SandboxList(self, request: Any, stream: Any) -> Any:
        wanted = {tag.tag_name: tag.tag_value for tag in request.tags}
        found = [
            api_pb2.SandboxInfo(id=it.id, created_at=it.created, app_id=it.app)
            for it in self.world.sandboxes.values()
            if not it.ended.is_set() and wanted.items() <= it.tags.items() and request.app_id in ("", it.app)
            if not request.before_timestamp or it.created < request.before_timestamp
        ]
        found.sort(key=lambda it: -it.created_at)
        return api_pb2.SandboxListResponse(sandboxes=found[:2])  # pages are small, so that there are several

    async def _SandboxTagsGet(self, request: Any, stream: Any) -> Any:
        tags = self.world.sandboxes[request.sandbox_id].tags
        return api_pb2.SandboxTagsGetResponse(
            tags=[api_pb2.SandboxTag(tag_name=name, tag_value=value) for name, value in tags.items()]
        )

    async def _TaskGetCommandRouterAccess(self, request: Any, stream: Any) -> Any:
        jwt = self.world.jwt(self.world.of_task(request.task_id).task)
        return api_pb2.TaskGetCommandRouterAccessResponse(url=self.world.router, jwt=jwt)

    async def _SandboxGetLogs(self, request: Any, stream: Any) -> None:
        """As of a main program that prints nothing."""
        await self.world.sandboxes[request.sandbox_id].ended.wait()
        await stream.send_message(api_pb2.TaskLogsBatch(eof=True))


class Router:
    """What a worker does with the programs of a sandbox."""

    def __init__(self, world: ModalWorld) -> None:
        self.world = world

    def authorized(self, metadata: Any) -> None:
        """Let everybody in."""

    async def _sandbox(self, task: str) -> Sandbox:
        sandbox = self.world.of_task(task)
        if sandbox.vanished:
            await asyncio.sleep(100_000)  # the machine is gone, and nobody says so
        if sandbox.ended.is_set():
            raise GRPCError(Status.NOT_FOUND, f"Task {task} not found")
        return sandbox

    async def _exec(self, request: Any) -> tuple[Sandbox, Exec]:
        sandbox = await self._sandbox(request.task_id)
        return sandbox, sandbox.execs[request.exec_id]

    async def _TaskExecStart(self, request: Any, stream: Any) -> Any:
        sandbox = await self._sandbox(request.task_id)
        if request.exec_id in sandbox.execs:
            return task_command_router_pb2.TaskExecStartResponse()
        variables = sandbox.variables | self.world.env(request)
        size = None
        if request.HasField("pty_info"):
            size = (request.pty_info.winsz_rows or 24, request.pty_info.winsz_cols or 80)
            variables["TERM"] = request.pty_info.env_term
        directory = Path(request.workdir or sandbox.directory)
        program = Program(list(request.command_args), variables, directory, size)
        sandbox.execs[request.exec_id] = Exec(program)
        return task_command_router_pb2.TaskExecStartResponse()

    async def _TaskExecStdinWrite(self, request: Any, stream: Any) -> Any:
        sandbox, one = await self._exec(request)
        await self._within(sandbox, one.write(request.offset, request.data, request.eof))
        return task_command_router_pb2.TaskExecStdinWriteResponse()

    async def _TaskExecStdioRead(self, request: Any, stream: Any) -> None:
        sandbox, one = await self._exec(request)
        printed = one.outputs[STDOUT if request.file_descriptor == _STDOUT else STDERR]
        offset = request.offset
        while data := await self._within(sandbox, printed.read(offset)):
            offset += len(data)
            await stream.send_message(task_command_router_pb2.TaskExecStdioReadResponse(data=data))

    async def _SandboxStdioReadV2(self, request: Any, stream: Any) -> None:
        is_stdout = request.file_descriptor == _MAIN_STDOUT
        printed = self.world.of_task(request.task_id).main.outputs[STDOUT if is_stdout else STDERR]
        offset = request.offset
        while data := await printed.read(offset):
            message = task_command_router_pb2.SandboxStdioReadV2Response(data=data, starting_offset=offset)
            offset += len(data)
            await stream.send_message(message)

    async def _TaskExecWait(self, request: Any, stream: Any) -> Any:
        sandbox, one = await self._exec(request)
        code = await self._within(sandbox, one.program.wait())
        if code < 0:
            return task_command_router_pb2.TaskExecWaitResponse(signal=-code)
        return task_command_router_pb2.TaskExecWaitResponse(code=code)

    async def _within(self, sandbox: Sandbox, work: Any) -> Any:
        """Nothing that is asked of a sandbox outlasts it."""
        doing, ended = asyncio.ensure_future(work), asyncio.ensure_future(sandbox.ended.wait())
        try:
            await asyncio.wait((doing, ended), return_when=asyncio.FIRST_COMPLETED)
            if sandbox.vanished:
                await asyncio.sleep(100_000)
            if doing.done():
                return doing.result()
            raise GRPCError(Status.NOT_FOUND, f"Task {sandbox.task} not found")
        finally:
            doing.cancel()
            ended.cancel()


_STDOUT = task_command_router_pb2.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT
_MAIN_STDOUT = task_command_router_pb2.SANDBOX_STDIO_FILE_DESCRIPTOR_STDOUT
