"""Run sessions in random states, and compare what they answer with what the model knows.

    python -m tests.engine.random_tester --seconds 60 --sessions 16 --busy 2    this machine
    python -m tests.engine.random_tester --seconds 60 --threads 4               several event loops
    python -m tests.engine.random_tester --seconds 60 --server                  through a server
    python -m tests.engine.random_tester --seconds 60 --closed                  /proc/PID/syscall cannot be opened
    python -m tests.engine.random_tester --seconds 60 --place here              in a place: tests.support.local_backend
    python -m tests.engine.random_tester --seed 17 --only 3                     one history of a seed again

A finding is an answer that is not the model's, a hang, or an error where the model knows the answer. It is printed with
the shortest history that was found to give it. The exit code is then 1.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from swerex_c.exceptions import CommandTimeoutError, SessionDiedError, SwerexException
from swerex_c.runtime.local import LocalRuntime
from swerex_c.runtime.remote import RemoteRuntime
from tests.engine.random_model import Model, Operation, Step, brief, operations, plan
from tests.support.closed_syscall import build_preload
from tests.support.harness import busy_machine
from tests.support.local_backend import runtime_in
from tests.support.server_process import FRONT, KEY, serving
from tests.support.session import Session

LENGTH = 40
"""Operations of a history."""

PATIENCE = 30.0
"""Seconds that a command may take on a busy machine; what takes longer hangs."""

QUICK = 6.0
"""Seconds of patience while a history is shortened: it has been seen to be wrong."""

TRIES = 3
"""Replays of a shorter history before it is taken for right."""

SHORTEN_SECONDS = 60.0
"""Seconds until a history is short enough."""

NOTICE = re.compile(r"\[\d+\](?: \d+|[-+ ] +(?:Done|Exit|Running|Terminated|Killed|Interrupt).*)\n|\(wd now: .*\)\n")
"""What bash says of jobs as they start and end."""


class Finding(Exception):
    """An answer is not what the model says."""


class Notice(Finding):
    """By chance a notice of a job is in the output, which is known."""


class Known(NamedTuple):
    """What is known to fail, which histories leave out."""

    why: str
    left_out: Sequence[str]
    """Patterns for whole commands: where each has been matched, the last of them is not done."""
    ways: str = "local, closed, place"

    def is_in(self, steps: Sequence[Step]) -> bool:
        """Return whether the last step completes the case."""
        commands = [step.command for step in steps]
        return any(re.fullmatch(each, commands[-1], re.DOTALL) for each in self.left_out) and all(
            any(re.fullmatch(each, command, re.DOTALL) for command in commands) for each in self.left_out
        )


EVAL = r"alias q\d.*\n.*|.*\\|alias \{.*|trap [:-] CHLD"
"""What is sent by `eval`, or makes others be."""

KNOWN = [
    Known("the notice of a job that begins and ends in the same command stays", [r"sleep 0\.0\d &\n.*; sleep .*"]),
    Known("a DEBUG trap runs for an eval of ours", ["trap 'echo D' DEBUG", EVAL]),
    Known("a trap on ERR runs for an eval of ours", ["trap 'echo E' ERR", EVAL]),
    Known("a trace shows an eval of ours", ["set -x", EVAL]),
    Known("a long `$_` is lost where the shell is asked, and what put PS2 back is in it",
          ["exec 2>(/dev/null|&-)|PROMPT_COMMAND.*", ".{130000,}"], "local"),
    Known("the same, where prompts go to a file", ["exec >.~/o..", "exec 2>&1", ".{130000,}"], "local"),
    Known("a long `$_` is lost where PS1 is readonly, and `:` is in it", ["declare -r PS.*", ".{130000,}"], "local"),
    Known("with `set -v`, what runs nothing has a newline as output", ["set -v", r"\s*|\s*# c\s*"]),
    Known("with `set -v` and a readonly prompt, commands are output", ["declare -r PS.*", "set -v"]),
    Known("by chance, with `set -v`, the engine's own text is in the pieces of a stream", ["set -v"], "closed"),
    Known("by chance, what a DEBUG trap prints is lost", ["trap 'echo D' DEBUG"], "closed, place"),
    Known("`set -v` shows commands", ["set -v"], "place"),
    Known("a session whose prompt is lost while its input can only be read is lost",
          ["exec 0</dev/tty"], "closed, place"),
    Known("the same, where the prompt goes to that input", ["exec 0</dev/tty", "exec 2>&0"], "local"),
    Known("a session whose prompt is lost while printf is disabled is lost", ["enable -n printf"]),
    Known("PROMPT_COMMAND is readonly, and prompts are hidden", ["declare -r PROMPT_COMMAND"], "closed, place"),
    Known("PROMPT_COMMAND is readonly, and an element of it has a brace", ["declare -r PROMPT_COMMAND", "alias {.*"]),
    Known("the text of a PS0 that PROMPT_COMMAND sets is output once",
          ["PROMPT_COMMAND.*PS0.*", r"alias \{.*|declare -r PS1.*"], "local"),
    Known("marks go to a file", ["exec >.~/o..", "exec 2>&1"], "closed"),
    Known("a shell is said to have died before a last command that it ran",
          [".*PS0.*", ".*exit .*|.*kill -9.*|.*exec [<s].*|set -e.*"], "closed, place"),
    Known("lines behind an unbound variable run in an eval of ours, and not if typed",
          ["set -u", r"alias .*|.*\\"]),
    Known("PROMPT_COMMAND is readonly, and a letter is a control character",
          ["declare -r PROMPT_COMMAND", "stty (eof|intr|erase|kill|quit|susp) .*"], "place"),
    Known("bash takes an assigned list for an error behind a trap on SIGCHLD that runs at its prompt",
          ["trap .* CHLD", r"\w+\+?=\(.*"], "local"),
    Known("bash expands no alias behind a trap on SIGCHLD that runs at its prompt",
          ["trap .* CHLD", "PROMPT_COMMAND=.*", r"q\d .*"]),
    Known("bash takes `$(...)` for a syntax error where a trap on SIGCHLD is due",
          ["trap .* CHLD", r"PROMPT_COMMAND='\(.*", r"PS1='\$\(.*"]),
    Known("a long `$_` is exported", ["set -a", ".{130000,}", ".*exec .*"], "closed, place"),
    Known("a prompt that readline cuts is output", ["TERM=dumb", "stty cols 40", "set -o (vi|emacs)"], "local, closed"),
    Known("an element without braces shows its error", ["alias {.*", ".*exec <.*"], "closed, place"),
    Known("the last prompt of a shell whose input ends is output", [".*PS1.*", ".*exec <.*"], "closed, place"),
    Known("the same, where PS1 is readonly or set before each prompt",
          ["declare -r PS1.*|PROMPT_COMMAND.*PS1.*", ".*exec <.*"], "local"),
]  # fmt: skip


class Run:
    """A session, and what is done to it. The methods that steps name raise Finding."""

    def __init__(self, runtime: Any, name: str, patience: float = PATIENCE):
        self.session = Session(runtime, name, patience)
        self.done: list[Step] = []

    async def replay(self, steps: Sequence[Step], until: float = math.inf) -> None:
        """Do all of it in a new session, or what there is time for."""
        await self.session.create(startup_source=[], startup_timeout=PATIENCE)
        try:
            for step in steps:
                if time.monotonic() > until:
                    return
                self.done.append(step)
                await self.do(step)
                if step.dies:
                    await self.expect_death()
        finally:
            with contextlib.suppress(SwerexException):  # it may have died
                await self.session.close()

    async def do(self, step: Step) -> None:
        try:
            await asyncio.wait_for(getattr(self, step.way)(step), 3 * self.session.patience)
        except Finding:
            raise
        except CommandTimeoutError as error:
            raise Finding(f"{step!r} hangs: {error!r:.600}") from error
        except SwerexException as error:
            if type(error).__name__ != step.error:
                raise Finding(f"{step!r} raises {error!r:.600}") from error
        except TimeoutError:
            raise Finding(f"{step!r} hangs") from None
        except Exception as error:
            raise Finding(f"{step!r} raises {error!r}") from error
        else:
            if step.error:
                raise Finding(f"{step!r} raises nothing")

    async def expect_death(self) -> None:
        try:
            seen = await self.session.run("echo more")
        except SessionDiedError:
            return
        raise Finding(f"a session that has ended answers {seen!r:.300}")

    async def ask(self, step: Step, **more: Any) -> None:
        seen = await self.session.run(step.command, **more)
        self.compare(step, seen.output, seen.exit_code)

    def compare(self, step: Step, output: str, code: int | None) -> None:
        if step.dies:
            output = output.replace("exit\n", "", 1)  # the shell's word, which it may be too late to see
        more = Counter(NOTICE.findall(output)) - Counter(NOTICE.findall(step.output))
        if more and NOTICE.sub("", output) == NOTICE.sub("", step.output):  # a command may print what looks like one
            raise Notice(f"{step!r} prints {brief(output)}")
        if output != step.output:
            raise Finding(f"{step!r} prints {brief(output)}")
        if step.code is not None and code != step.code:
            raise Finding(f"{step!r} has the exit code {code}")

    run = ask

    async def stream(self, step: Step) -> None:
        pieces, seen = await self.session.stream(step.command)
        self.compare(step, seen.output, seen.exit_code)
        if "".join(pieces) != seen.output:
            raise Finding(f"the pieces of {step!r} are {brief(''.join(pieces))}")

    async def jobs(self, step: Step) -> None:
        """Notices of jobs beside the output are right, if each has a line of its own."""
        seen = await self.session.run(step.command)
        lines = [line for line in seen.output.splitlines(keepends=True) if not NOTICE.fullmatch(line)]
        self.compare(step, "".join(lines), seen.exit_code)

    async def matches(self, step: Step) -> None:
        seen = await self.session.run(step.command, expect=[step.match])
        if seen.expect_string != step.match:
            raise Finding(f"{step!r} ends at {seen.expect_string!r}")
        self.compare(step, seen.output, None)
        await self.ask(Step("echo idle", "idle\n"))  # a match does not wait for the command

    async def interrupted(self, step: Step) -> None:
        await self.times_out(step)
        await self.interrupt()
        await self.ask(Step("echo idle", "idle\n"))

    async def late(self, step: Step) -> None:
        with contextlib.suppress(CommandTimeoutError):  # unless this machine was later
            await self.ask(step, timeout=step.delay)
        await self.ask(Step('echo "$v8"', step.command.partition("=")[2] + "\n"))

    async def times_out(self, step: Step) -> None:
        """Its output may not have begun when its time is over."""
        try:
            seen = await self.session.run(step.command, timeout=step.delay)
        except CommandTimeoutError as error:
            if NOTICE.sub("", error.output) not in (step.output, ""):
                raise Finding(f"{step!r} prints {error.output!r:.300} before its timeout") from None
        else:
            raise Finding(f"{step!r} is called finished: {seen!r:.300}")

    async def interrupt(self) -> None:
        await self.session.interrupt(timeout=1.0, n_retry=10)

    async def cancelled(self, step: Step) -> None:
        task = asyncio.ensure_future(self.session.run(step.command))
        await asyncio.sleep(step.delay)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            raise Finding(f"{step!r} is not cancelled: {await task!r:.300}")
        await self.interrupt()

    async def queued(self, step: Step) -> None:
        gate = Path(os.environ["HOME"], f"gate-{self.session.name}")
        first, second = step.command.replace("GATE", str(gate)).split("\n")
        runs = asyncio.ensure_future(self.session.run(first))
        await asyncio.sleep(0)
        waits = asyncio.ensure_future(self.session.run(second))
        await asyncio.sleep(0)
        waits.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waits
        gate.touch()
        seen = await runs
        gate.unlink()
        self.compare(step, seen.output, seen.exit_code)
        await self.ask(Step('echo "$v9"', "kept\n"))

    async def many(self, step: Step) -> None:
        """All at once: they run in this order."""
        seen = await asyncio.gather(*map(self.session.run, step.command.split("\n")))
        self.compare(step, "".join(each.output for each in seen), max(each.exit_code for each in seen))

    async def talks(self, step: Step) -> None:
        command, line = step.command.split("\n")
        begun = replace(step, command=command, output="")
        await self.ask(begun, is_interactive_command=True, expect=[step.match])
        seen = await self.session.run(line, is_interactive_quit=True)
        self.compare(replace(step, output=f"{step.output}\n"), f"{seen.output.strip()}\n", None)


class Search:
    """Histories of a seed, until the time is over."""

    def __init__(self, wanted: argparse.Namespace, numbers: Iterator[int], port: int):
        self.wanted = wanted
        self.numbers = numbers
        self.port = port
        self.way = "place" if wanted.place else "closed" if wanted.closed else "local"
        self.known = [known for known in KNOWN if self.way in known.ways]
        self.until = time.monotonic() + wanted.seconds
        self.count = self.findings = 0

    def runtime(self) -> Any:
        if self.port:
            return RemoteRuntime(host="http://127.0.0.1", port=self.port, auth_token=KEY)
        return runtime_in(self.wanted.place) if self.wanted.place else LocalRuntime()

    def steps(self, history: Sequence[Operation]) -> list[Step]:
        model = Model(carried=self.way == "place")
        return plan(model, history, lambda steps: any(known.is_in(steps) for known in self.known))

    async def failure(self, runtime: Any, steps: Sequence[Step]) -> Finding | None:
        """Return what is wrong with the last step, or one like it."""
        for _ in range(TRIES):
            run = Run(runtime, f"again-{random.getrandbits(40)}", QUICK)
            try:
                await run.replay(steps)
            except Finding as error:
                if run.done[-1] == steps[-1]:
                    return error
        return None

    async def shortened(self, runtime: Any, history: Sequence[Operation]) -> tuple[list[Step], Finding | None]:
        """Leave out halves, quarters, ... of what is before the last operation, as long as that fails."""
        until = time.monotonic() + SHORTEN_SECONDS
        before, last = list(history[:-1]), history[-1]
        found = await self.failure(runtime, self.steps(history))
        size = len(before)
        while size and found:
            at = 0
            while at < len(before) and time.monotonic() < until:
                part = before[:at] + before[at + size :]
                failure = await self.failure(runtime, self.steps([*part, last]))
                if failure is None:
                    at += size
                else:
                    before, found = part, failure
            size //= 2
        return self.steps([*before, last]), found

    async def one(self, runtime: Any, number: int) -> None:
        history = operations(random.Random(f"{self.wanted.seed} {number}"), LENGTH)
        run = Run(runtime, f"random-{number}")
        try:
            await run.replay(self.steps(history), self.until)
        except Notice:
            pass
        except Finding as error:
            self.findings += 1
            print(f"wrong, in history {number} of seed {self.wanted.seed}: {error}", flush=True)
            for step in run.done[-6:]:
                print(f"    before: {step!r}", flush=True)
            failed = next(end for end in itertools.count(1) if len(self.steps(history[:end])) == len(run.done))
            steps, found = await self.shortened(runtime, history[:failed])
            print(f"the shortest of history {number}, {len(steps)} steps: {found or 'it did not happen again'}")
            for step in steps:
                print(f"    {step!r},", flush=True)
        finally:
            self.count += len(run.done)

    async def work(self, runtime: Any) -> None:
        while time.monotonic() < self.until and not self.findings:
            number = next(self.numbers, None)
            if number is None:
                return
            await self.one(runtime, number)

    async def work_on(self) -> None:
        """Run sessions in an event loop."""
        runtime = self.runtime()
        try:
            await asyncio.gather(*(self.work(runtime) for _ in range(self.wanted.sessions)))
        finally:
            await runtime.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=random.getrandbits(31))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--sessions", type=int, default=8, help="at once, in each thread")
    parser.add_argument("--threads", type=int, default=1, help="each with an event loop and a runtime")
    parser.add_argument("--server", action="store_true", help="through a server")
    parser.add_argument("--closed", action="store_true", help="as where /proc/PID/syscall cannot be opened")
    parser.add_argument("--place", default="", help="`here`, or a container that shares this machine's files")
    parser.add_argument("--busy", type=int, default=0, help="processes that take the processors meanwhile")
    parser.add_argument("--only", type=int, help="one history of the seed")
    wanted = parser.parse_args()
    if wanted.server and (wanted.threads > 1 or wanted.place):
        parser.error("--server goes with one thread, whose end closes its sessions, and without --place")
    if wanted.closed and "SWX_CLOSED" not in os.environ:
        with tempfile.TemporaryDirectory() as directory:
            library = build_preload(Path(directory))
            command = [sys.executable, "-m", "tests.engine.random_tester", *sys.argv[1:]]
            closed = {"LD_PRELOAD": library, "SWX_CLOSED": library}
            return subprocess.run(command, env=os.environ | closed, check=False).returncode
    print(f"seed {wanted.seed}", flush=True)
    os.environ.setdefault("SWE_REX_LOG_STREAM_LEVEL", "ERROR")
    for name in ("PROMPT_COMMAND", "PS1", "ENV", "BASH_ENV"):
        os.environ.pop(name, None)
    preload = {"LD_PRELOAD": os.environ["SWX_CLOSED"]} if wanted.closed else {}
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        stack.enter_context(busy_machine(wanted.busy))
        home = os.environ["HOME"] = stack.enter_context(tempfile.TemporaryDirectory())  # no startup files
        server = serving(Path(home, "log"), command=FRONT, **preload)
        port = stack.enter_context(server).port if wanted.server else 0
        search = Search(wanted, itertools.count() if wanted.only is None else iter([wanted.only]), port)
        with ThreadPoolExecutor(wanted.threads) as pool:
            for done in [pool.submit(asyncio.run, search.work_on()) for _ in range(wanted.threads)]:
                done.result()
    print(f"{search.count:,} commands in {time.monotonic() - began:.0f} s, {search.findings} wrong")
    return int(search.findings > 0 or not search.count)


if __name__ == "__main__":
    raise SystemExit(main())
