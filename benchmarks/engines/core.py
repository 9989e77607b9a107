"""Our core by itself."""

from __future__ import annotations

import importlib
import os
import select
import shutil
import threading
import time
from typing import Any

from engines.base import Engine
from measuring.engine import GIVE_UP, Answer, is_right

__all__ = ["Core", "CoreInOneThread"]

OUTPUT_LIMIT = 1 << 30
"""Bytes of an answer that are kept."""


def poller_of(waker: Any) -> select.poll:
    """What waits until something has ended. Not select, which refuses descriptors from 1024 on."""
    poller = select.poll()
    poller.register(waker.fileno(), select.POLLIN)
    return poller


class Core(Engine):
    """The core by itself: no event loop, no models, no checks of a caller's input."""

    threads = True
    rest_seconds = 1.0

    startup = b"[[ ! -r /etc/bash.bashrc ]] || . /etc/bash.bashrc\n[[ ! -r ~/.bashrc ]] || . ~/.bashrc\n"
    direct = 10_000
    """Microseconds for which the calling thread waits by itself; after that the core's thread does."""

    def __init__(self) -> None:
        self.core: Any = importlib.import_module("swerex_c._core")
        self.make_matcher: Any = importlib.import_module("swerex_c.engine.patterns").make_matcher
        self.bash = os.fsencode(shutil.which("bash") or "/bin/bash")
        self.sessions: dict[str, Any] = {}
        self.wakers = threading.local()

    def waker(self) -> Any:
        """This thread's, which waits for one operation at a time."""
        try:
            return self.wakers.own
        except AttributeError:
            self.wakers.own = self.core.Waker()
            return self.wakers.own

    def finish(self, operation: Any, waker: Any) -> Any:
        while not operation.done:
            poller_of(waker).poll()
            waker.take()
        return operation

    async def open(self, key: str) -> None:
        environment = [os.fsencode(f"{name}={value}") for name, value in os.environ.items()]
        session = self.core.Session(self.bash, environment, None, 24, 80, OUTPUT_LIMIT)
        self.sessions[key] = session
        waker = self.waker()
        self.finish(session.start(self.startup, 10.0, waker, None), waker)

    async def close(self, key: str) -> None:
        waker = self.waker()
        self.finish(self.sessions.pop(key).close(waker, None), waker)

    def submit(self, key: str, text: str, timeout: float | None = None, matcher: Any = None) -> Any:
        waker = self.waker()
        operation = self.sessions[key].run(text, -1, timeout, None, matcher, waker, None, None, self.direct)
        if operation is None:
            raise RuntimeError(f"{text!r} needs a check by bash")
        return self.finish(operation, waker)

    def run_now(self, key: str, text: str) -> Answer:
        operation = self.submit(key, text)
        return operation.output, operation.code

    async def wait_for(self, key: str, text: str, patterns: list[str]) -> str:
        operation = self.submit(key, text, matcher=self.make_matcher(patterns))
        return patterns[operation.hit] if operation.end == "matched" else ""

    async def begin(self, key: str, text: str) -> None:
        self.submit(key, text, timeout=GIVE_UP)

    async def interrupt(self, key: str) -> None:
        waker = self.waker()
        self.finish(self.sessions[key].interrupt(0.2, 3, None, waker, None), waker)


class CoreInOneThread(Core):
    """The same with one waker for all sessions at once."""

    async def fleet(self, keys: list[str], text: str, count: int, until: float) -> tuple[list[float], int]:
        waker = self.core.Waker()
        poller, clock = poller_of(waker), time.perf_counter_ns
        begun: dict[str, int] = {}
        waiting: dict[str, Any] = {}
        left = dict.fromkeys(keys, count)
        samples: list[float] = []
        wrong = 0

        def submit(key: str) -> None:
            begun[key] = clock()
            waiting[key] = self.sessions[key].run(text, -1, None, None, None, waker, key, None, 0)

        for key in keys:
            submit(key)
        while waiting:
            poller.poll()
            for key in waker.take():
                samples.append((clock() - begun[key]) / 1e3)
                operation = waiting.pop(key)
                wrong += not is_right((operation.output, operation.code))
                left[key] -= 1
                if left[key] and time.perf_counter() < until:
                    submit(key)
        return samples, wrong
