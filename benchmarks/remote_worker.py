"""One client in a process of its own, for remote.py as worker.py is for bench.py.

Everything is timed beside the call that a user would write.  CPU and memory of the server are read from /proc by the
number of its process.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engines.base import Answer, is_empty
from measured import Measured, memory_kb, serve

Place = dict[str, Any]
"""Where a server is: `port`; or `unix`, a path; or `command`, a program whose standard streams are the server."""


class Client:
    """What a workload needs of a client.  `key` names a session."""

    async def connect(self, place: Place, key: str) -> None:
        raise NotImplementedError

    async def alive(self) -> bool:
        raise NotImplementedError

    async def open(self, key: str) -> None:
        raise NotImplementedError

    async def close(self, key: str) -> None:
        raise NotImplementedError

    async def run(self, key: str, text: str) -> Answer:
        raise NotImplementedError

    async def execute(self, text: str) -> Answer | None:
        """None where only bytes were moved."""
        raise NotImplementedError

    async def read(self, path: str) -> str:
        raise NotImplementedError

    async def write(self, path: str, content: str) -> None:
        raise NotImplementedError

    async def upload(self, source: str, target: str) -> None:
        raise NotImplementedError

    async def download(self, source: str, target: str) -> None:
        raise NotImplementedError

    def took(self) -> float | None:
        """The microseconds of the last call where they are not those that pass here."""
        return None


class Remote(Client):
    """`RemoteRuntime` of a package with the API of SWE-ReX."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.api: Any = importlib.import_module(f"{package}.runtime.abstract")

    async def connect(self, place: Place, key: str) -> None:
        remote: Any = importlib.import_module(f"{self.package}.runtime.remote")
        # More than its 0.15 s, so that what is slow counts as slow and not as a wrong answer.
        self.runtime = remote.RemoteRuntime(host="http://127.0.0.1", port=place["port"], auth_token=key, timeout=10.0)

    async def alive(self) -> bool:
        return bool((await self.runtime.is_alive()).is_alive)

    async def open(self, key: str) -> None:
        await self.runtime.create_session(self.api.CreateBashSessionRequest(session=key, startup_timeout=30))

    async def close(self, key: str) -> None:
        await self.runtime.close_session(self.api.CloseBashSessionRequest(session=key))

    async def run(self, key: str, text: str) -> Answer:
        result = await self.runtime.run_in_session(self.api.BashAction(command=text, session=key, check="silent"))
        return result.output, result.exit_code

    async def execute(self, text: str) -> Answer:
        result = await self.runtime.execute(self.api.Command(command=text, shell=True))
        return result.stdout, result.exit_code

    async def read(self, path: str) -> str:
        result = await self.runtime.read_file(self.api.ReadFileRequest(path=path))
        return str(result.content)

    async def write(self, path: str, content: str) -> None:
        await self.runtime.write_file(self.api.WriteFileRequest(path=path, content=content))

    async def upload(self, source: str, target: str) -> None:
        await self.runtime.upload(self.api.UploadRequest(source_path=source, target_path=target))

    async def download(self, source: str, target: str) -> None:
        await self.runtime.download(source, target)


class Here(Remote):
    """`LocalRuntime` in the client's own process."""

    async def connect(self, place: Place, key: str) -> None:
        self.runtime = importlib.import_module(f"{self.package}.runtime.local").LocalRuntime()


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


class Echo(Client):
    """The other end of `remote_floor.py echo`: frames of the same content as ours, and nothing that keeps them."""

    alive_frame: list[Any] = [1, 1, "is_alive", {}, 1]
    run_fields: dict[str, Any] = {"command": "true", "session": "default", "check": "silent", "action_type": "bash"}

    async def connect(self, place: Place, key: str) -> None:
        from remote_floor import Frames

        waiting: dict[int, asyncio.Future[Any]] = {}

        class End(Frames):
            def frame(self, frame: Any) -> None:
                waiting.pop(frame[1]).set_result(frame)

        loop = asyncio.get_running_loop()
        _, self.end = await loop.create_connection(End, "127.0.0.1", place["port"])
        self.waiting = waiting
        self.numbers = itertools.count()
        self.create_future = loop.create_future

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
        pass

    async def run(self, key: str, text: str) -> Answer:
        frame = await self.send("run_in_session", {**self.run_fields, "command": text})
        return "", 0 if frame[3]["command"] == text else None


