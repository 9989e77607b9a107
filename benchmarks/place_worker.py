"""One engine whose shells are elsewhere, in a process of its own: what worker.py does, and what only such engines do.

CPU and memory of a server are read from /proc by the number of its process.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

from engines import make
from engines.base import Engine, Place
from measuring.engine import Answer, is_right
from measuring.measured import Measured, memory_kb
from measuring.operations import is_file
from measuring.worker import serve
from rows import Result
from worker import Workloads
from worker_base import Peaks

__all__ = ["Places"]


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


class Places(Workloads):
    """Each method is one operation that may be asked for; its parameters are those of the request."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.server: int | None = None
        self.running: list[asyncio.Task[Answer]] = []

    async def connect(self, place: Place, key: str, server: int | None = None) -> Result:
        """server: the number of its process, if it is one of this machine."""
        await self.engine.connect(place, key)
        self.server = server
        self.processes = ("self",) if server is None else ("self", str(server))
        return {}

    def measuring(self) -> Watched:
        return Watched(self.server)

    async def one(self, what: str, key: str) -> bool:
        """One request; whether its answer is right."""
        if what == "alive":
            return await self.engine.alive()
        if what == "true":
            return is_right(await self.engine.run(key, "true"))
        return is_right(await self.engine.execute("true"))

    async def calls(self, what: str, count: int, warm: int, rest_us: int = 0) -> Result:
        """Requests one after the other."""
        key = await self.session("calls") if what == "true" else ""
        for _ in range(warm):
            await self.one(what, key)

        async def one() -> tuple[float, bool]:
            if rest_us:
                await asyncio.sleep(rest_us / 1e6)
            took, right = await self.timed(lambda: self.one(what, key))
            return self.engine.took() or took, right

        return await self.sample(one, count=count)

    async def in_flight(self, what: str, width: int, count: int) -> Result:
        """`width` callers at once, each of which sends `count` requests."""
        keys = [await self.session(f"flight{i}") if what == "true" else "" for i in range(width)]

        async def caller(key: str) -> int:
            return sum([not await self.one(what, key) for _ in range(count)])

        await asyncio.gather(*(self.one(what, key) for key in keys))
        with self.measuring() as watched:
            wrong = sum(await asyncio.gather(*map(caller, keys)))
        total = width * count
        return watched.result(count=total, wrong=wrong, per_second=total / watched.seconds)

    async def printed(self, how: str, path: str, count: int) -> Result:
        """`cat path`, in a session or without; the answer must be the file."""
        text, key = f"cat {path}", await self.session("printed") if how == "run" else ""
        watched = self.measuring()

        async def ask() -> Answer | None:
            return await (self.engine.run(key, text) if how == "run" else self.engine.execute(text))

        async def one() -> tuple[float, bool]:
            took, answer = await self.timed(ask)
            with watched.aside():
                return took, answer is None or is_file(answer, path)

        await ask()
        return {**await self.sample(one, count=count, measured=watched), "bytes": os.path.getsize(path)}

    async def transfer(self, how: str, path: str, copy: str, count: int) -> Result:
        """A file from one end to the other.  `copy`: the name of the one that is made, for those that make one."""
        wanted = Path(path).read_bytes()
        content = wanted.decode() if how == "write" else ""
        if how == "read":
            await self.engine.lay(path)
        growth: dict[str, int] = {}

        async def one() -> tuple[float, bool]:
            Path(copy).unlink(missing_ok=True)
            peaks = Peaks(self.server)
            took, answer = await self.timed(lambda: self.engine.move(how, path, copy, content))
            growth.update({name: max(kb, growth.get(name, 0)) for name, kb in peaks.growth().items()})
            found = await self.engine.copied(copy) if how != "read" else answer and answer.encode()
            return took, found is None or found == wanted

        found = await self.sample(one, count=count)
        Path(copy).unlink(missing_ok=True)
        return {**found, "bytes": len(wanted), **growth}

    async def open_all(self, sessions: int) -> Result:
        """Opens the sessions that `occupy` and `hammer` use."""
        for i in range(sessions):
            await self.session(f"occupied{i}")
        return {}

    async def occupy(self, sessions: int, text: str) -> Result:
        """Starts a command in each of so many sessions, and leaves them at it; see `release`."""
        keys = [await self.session(f"occupied{i}") for i in range(sessions)]
        self.running = [asyncio.ensure_future(self.engine.run(key, text)) for key in keys]
        await asyncio.sleep(0.5)
        return {"ended": sum(task.done() for task in self.running)}

    async def release(self, flag: str) -> Result:
        """Waits for what `occupy` started, which ends when there is a file of this name."""
        Path(flag).touch()
        answers = await asyncio.gather(*self.running)
        Path(flag).unlink()
        return {"wrong": sum(code != 0 for _, code in answers)}

    async def hammer(self, sessions: int, flag: str, what: str = "true") -> Result:
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

    async def idle_server(self, sessions: int, seconds: float) -> Result:
        """What sessions cost the server that nobody uses."""
        assert self.server is not None
        await self.engine.open("first")
        await self.engine.run("first", "true")
        before = memory_kb("VmRSS", self.server)
        for i in range(sessions):
            await self.engine.open(f"idle{i}")
        memory = memory_kb("VmRSS", self.server) - before
        await asyncio.sleep(1)
        with self.measuring() as watched:
            await asyncio.sleep(seconds)
        wrong = 0
        for i in range(sessions):
            wrong += not is_right(await self.engine.run(f"idle{i}", "true"))
            await self.engine.close(f"idle{i}")
        await self.engine.close("first")
        cpu = {"cpu_self_us": watched.cpu_server_us, "cpu_children_us": 0.0}
        return {**watched.result(count=sessions, wrong=wrong, rss_per_session_kb=memory / sessions), **cpu}


if __name__ == "__main__":
    serve(lambda kind: Places(make(kind)))
