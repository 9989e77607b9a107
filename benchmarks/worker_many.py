"""The operations of a worker with many sessions: at once, idle, beside a timer of the event loop, in threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from measuring.engine import is_right
from rows import Result
from worker_base import Operations, footprint, open_files

__all__ = ["ManySessions"]


BATCH = 16
"""Sessions that are opened or closed at a time, by engines that can: shells start on all processors then."""


async def in_batches(act: Callable[[str], Awaitable[None]], keys: list[str]) -> None:
    for start in range(0, len(keys), BATCH):
        await asyncio.gather(*(act(key) for key in keys[start : start + BATCH]))


class ManySessions(Operations):
    async def opened(self, keys: list[str]) -> tuple[dict[str, float], int]:
        """Opens them and runs a command in each; what each but the first takes of this process, and what files that had
        open before there was any."""

        async def open(key: str) -> None:
            await self.engine.open(key)
            await self.engine.run(key, "true")

        await open("first")
        await self.engine.close("first")
        none = open_files()
        await open(keys[0])
        memory = footprint()
        await in_batches(open, keys[1:])
        return {"rss_per_session_kb": (footprint() - memory) / (len(keys) - 1)} if len(keys) > 1 else {}, none

    async def rest(self) -> None:
        """Until sessions without a command have given back what they need for commands only."""
        await asyncio.sleep(self.engine.rest_seconds and self.engine.rest_seconds + 0.25)

    async def idle(self, sessions: int, seconds: float) -> Result:
        keys = [f"idle{i}" for i in range(sessions)]
        each, none = await self.opened(keys)
        await self.rest()
        await asyncio.sleep(0.5)
        each["fds_per_session"] = (open_files() - none) / sessions
        with self.measuring() as measured:
            await asyncio.sleep(seconds)
        wrong = 0
        for key in keys:
            wrong += not is_right(await self.engine.run(key, "true"))
        each["fds_per_session_at_work"] = (open_files() - none) / sessions
        await in_batches(self.engine.close, keys)
        return measured.result(count=sessions, wrong=wrong, **each)

    async def fleet(self, sessions: int, commands: int, rests: bool = False) -> Result:  # type: ignore[override]
        """`commands` times `true` in each of the sessions at once; the time of each command and of all together.

        rests: wait afterwards for what a session keeps without a command.
        """
        keys = [f"fleet{i}" for i in range(sessions)]
        each, none = await self.opened(keys)
        cold = 0

        async def wake(key: str) -> None:
            nonlocal cold
            cold += not is_right(await self.engine.run(key, "true"))

        await in_batches(wake, keys)
        each["fds_per_session_at_work"] = (open_files() - none) / sessions
        found = await self.at_once(keys, commands)
        if rests:
            await self.rest()
            each["fds_per_session"] = (open_files() - none) / sessions
        await in_batches(self.engine.close, keys)
        return {**found, "wrong": found["wrong"] + cold, **each}

    async def stall(self, sessions: int, pieces: int, size: int = 1_000_000) -> Result:
        """How late a timer of 1 ms is on the event loop, while sessions run commands and one prints.

        However many sessions there are, they start 200 programs a second together, one after the other: more would be a
        row about forks, and all at once one about a loop that has a thousand things to do.
        own_max_us: the longest delay that is this thread's own doing, not that of other processes on its processor. Of
        a delay that is what the thread did not spend in the queue for a processor, or computed itself, whichever is
        more: it may have been in the queue before the timer was due.
        """
        keys = [f"stall{i}" for i in range(sessions)]
        await in_batches(self.engine.open, keys)
        late: list[float] = []
        own: list[float] = []
        ended, wrong = asyncio.Event(), 0
        account = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").open()

        def used() -> tuple[float, float]:
            """Microseconds that this thread has computed, and that it has waited for a processor."""
            account.seek(0)
            computed, queued = account.read().split()[:2]
            return int(computed) / 1e3, int(queued) / 1e3

        async def tick() -> None:
            computed, queued = used()
            while not ended.is_set():
                due = time.perf_counter() + 0.001
                await asyncio.sleep(0.001)
                delay = max(0.0, time.perf_counter() - due) * 1e6
                now_computed, now_queued = used()
                late.append(delay)
                own.append(max(delay - (now_queued - queued), min(delay, now_computed - computed), 0.0))
                computed, queued = now_computed, now_queued

        async def work(key: str, start: float) -> int:
            bad = 0
            await asyncio.sleep(start)
            while not ended.is_set():
                bad += not is_right(await self.engine.run(key, f"sleep {sessions / 200:g}"))
            return bad

        with account, self.measuring() as measured:
            ticking = asyncio.ensure_future(tick())
            working = [asyncio.ensure_future(work(key, i / 200)) for i, key in enumerate(keys[1:])]
            for _ in range(pieces):
                begin = time.perf_counter()
                output, code = await self.engine.run(keys[0], f"head -c {size} /dev/zero | tr '\\0' x")
                wrong += len(output) != size or code != 0
                await asyncio.sleep(max(0.0, size / 100e6 - (time.perf_counter() - begin)))
            if not pieces:
                await asyncio.sleep(1)
            ended.set()
            wrong += sum(await asyncio.gather(*working))
            await ticking
        await in_batches(self.engine.close, keys)
        rate = pieces * size / 1e6 / measured.seconds
        more = {"own_max_us": max(own), "own_p99_us": sorted(own)[len(own) * 99 // 100], "output_rate": rate}
        return measured.result(count=len(late), wrong=wrong, samples_us=late, **more)

    async def threads(self, count: int) -> Result:
        """Commands of one thread in its session, and of two in theirs: how many more a second."""
        text = "for ((i = 0; i < 300; i++)); do :; done"
        keys = [await self.session(f"threads{i}") for i in (0, 1)]
        wrong: list[int] = []

        def work(key: str) -> None:
            wrong.append(sum(not is_right(self.engine.run_now(key, text)) for _ in range(count)))

        def rate(number: int) -> float:
            threads = [threading.Thread(target=work, args=(key,)) for key in keys[:number]]
            start = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return number * count / (time.perf_counter() - start)

        with self.measuring() as measured:
            one, two = rate(1), rate(2)
        missing = count * (3 - len(wrong))
        return measured.result(count=3 * count, wrong=sum(wrong) + missing, per_second=one, speedup=two / one)