class Local(Client):
    """The other end of `remote_floor.py local`."""

    async def connect(self, place: Place, key: str) -> None:
        from remote_floor import Frames

        waiting: list[asyncio.Future[Any]] = []

        class End(Frames):
            def frame(self, frame: Any) -> None:
                waiting.pop().set_result(frame)

        self.loop = asyncio.get_running_loop()
        _, self.end = await self.loop.create_connection(End, "127.0.0.1", place["port"])
        self.waiting = waiting

        self.last = 0.0

    async def open(self, key: str) -> None:
        pass

    async def run(self, key: str, text: str) -> Answer:
        self.waiting.append(future := self.loop.create_future())
        self.end.transport.write(self.end.encode([1, text]))
        _, self.last, output, code = await future
        return output, code

    def took(self) -> float | None:
        return self.last


class Copy(Client):
    """The other end of `remote_floor.py copy`, or `text`."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    async def connect(self, place: Place, key: str) -> None:
        import remote_floor

        kind = getattr(remote_floor, self.kind)
        _, self.end = await asyncio.get_running_loop().create_connection(kind, "127.0.0.1", place["port"])

    async def copy(self, direction: bytes, size: int) -> None:
        await self.end.order(direction, size)

    async def execute(self, text: str) -> None:
        """As many bytes as the file has that the command would print."""
        await self.copy(b">", os.path.getsize(text.rpartition(" ")[2]))


class Files(Client):
    """The other end of `remote_floor.py files`."""

    async def connect(self, place: Place, key: str) -> None:
        self.sock = socket.create_connection(("127.0.0.1", place["port"]))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    async def upload(self, source: str, target: str) -> None:
        from remote_floor import send_file

        self.sock.sendall(f"< {os.path.getsize(source)} {target}\n".encode())
        assert self.sock.recv(1) == b"+"
        send_file(self.sock, source)
        assert self.sock.recv(1) == b"."

    async def download(self, source: str, target: str) -> None:
        from remote_floor import receive_file

        size = os.path.getsize(source)
        self.sock.sendall(f"> {size} {source}\n".encode())
        receive_file(self.sock, target, size)


class Bare(Client):
    """The command in this process, by `subprocess`: what it takes without any session, limit or server."""

    async def connect(self, place: Place, key: str) -> None:
        pass

    async def execute(self, text: str) -> Answer:
        done = subprocess.run(["/bin/sh", "-c", text], stdin=subprocess.DEVNULL, capture_output=True, check=False)
        return done.stdout.decode(errors="backslashreplace"), done.returncode


CLIENTS: dict[str, Callable[[], Client]] = {
    "ours": lambda: Ours("msgpack"),
    "ours, JSON": lambda: Ours("json"),
    "original": lambda: Remote("swerex"),
    "here": lambda: Here("swerex_c"),
    "echo": Echo,
    "local": Local,
    "copy": lambda: Copy("Copy"),
    "text": lambda: Copy("Text"),
    "files": Files,
    "bare": Bare,
}


def process_cpu(pid: int) -> float:
    """Microseconds of CPU of a process with all its threads, those that have ended too, without what it started."""
    return time.clock_gettime((~pid << 3) | 2) * 1e6  # the clock that clock_getcpuclockid(3) names


class Watched(Measured):
    """As `Measured`, and the server's CPU too."""

    def __init__(self, server: int | None) -> None:
        self.server = server
        self.cpu_server_us = 0.0

    def __enter__(self) -> Watched:
        if self.server is not None:
            self.cpu_server_us = -process_cpu(self.server)
        super().__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        super().__exit__()
        if self.server is not None:
            self.cpu_server_us += process_cpu(self.server)

    def result(self, **more: object) -> dict[str, object]:
        cpu = {} if self.server is None else {"cpu_server_us": self.cpu_server_us}
        return {**super().result(**more), **cpu}


