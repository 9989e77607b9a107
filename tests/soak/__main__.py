"""Run sessions in random states, and compare what they answer with what the model knows.

    python -m tests.soak --seconds 60 --sessions 16 --busy 2          this machine
    python -m tests.soak --seconds 60 --threads 4                     from threads
    python -m tests.soak --seconds 60 --server                        through a server
    python -m tests.soak --seconds 60 --place here                    in a place: see tests/support/local_backend.py
    python -m tests.soak --seed 17 --only 3                           one history of a seed again

A wrong answer is reported with the shortest history that was found to give it. The exit code is 1 then.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from swerex_c.exceptions import CommandTimeoutError, SwerexException
from swerex_c.runtime.abstract import BashAction, BashInterruptAction, CloseSessionRequest, CreateBashSessionRequest
from swerex_c.runtime.local import LocalRuntime
from swerex_c.runtime.remote import RemoteRuntime
from tests.soak.model import Model, Operation, Step, operations, step
from tests.support.local_backend import runtime_in
from tests.support.server_process import FRONT, KEY, Server, serving

LENGTH = 40
"""Operations of a history."""

PATIENCE = float(os.environ.get("SWX_PATIENCE", "60"))
"""Seconds that a command may take on a busy machine."""

SHOWN = 200


class Wrong(Exception):
    """An answer is not what the model says."""


class Run:
    """A session, and what is done to it."""

    def __init__(self, runtime: Any, name: str):
        self.runtime = runtime
        self.name = name
        self.steps: list[Step] = []

    async def replay(self, history: list[Operation], until: float = math.inf) -> None:
        """Do all of it in a new session, or what there is time for. Raises Wrong."""
        request = CreateBashSessionRequest(session=self.name, startup_source=[], startup_timeout=PATIENCE)
        await self.runtime.create_session(request)
        model = Model()
        try:
            for operation in history:
                if time.monotonic() > until:
                    return
                made = step(model, operation)
                self.steps.append(made)
                try:
                    await asyncio.wait_for(getattr(self, made.way)(made), 3 * PATIENCE)
                except Wrong:
                    raise
                except SwerexException as error:  # some are a TimeoutError too
                    raise Wrong(f"{made.command[:SHOWN]!r} raises {error!r:.600}") from error
                except TimeoutError:
                    raise Wrong(f"{made.command[:SHOWN]!r} hangs") from None
        finally:
            with contextlib.suppress(SwerexException):  # it may have died
                await self.runtime.close_session(CloseSessionRequest(session=self.name))

    def action(self, command: str, timeout: float = PATIENCE, **more: Any) -> BashAction:
        return BashAction(command=command, session=self.name, timeout=timeout, check="silent", **more)

    def compare(self, made: Step, output: str, code: int | None) -> None:
        if output != made.output:
            raise Wrong(f"{made.command[:SHOWN]!r} prints {output[:SHOWN]!r}, not {made.output[:SHOWN]!r}")
        if made.code is not None and code != made.code:
            raise Wrong(f"{made.command[:SHOWN]!r} has the exit code {code}, not {made.code}")

    async def run(self, made: Step) -> None:
        seen = await self.runtime.run_in_session(self.action(made.command))
        self.compare(made, seen.output, seen.exit_code)

    async def stream(self, made: Step) -> None:
        pieces = [piece async for piece in self.runtime.stream_in_session(self.action(made.command))]
        seen = pieces.pop()
        self.compare(made, seen.output, seen.exit_code)
        if "".join(pieces) != seen.output:
            raise Wrong(
                f"the pieces of {made.command[:SHOWN]!r} are {''.join(pieces)[:SHOWN]!r}, not {seen.output[:SHOWN]!r}"
            )

    async def match(self, made: Step) -> None:
        seen = await self.runtime.run_in_session(self.action(made.command, expect=[made.match]))
        if seen.expect_string != made.match:
            raise Wrong(f"{made.command[:SHOWN]!r} is said to end at {seen.expect_string!r}")
        self.compare(made, seen.output, made.code if seen.exit_code is None else seen.exit_code)
        await self.wait_idle()

    async def wait_idle(self) -> None:
        """A match does not wait for the command."""
        seen = await self.runtime.run_in_session(self.action("echo idle"))
        self.compare(Step("echo idle", "idle\n"), seen.output, seen.exit_code)

    async def interrupt(self, made: Step) -> None:
        try:
            seen = await self.runtime.run_in_session(self.action(made.command, 0.3))
            raise Wrong(f"{made.command[:SHOWN]!r} is called finished: {seen!r:.300}")
        except CommandTimeoutError as error:
            if error.output not in (made.output, ""):  # on a busy machine it may not have begun
                raise Wrong(f"{made.command[:SHOWN]!r} prints {error.output!r:.300} before its timeout") from None
        await self.end_command()

    async def end_command(self) -> None:
        await self.runtime.run_in_session(BashInterruptAction(session=self.name, timeout=1.0, n_retry=10))

    async def cancel(self, made: Step) -> None:
        task = asyncio.ensure_future(self.runtime.run_in_session(self.action(made.command)))
        await asyncio.sleep(random.random() / 50)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            raise Wrong(f"{made.command!r} is not cancelled: {await task!r:.300}")
        await self.end_command()

    async def queue(self, made: Step) -> None:
        first, second = made.command.split("\n")
        runs = asyncio.ensure_future(self.runtime.run_in_session(self.action(first)))
        await asyncio.sleep(0)
        waits = asyncio.ensure_future(self.runtime.run_in_session(self.action(second)))
        await asyncio.sleep(0)
        waits.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waits
        seen = await runs
        self.compare(made, seen.output, seen.exit_code)
        seen = await self.runtime.run_in_session(self.action('echo "$v9"'))
        self.compare(Step('echo "$v9"', "kept\n"), seen.output, seen.exit_code)

    async def many(self, made: Step) -> None:
        """All at once: they run in this order."""
        commands = made.command.split("\n")
        seen = await asyncio.gather(*(self.runtime.run_in_session(self.action(command)) for command in commands))
        self.compare(made, "".join(each.output for each in seen), max(each.exit_code for each in seen))

    async def talk(self, made: Step) -> None:
        command, line = made.command.split("\n")
        await self.runtime.run_in_session(self.action(command, is_interactive_command=True, expect=[made.match]))
        seen = await self.runtime.run_in_session(self.action(line, is_interactive_quit=True))
        if seen.output.strip() != made.output:
            raise Wrong(f"{line!r} to {command!r} gives {seen.output!r:.300}, not {made.output!r}")


async def is_wrong(runtime: Any, history: list[Operation], tries: int) -> Wrong | None:
    for _ in range(tries):
        try:
            await Run(runtime, f"again-{random.getrandbits(40)}").replay(history)
        except Wrong as error:
            return error
    return None


async def shortened(runtime: Any, history: list[Operation], error: Wrong, tries: int) -> tuple[list[Operation], Wrong]:
    """The shortest history that is found to be wrong too: without a half, a quarter, ... of it."""
    size = len(history) // 2
    while size:
        at = 0
        while at < len(history):
            part = history[:at] + history[at + size :]
            found = await is_wrong(runtime, part, tries)
            if found is not None:
                history, error = part, found
            else:
                at += size
        size //= 2
    return history, error


HIDE_MARKS = {"prompts", "prompt_commands", "freezes", "descriptors"}
"""Operations that are left out in a place: marks alone tell the end of a command there, and these hide them."""


class Soak:
    """Histories until the time is over or one is wrong."""

    def __init__(
        self, seed: int, until: float, numbers: Iterator[int], server: Server | None, tries: int, place: str = ""
    ):
        self.seed = seed
        self.until = until
        self.numbers = numbers
        self.server = server
        self.tries = tries
        self.place = place
        self.count = 0
        self.wrong = 0

    async def one(self, runtime: Any, number: int) -> None:
        history = operations(random.Random(f"{self.seed} {number}"), LENGTH)
        if self.place:
            history = [operation for operation in history if operation.name not in HIDE_MARKS]
        run = Run(runtime, f"soak-{number}")
        try:
            await run.replay(history, self.until)
        except Wrong as error:
            self.wrong += 1
            done = history[: len(run.steps)]
            print(f"wrong, in history {number} of seed {self.seed}: {error}", flush=True)
            for made in run.steps[-6:]:
                print(f"    before: {made.way:9} {made.command[:SHOWN]!r:.400}", flush=True)
            self.until = min(self.until, time.monotonic())
            short, error = await shortened(runtime, done, error, self.tries)
            model = Model()
            print(f"shortest, {len(short)} operations: {error}")
            for operation in short:
                made = step(model, operation)
                print(f"    {made.way:9} {made.command[:SHOWN]!r:.400}", flush=True)
        finally:
            self.count += len(run.steps)

    async def work(self, runtime: Any) -> None:
        while time.monotonic() < self.until and (number := next(self.numbers, None)) is not None:
            await self.one(runtime, number)

    async def work_on(self, sessions: int) -> None:
        runtime: Any = runtime_in(self.place) if self.place else LocalRuntime()
        if self.server is not None:
            runtime = RemoteRuntime(host="http://127.0.0.1", port=self.server.port, auth_token=KEY)
        try:
            await asyncio.gather(*(self.work(runtime) for _ in range(sessions)))
        finally:
            await runtime.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.getrandbits(31))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--sessions", type=int, default=8, help="at once, in each thread")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--server", action="store_true", help="through a server")
    parser.add_argument("--place", default="", help="`here`, or a container that shares this machine's files")
    parser.add_argument("--busy", type=int, default=0, help="processes that take the processors meanwhile")
    parser.add_argument("--only", type=int, help="one history of the seed")
    parser.add_argument("--tries", type=int, default=3, help="before a shorter history is taken for right")
    wanted = parser.parse_args()
    if wanted.server and wanted.threads > 1:
        parser.error("--server goes with one thread: the first to end would close the server's sessions")
    if wanted.server and wanted.place:
        parser.error("--server does not go with --place")
    print(f"seed {wanted.seed}", flush=True)
    os.environ.setdefault("SWE_REX_LOG_STREAM_LEVEL", "ERROR")
    for name in ("PROMPT_COMMAND", "PS1", "ENV", "BASH_ENV"):
        os.environ.pop(name, None)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(wanted.busy)]
    began = time.monotonic()
    numbers = itertools.count() if wanted.only is None else iter([wanted.only])
    try:
        with contextlib.ExitStack() as stack:
            home = os.environ["HOME"] = stack.enter_context(tempfile.TemporaryDirectory())  # no startup files
            server = stack.enter_context(serving(Path(home, "log"), command=FRONT)) if wanted.server else None
            tester = Soak(wanted.seed, began + wanted.seconds, numbers, server, wanted.tries, wanted.place)
            with ThreadPoolExecutor(wanted.threads) as pool:
                for done in [pool.submit(asyncio.run, tester.work_on(wanted.sessions)) for _ in range(wanted.threads)]:
                    done.result()
    finally:
        for process in busy:
            process.kill()
            process.wait()
    print(f"{tester.count:,} commands in {time.monotonic() - began:.0f} s, {tester.wrong} histories wrong")
    return int(tester.wrong > 0)


if __name__ == "__main__":
    raise SystemExit(main())
