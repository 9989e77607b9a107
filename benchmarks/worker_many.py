"""The operations of a worker with many sessions: at once, idle, beside a timer of the event loop, in threads."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from engines.base import is_empty
from engines.core import Core
from measured import Measured, footprint, open_files
from worker_base import Operations

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
            await self.contender.open(key)
            await self.contender.run(key, "true")

        await open("first")
        await self.contender.close("first")
        none = open_files()
        await open(keys[0])
        memory, _ = footprint()
        await in_batches(open, keys[1:])
        after, _ = footprint()
        return {"rss_per_session_kb": (after - memory) / (len(keys) - 1)} if len(keys) > 1 else {}, none

    async def rest(self) -> None:
        """Until sessions without a command have given back what they need for commands only."""
        await asyncio.sleep(self.contender.rest_seconds and self.contender.rest_seconds + 0.25)

    async def idle(self, sessions: int, seconds: float) -> dict[str, object]:
        keys = [f"idle{i}" for i in range(sessions)]
        each, none = await self.opened(keys)
        await self.rest()
        await asyncio.sleep(0.5)
        each["fds_per_session"] = (open_files() - none) / sessions
        with Measured() as measured:
            await asyncio.sleep(seconds)
        wrong = 0
        for key in keys:
            wrong += not is_empty(await self.contender.run(key, "true"))
        each["fds_per_session_at_work"] = (open_files() - none) / sessions
        await in_batches(self.contender.close, keys)
        return measured.result(count=sessions, wrong=wrong, **each)

    async def fleet(
        self, sessions: int, commands: int, one_waker: bool = False, rests: bool = False
    ) -> dict[str, object]:
        """`commands` times `true` in each of the sessions at once; the time of each command and of all together.

        rests: wait afterwards for what a session keeps without a command.
        """
        keys = [f"fleet{i}" for i in range(sessions)]
        each, none = await self.opened(keys)
        samples: list[int] = []
        wrong: list[int] = []
        clock = time.perf_counter_ns
        cold: list[bool] = []

        async def wake(key: str) -> None:
            cold.append(not is_empty(await self.contender.run(key, "true")))

        async def work(key: str) -> None:
            run = self.contender.run
            bad = 0
            for _ in range(commands):
                start = clock()
                answer = await run(key, "true")
                samples.append(clock() - start)
                bad += not is_empty(answer)
            wrong.append(bad)

        def work_now(key: str) -> None:
            run = self.contender.run_now
            bad = 0
            for _ in range(commands):
                start = clock()
                answer = run(key, "true")
                samples.append(clock() - start)
                bad += not is_empty(answer)
            wrong.append(bad)

        await in_batches(wake, keys)
        each["fds_per_session_at_work"] = (open_files() - none) / sessions
        if one_waker:
            assert isinstance(self.contender, Core)
            with Measured() as measured:
                wrong = [0] * (sessions - 1) + [self.contender.run_all(keys, "true", commands, samples)]
        elif self.contender.threads:
            threads = [threading.Thread(target=work_now, args=(key,)) for key in keys]
            with Measured() as measured:
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
        else:
            with Measured() as measured:
                await asyncio.gather(*(work(key) for key in keys))
        if rests:
            await self.rest()
            each["fds_per_session"] = (open_files() - none) / sessions
        await in_batches(self.contender.close, keys)
        total = sessions * commands
        missing = commands * (sessions - len(wrong))
        numbers = {"samples_us": [it / 1e3 for it in samples], "per_second": total / measured.seconds}
        return measured.result(count=total, wrong=sum(wrong) + missing + sum(cold), **numbers, **each)

    async def stall(self, sessions: int, pieces: int, size: int = 1_000_000) -> dict[str, object]:
        """How late a timer of 1 ms is on the event loop, while sessions run commands and one prints.

        However many sessions there are, they start 200 programs a second together, one after the other: more would be a
        row about forks, and all at once one about a loop that has a thousand things to do.
        own_max_us: the longest delay that is this thread's own doing, not that of other processes on its processor. Of
        a delay that is what the thread did not spend in the queue for a processor, or computed itself, whichever is
        more: it may have been in the queue before the timer was due.
        """
        keys = [f"stall{i}" for i in range(sessions)]
        await in_batches(self.contender.open, keys)
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
                bad += not is_empty(await self.contender.run(key, f"sleep {sessions / 200:g}"))
            return bad

        with account, Measured() as measured:
            ticking = asyncio.ensure_future(tick())
            working = [asyncio.ensure_future(work(key, i / 200)) for i, key in enumerate(keys[1:])]
            for _ in range(pieces):
                begin = time.perf_counter()
                output, code = await self.contender.run(keys[0], f"head -c {size} /dev/zero | tr '\\0' x")
                wrong += len(output) != size or code != 0
                await asyncio.sleep(max(0.0, size / 100e6 - (time.perf_counter() - begin)))
            if not pieces:
                await asyncio.sleep(1)
            ended.set()
            wrong += sum(await asyncio.gather(*working))
            await ticking
        await in_batches(self.contender.close, keys)
        rate = pieces * size / 1e6 / measured.seconds
        more = {"own_max_us": max(own), "own_p99_us": sorted(own)[len(own) * 99 // 100], "output_rate": rate}
        return measured.result(count=len(late), wrong=wrong, samples_us=late, **more)

    async def threads(self, count: int) -> dict[str, object]:
        """Commands of one thread in its session, and of two in theirs: how many more a second."""
        text = "for ((i = 0; i < 300; i++)); do :; done"
        for i in (0, 1):
            await self.session(f"threads{i}")
        wrong: list[int] = []

        def work(key: str) -> None:
            wrong.append(sum(not is_empty(self.contender.run_now(key, text)) for _ in range(count)))

        def rate(number: int) -> float:
            threads = [threading.Thread(target=work, args=(f"threads{i}",)) for i in range(number)]
            start = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            return number * count / (time.perf_counter() - start)

        with Measured() as measured:
            one, two = rate(1), rate(2)
        missing = count * (3 - len(wrong))
        return measured.result(count=3 * count, wrong=sum(wrong) + missing, per_second=one, speedup=two / one)