class Peaks:
    """How far the memory of this process and of the server peaks above where it was."""

    def __init__(self, server: int | None) -> None:
        self.pids: dict[str, int | str] = {"rss_growth_kb": "self"}
        if server is not None:
            self.pids["rss_growth_server_kb"] = server
        for pid in self.pids.values():
            Path(f"/proc/{pid}/clear_refs").write_text("5")
        self.before = {name: memory_kb("VmRSS", pid) for name, pid in self.pids.items()}

    def growth(self) -> dict[str, int]:
        return {name: memory_kb("VmHWM", pid) - self.before[name] for name, pid in self.pids.items()}


class Workloads:
    """Each method is one operation that remote.py may ask for; its parameters are those of the request."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.server: int | None = None
        self.kept: set[str] = set()
        self.running: list[asyncio.Task[Answer]] = []

    async def connect(self, place: Place, key: str, server: int | None) -> dict[str, object]:
        await self.client.connect(place, key)
        self.server = server
        return {}

    async def session(self, key: str) -> str:
        """A session that stays open between rounds; its name is not that of any other client's."""
        name = f"{key}-{os.getpid()}"
        if name not in self.kept:
            await self.client.open(name)
            self.kept.add(name)
        return name

    async def one(self, what: str, key: str) -> bool:
        """One request; whether its answer is right."""
        if what == "alive":
            return await self.client.alive()
        if what == "true":
            return is_empty(await self.client.run(key, "true"))
        return is_empty(await self.client.execute("true"))

    async def calls(self, what: str, count: int, warm: int, rest_us: int = 0) -> dict[str, object]:
        """Requests one after the other."""
        key = await self.session("calls") if what == "true" else ""
        samples: list[float] = []
        wrong = 0
        for _ in range(warm):
            await self.one(what, key)
        with Watched(self.server) as watched:
            for _ in range(count):
                if rest_us:
                    await asyncio.sleep(rest_us / 1e6)
                start = time.perf_counter_ns()
                right = await self.one(what, key)
                samples.append(self.client.took() or (time.perf_counter_ns() - start) / 1e3)
                wrong += not right
        return watched.result(count=count, wrong=wrong, samples_us=samples)

    async def in_flight(self, what: str, width: int, count: int) -> dict[str, object]:
        """`width` callers at once, each of which sends `count` requests."""
        keys = [await self.session(f"flight{i}") if what == "true" else "" for i in range(width)]

        async def caller(key: str) -> int:
            return sum([not await self.one(what, key) for _ in range(count)])

        await asyncio.gather(*(self.one(what, key) for key in keys))
        with Watched(self.server) as watched:
            wrong = sum(await asyncio.gather(*map(caller, keys)))
        total = width * count
        return watched.result(count=total, wrong=wrong, per_second=total / watched.seconds)

    async def output(self, how: str, path: str, count: int) -> dict[str, object]:
        """`cat path`, in a session or without; the answer must be the file."""
        text, key = f"cat {path}", await self.session("output") if how == "run" else ""
        expected = Path(path).read_text()
        await (self.client.run(key, text) if how == "run" else self.client.execute(text))
        samples: list[float] = []
        wrong = 0
        with Watched(self.server) as watched:
            for _ in range(count):
                start = time.perf_counter_ns()
                answer = await (self.client.run(key, text) if how == "run" else self.client.execute(text))
                samples.append((time.perf_counter_ns() - start) / 1e3)
                wrong += answer is not None and answer != (expected, 0)
                del answer
        return watched.result(count=count, wrong=wrong, samples_us=samples, bytes=len(expected))

    async def transfer(self, how: str, path: str, copy: str, count: int) -> dict[str, object]:
        """A file from one end to the other.  `copy`: the name of the one that is made, for those that make one."""
        size = os.path.getsize(path)
        content = Path(path).read_text() if how == "write" else ""
        samples: list[float] = []
        growth: dict[str, int] = {}
        wrong = 0
        with Watched(self.server) as watched:
            for _ in range(count):
                Path(copy).unlink(missing_ok=True)
                peaks = Peaks(self.server)
                start = time.perf_counter_ns()
                answer = await self.moved(how, path, copy, content, size)
                samples.append((time.perf_counter_ns() - start) / 1e3)
                growth = {name: max(kb, growth.get(name, 0)) for name, kb in peaks.growth().items()}
                wrong += answer is not None and not self.same(path, copy, answer)
                del answer
        Path(copy).unlink(missing_ok=True)
        return watched.result(count=count, wrong=wrong, samples_us=samples, bytes=size, **growth)

    async def moved(self, how: str, path: str, copy: str, content: str, size: int) -> str | None:
        """What was read; "" if there is a file to compare; None where only bytes were moved."""
        client = self.client
        if isinstance(client, Copy):
            await client.copy(b">" if how in ("read", "download") else b"<", size)
            return None
        if how == "read":
            return await client.read(path)
        if how == "write":
            await client.write(copy, content)
        elif how == "upload":
            await client.upload(path, copy)
        else:
            await client.download(path, copy)
        return ""

    @staticmethod
    def same(path: str, copy: str, answer: str) -> bool:
        wanted = Path(path).read_bytes()
        return wanted == (answer.encode() if answer else Path(copy).read_bytes())

    async def open_all(self, sessions: int) -> dict[str, object]:
        """Opens the sessions that `occupy` and `hammer` use."""
        for i in range(sessions):
            await self.session(f"occupied{i}")
        return {}

    async def occupy(self, sessions: int, text: str) -> dict[str, object]:
        """Starts a command in each of so many sessions, and leaves them at it; see `release`."""
        keys = [await self.session(f"occupied{i}") for i in range(sessions)]
        self.running = [asyncio.ensure_future(self.client.run(key, text)) for key in keys]
        await asyncio.sleep(0.5)
        return {"ended": sum(task.done() for task in self.running)}

    async def release(self, flag: str) -> dict[str, object]:
        """Waits for what `occupy` started, which ends when there is a file of this name."""
        Path(flag).touch()
        answers = await asyncio.gather(*self.running)
        Path(flag).unlink()
        return {"wrong": sum(code != 0 for _, code in answers)}

    async def hammer(self, sessions: int, flag: str, what: str = "true") -> dict[str, object]:
        """`true` over and over in so many sessions at once, or by `execute`, until there is a file of this name."""
        keys = [await self.session(f"occupied{i}") if what == "true" else "" for i in range(sessions)]
        ended = False

        async def work(key: str) -> tuple[int, int]:
            count = wrong = 0
            while not ended:
                wrong += not await self.one(what, key)
                count += 1
            return count, wrong

        work_all = asyncio.gather(*map(work, keys))
        while not Path(flag).exists():
            await asyncio.sleep(0.05)
        ended = True
        done = await work_all
        Path(flag).unlink()
        return {"count": sum(count for count, _ in done), "wrong": sum(wrong for _, wrong in done)}

    async def idle(self, sessions: int, seconds: float) -> dict[str, object]:
        """What sessions cost the server that nobody uses."""
        assert self.server is not None
        await self.client.open("first")
        await self.client.run("first", "true")
        before = memory_kb("VmRSS", self.server)
        for i in range(sessions):
            await self.client.open(f"idle{i}")
        memory = memory_kb("VmRSS", self.server) - before
        await asyncio.sleep(1)
        with Watched(self.server) as watched:
            await asyncio.sleep(seconds)
        wrong = 0
        for i in range(sessions):
            wrong += not is_empty(await self.client.run(f"idle{i}", "true"))
            await self.client.close(f"idle{i}")
        await self.client.close("first")
        cpu = {"cpu_self_us": watched.cpu_server_us, "cpu_children_us": 0.0}
        return {**watched.result(count=sessions, wrong=wrong, rss_per_session_kb=memory / sessions), **cpu}


def make(name: str) -> Workloads:
    return Workloads(CLIENTS[name]())


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    serve(make)
