"""One contender in a process of its own: reads requests as JSON lines, runs them, answers with JSON lines.

bench.py starts one of these per contender, with the interpreter in which that contender lives, and asks them in turn.
Everything is measured here, next to the call that a user would write, so that pipes between processes never count.
Times in results are microseconds, CPU too; "self" is this process with all its threads, "children" all below it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import re
import resource
import select
import shutil
import signal
import statistics
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

FENCE_PROMPT = "\x1eF$?;\x1f"
FENCE = re.compile(rb"\x1eF(\d+);\x1f")
BARE_ARGUMENTS = ["--noprofile", "--norc", "--noediting", "-i"]
CHUNK = 65536
TICK_US = 1e6 / os.sysconf("SC_CLK_TCK")
SLEEP_BEFORE_INTERRUPT = 0.2

Answer = tuple[str | bytes, int | None]


def bare_environment() -> dict[str, str]:
    """The environment for shells that are driven by hand: our prompt, nothing that prints beside it."""
    environment = dict(os.environ, PS1=FENCE_PROMPT, PS2="", TERM="dumb")
    environment.pop("PROMPT_COMMAND", None)
    return environment


def plain_terminal(fd: int) -> None:
    """The terminal mode of all contenders: no echo and no output processing."""
    mode = termios.tcgetattr(fd)
    mode[1] &= ~termios.OPOST
    mode[3] &= ~termios.ECHO
    termios.tcsetattr(fd, termios.TCSANOW, mode)


class Contender:
    """What a workload needs.  `key` names a session."""

    package = ""
    """What a caller imports, for the row about imports."""

    threads = False
    """Whether many sessions at once need a thread each."""

    def _lacks(self, what: str) -> LookupError:
        return LookupError(f"{type(self).__name__} does not {what}")

    async def open(self, key: str) -> None:
        raise self._lacks("open")

    async def close(self, key: str) -> None:
        raise self._lacks("close")

    async def run(self, key: str, text: str) -> Answer:
        return self.run_now(key, text)

    def run_now(self, key: str, text: str) -> Answer:
        """The same without a loop, for contenders with `threads`."""
        raise self._lacks("run a command")

    async def wait_for(self, key: str, text: str, patterns: list[str]) -> str:
        """Runs text until one of the patterns is seen; returns the pattern."""
        raise self._lacks("wait for patterns")

    async def begin(self, key: str, text: str) -> None:
        """Runs text that does not end; returns after SLEEP_BEFORE_INTERRUPT, when a caller has given up on it."""
        raise self._lacks("begin")

    async def interrupt(self, key: str) -> None:
        raise self._lacks("interrupt")

    async def interrupt_running(self, key: str, text: str) -> float:
        """Interrupts text while its caller still waits for it; returns the seconds until that caller was answered."""
        raise self._lacks("interrupt what runs")

    async def execute(self, text: str) -> Answer:
        raise self._lacks("execute")


class Runtime(Contender):
    """`LocalRuntime` of a package with the API of SWE-ReX."""

    def __init__(self, package: str) -> None:
        self.package = package
        self.api: Any = importlib.import_module(f"{package}.runtime.abstract")
        self.timeout_error: Any = importlib.import_module(f"{package}.exceptions").CommandTimeoutError
        self.runtime: Any = importlib.import_module(f"{package}.runtime.local").LocalRuntime()

    async def open(self, key: str) -> None:
        await self.runtime.create_session(self.api.CreateBashSessionRequest(session=key, startup_timeout=10))

    async def close(self, key: str) -> None:
        await self.runtime.close_session(self.api.CloseBashSessionRequest(session=key))

    async def run(self, key: str, text: str) -> Answer:
        result = await self.runtime.run_in_session(self.api.BashAction(command=text, session=key, check="silent"))
        return result.output, result.exit_code

    async def wait_for(self, key: str, text: str, patterns: list[str]) -> str:
        action = self.api.BashAction(command=text, session=key, check="ignore", expect=patterns)
        return str((await self.runtime.run_in_session(action)).expect_string)

    async def begin(self, key: str, text: str) -> None:
        action = self.api.BashAction(command=text, session=key, check="silent", timeout=SLEEP_BEFORE_INTERRUPT)
        try:
            await self.runtime.run_in_session(action)
        except self.timeout_error:
            return
        raise RuntimeError(f"{text!r} ended by itself")

    async def interrupt(self, key: str) -> None:
        await self.runtime.run_in_session(self.api.BashInterruptAction(session=key))

    async def interrupt_running(self, key: str, text: str) -> float:
        action = self.api.BashAction(command=text, session=key, check="silent")
        running = asyncio.ensure_future(self.runtime.run_in_session(action))
        await asyncio.sleep(SLEEP_BEFORE_INTERRUPT)
        start = time.perf_counter()
        interrupt = asyncio.ensure_future(self.runtime.run_in_session(self.api.BashInterruptAction(session=key)))
        await asyncio.wait([running], timeout=10)
        took = time.perf_counter() - start
        await interrupt
        await running
        return took

    async def execute(self, text: str) -> Answer:
        result = await self.runtime.execute(self.api.Command(command=text, shell=True))
        return result.stdout, result.exit_code


class Core(Contender):
    """The core by itself: no event loop, no models, no checks of a caller's input."""

    threads = True

    startup = b"[[ ! -r /etc/bash.bashrc ]] || . /etc/bash.bashrc\n[[ ! -r ~/.bashrc ]] || . ~/.bashrc\n"
    direct = 10_000
    """Microseconds for which the calling thread waits by itself; after that the core's thread does."""

    def __init__(self) -> None:
        self.core: Any = importlib.import_module("swerex_c._core")
        self.make_matcher: Any = importlib.import_module("swerex_c.runtime._patterns").make_matcher
        self.bash = os.fsencode(shutil.which("bash") or "/bin/bash")
        self.sessions: dict[str, tuple[Any, Any]] = {}

    def finish(self, operation: Any, waker: Any) -> Any:
        while not operation.done:
            select.select([waker.fileno()], [], [])
            waker.take()
        return operation

    async def open(self, key: str) -> None:
        environment = [os.fsencode(f"{name}={value}") for name, value in os.environ.items()]
        session = self.core.Session(self.bash, environment, None, 24, 80, 256 << 20)
        waker = self.core.Waker()
        self.sessions[key] = session, waker
        self.finish(session.start(self.startup, 10.0, waker, None), waker)

    async def close(self, key: str) -> None:
        session, waker = self.sessions.pop(key)
        self.finish(session.close(waker, None), waker)

    def submit(self, key: str, text: str, timeout: float | None = None, matcher: Any = None) -> Any:
        session, waker = self.sessions[key]
        operation = session.run(text, -1, timeout, None, matcher, waker, None, None, self.direct)
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
        self.submit(key, text, timeout=SLEEP_BEFORE_INTERRUPT)

    async def interrupt(self, key: str) -> None:
        session, waker = self.sessions[key]
        self.finish(session.interrupt(0.2, 3, None, waker, None), waker)

    def run_all(self, keys: list[str], text: str, count: int) -> int:
        """Runs text `count` times in each session at once, by one thread and one waker; returns the wrong answers."""
        waker = self.core.Waker()
        waiting: dict[str, Any] = {}
        left = dict.fromkeys(keys, count)
        wrong = 0

        def submit(key: str) -> None:
            waiting[key] = self.sessions[key][0].run(text, -1, None, None, None, waker, key, None, 0)

        for key in keys:
            submit(key)
        while waiting:
            select.select([waker.fileno()], [], [])
            for key in waker.take():
                operation = waiting.pop(key)
                wrong += not is_empty((operation.output, operation.code))
                left[key] -= 1
                if left[key]:
                    submit(key)
        return wrong


class Pexpect(Contender):
    """pexpect as a careful user tunes it: no delays, a fence in the prompt, a small search window."""

    threads = True

    def __init__(self) -> None:
        self.pexpect: Any = importlib.import_module("pexpect")
        self.sessions: dict[str, Any] = {}
        self.fence = [FENCE]

    async def open(self, key: str) -> None:
        tuned = {"timeout": None, "maxread": CHUNK, "searchwindowsize": 200}
        child = self.pexpect.spawn("bash", BARE_ARGUMENTS, env=bare_environment(), echo=False, **tuned)
        child.delaybeforesend = None
        child.delayafterread = None
        plain_terminal(child.child_fd)
        self.sessions[key] = child
        child.expect_list(self.fence)

    async def close(self, key: str) -> None:
        child = self.sessions.pop(key)
        child.kill(signal.SIGKILL)
        child.wait()
        child.ptyproc.delayafterclose = 0
        child.close()

    def run_now(self, key: str, text: str) -> Answer:
        child = self.sessions[key]
        child.sendline(text)
        child.expect_list(self.fence)
        return child.before, int(child.match.group(1))

    async def wait_for(self, key: str, text: str, patterns: list[str]) -> str:
        child = self.sessions[key]
        child.sendline(text)
        index: int = child.expect([*patterns, FENCE.pattern])
        if index < len(patterns):
            child.expect_list(self.fence)
            return patterns[index]
        return ""

    async def begin(self, key: str, text: str) -> None:
        self.sessions[key].sendline(text)
        await asyncio.sleep(SLEEP_BEFORE_INTERRUPT)

    async def interrupt(self, key: str) -> None:
        self.sessions[key].sendintr()
        self.sessions[key].expect_list(self.fence)


class Ptyprocess(Contender):
    """ptyprocess for the start, then os.write and os.read by hand: the least Python that works."""

    threads = True

    def __init__(self) -> None:
        self.spawn: Any = importlib.import_module("ptyprocess").PtyProcess.spawn
        self.sessions: dict[str, Any] = {}

    async def open(self, key: str) -> None:
        process = self.spawn(["bash", *BARE_ARGUMENTS], env=bare_environment(), echo=False)
        plain_terminal(process.fd)
        self.sessions[key] = process
        self.read_answer(process.fd)

    async def close(self, key: str) -> None:
        process = self.sessions.pop(key)
        process.kill(signal.SIGKILL)
        process.wait()
        process.close()

    @staticmethod
    def read_answer(fd: int) -> Answer:
        chunks = []
        tail = b""
        while True:
            chunk = os.read(fd, CHUNK)
            chunks.append(chunk)
            tail = tail[-24:] + chunk[-24:]
            if tail.endswith(b"\x1f"):
                found = FENCE.search(tail)
                if found:
                    output = b"".join(chunks)
                    return output[: output.rindex(b"\x1e")], int(found.group(1))

    def run_now(self, key: str, text: str) -> Answer:
        fd = self.sessions[key].fd
        os.write(fd, text.encode() + b"\n")
        return self.read_answer(fd)

    async def wait_for(self, key: str, text: str, patterns: list[str]) -> str:
        # One alternation, searched in each chunk with 200 bytes of what came before.
        wanted = re.compile("|".join(f"(?P<p{i}>{p})" for i, p in enumerate(patterns)).encode(), re.DOTALL)
        fd = self.sessions[key].fd
        os.write(fd, text.encode() + b"\n")
        window = b""
        while True:
            window = window[-200:] + os.read(fd, CHUNK)
            found = wanted.search(window)
            if found and found.lastgroup:
                if not FENCE.search(window):
                    self.read_answer(fd)
                return patterns[int(found.lastgroup[1:])]

    async def begin(self, key: str, text: str) -> None:
        os.write(self.sessions[key].fd, text.encode() + b"\n")
        await asyncio.sleep(SLEEP_BEFORE_INTERRUPT)

    async def interrupt(self, key: str) -> None:
        self.sessions[key].sendintr()
        self.read_answer(self.sessions[key].fd)


class Pipes(Contender):
    """asyncio and a bash on pipes, by hand: no terminal, no interrupt, the exit code by a second line."""

    def __init__(self) -> None:
        self.sessions: dict[str, Any] = {}

    async def open(self, key: str) -> None:
        self.sessions[key] = await asyncio.create_subprocess_exec(
            "bash",
            "--noprofile",
            "--norc",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=1 << 28,
        )
        await self.run(key, "true")

    async def close(self, key: str) -> None:
        process = self.sessions.pop(key)
        process.stdin.close()
        await process.wait()

    async def run(self, key: str, text: str) -> Answer:
        process = self.sessions[key]
        process.stdin.write(text.encode() + b"\nprintf '\\036F%d;\\037' $?\n")
        answer: bytes = await process.stdout.readuntil(b"\x1f")
        head = answer.rindex(b"\x1e")
        return answer[:head], int(answer[head + 2 : -2])


class Subprocess(Contender):
    """subprocess.run, for the rows about execute()."""

    async def execute(self, text: str) -> Answer:
        result = subprocess.run(text, shell=True, stdin=subprocess.DEVNULL, capture_output=True)
        return result.stdout.decode(), result.returncode


CONTENDERS: dict[str, Callable[[], Contender]] = {
    "ours": lambda: Runtime("swerex_c"),
    "core": Core,
    "original": lambda: Runtime("swerex"),
    "pexpect": Pexpect,
    "ptyprocess": Ptyprocess,
    "pipes": Pipes,
    "subprocess": Subprocess,
}


# ---- measuring ----


def _threads_and_children(pid: str) -> tuple[list[str], list[str]]:
    tasks = os.listdir(f"/proc/{pid}/task")
    children: list[str] = []
    for task in tasks:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended meanwhile
            children += Path(f"/proc/{pid}/task/{task}/children").read_text().split()
    return tasks, children


def children_cpu() -> float:
    """Microseconds of CPU below this process: living descendants, what they waited for, and what we waited for."""
    done = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (done.ru_utime + done.ru_stime) * 1e6 + tree_cpu(_threads_and_children("self")[1])


def tree_cpu(pending: list[str]) -> float:
    """Microseconds of CPU of these processes and all below them, with what they waited for."""
    total = 0.0
    while pending:
        pid = pending.pop()
        try:
            tasks, children = _threads_and_children(pid)
            for task in tasks:
                total += int(Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0]) / 1e3
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[13]) + int(fields[14])) * TICK_US
        except (FileNotFoundError, ProcessLookupError):
            continue
        pending += children
    return total


def self_cpu() -> float:
    """Microseconds of CPU of this process, all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return (used.ru_utime + used.ru_stime) * 1e6


def memory_kb(field: str, pid: int | str = "self") -> int:
    found = re.search(rf"^{field}:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return int(found.group(1)) if found else 0


class Measured:
    """CPU of this process and of those below it, from `with` to its end."""

    def __enter__(self) -> Measured:
        self.cpu_children_us = -children_cpu()
        self.cpu_self_us = -self_cpu()
        self.seconds = -time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter()
        self.cpu_self_us += self_cpu()
        self.cpu_children_us += children_cpu()

    def result(self, **more: object) -> dict[str, object]:
        cpu = {"cpu_self_us": self.cpu_self_us, "cpu_children_us": self.cpu_children_us}
        return {"seconds": self.seconds, **cpu, **more}


def is_empty(answer: Answer) -> bool:
    return not answer[0] and answer[1] == 0


class Workloads:
    """Each method is one operation that bench.py may ask for; its parameters are those of the request."""

    def __init__(self, contender: Contender) -> None:
        self.contender = contender
        self.kept: set[str] = set()

    async def session(self, key: str) -> str:
        """A session that stays open between rounds; one for each operation, so that none disturbs another."""
        if key not in self.kept:
            await self.contender.open(key)
            self.kept.add(key)
        return key

    async def command(self, text: str, count: int, warm: int, rest_us: int = 0) -> dict[str, object]:
        key, run, clock = await self.session("command"), self.contender.run, time.perf_counter_ns
        samples: list[int] = []
        wrong = 0
        for _ in range(warm):
            await run(key, text)
        with Measured() as measured:
            for _ in range(count):
                if rest_us:
                    until = clock() + rest_us * 1000
                    while clock() < until:
                        pass
                start = clock()
                answer = await run(key, text)
                samples.append(clock() - start)
                wrong += not is_empty(answer)
        return measured.result(count=count, wrong=wrong, samples_us=[s / 1e3 for s in samples])

    async def create(self, count: int) -> dict[str, object]:
        samples: list[float] = []
        wrong = 0
        with Measured() as measured:
            for i in range(count):
                start = time.perf_counter_ns()
                await self.contender.open(f"create{i}")
                samples.append((time.perf_counter_ns() - start) / 1e3)
                wrong += not is_empty(await self.contender.run(f"create{i}", "true"))
                await self.contender.close(f"create{i}")
        return measured.result(count=count, wrong=wrong, samples_us=samples)

    async def output(self, path: str, count: int) -> dict[str, object]:
        """`cat path`; the answer must be the file.  rss_growth_kb: how far memory peaked above where it was."""
        key = await self.session("output")
        samples: list[float] = []
        wrong = 0
        Path("/proc/self/clear_refs").write_text("5")
        before, peak = memory_kb("VmRSS"), 0
        with Measured() as measured:
            for _ in range(count):
                start = time.perf_counter_ns()
                answer = await self.contender.run(key, f"cat {path}")
                samples.append((time.perf_counter_ns() - start) / 1e3)
                peak = peak or memory_kb("VmHWM")
                wrong += not self.is_file(answer, path)
                del answer
        growth = {"rss_growth_kb": peak - before, "rss_peak_kb": peak, "bytes": os.path.getsize(path)}
        return measured.result(count=count, wrong=wrong, samples_us=samples, **growth)

    @staticmethod
    def is_file(answer: Answer, path: str) -> bool:
        output = answer[0].encode() if isinstance(answer[0], str) else answer[0]
        return answer[1] == 0 and output == Path(path).read_bytes()

    async def patterns(
        self, path: str, patterns: list[str], needle: str, expected: str, count: int
    ) -> dict[str, object]:
        """Reading the file with and without waiting for one of the patterns, in turn."""
        key = await self.session("patterns")
        samples: list[float] = []
        plain: list[float] = []
        cpu_plain = cpu_waiting = 0.0
        wrong = 0
        text = f"cat {path}; echo {needle}"
        with Measured() as measured:
            for _ in range(count):
                cpu_plain -= self_cpu()
                start = time.perf_counter_ns()
                answer = await self.contender.run(key, text)
                plain.append((time.perf_counter_ns() - start) / 1e3)
                cpu_plain += self_cpu()
                wrong += answer[1] != 0 or len(answer[0]) != os.path.getsize(path) + len(needle) + 1
                cpu_waiting -= self_cpu()
                start = time.perf_counter_ns()
                found = await self.contender.wait_for(key, text, patterns)
                samples.append((time.perf_counter_ns() - start) / 1e3)
                cpu_waiting += self_cpu()
                wrong += found != expected
                await asyncio.sleep(0.05)
                wrong += not is_empty(await self.contender.run(key, "true"))
        cpu = {"cpu_plain_us": cpu_plain, "cpu_waiting_us": cpu_waiting}
        return measured.result(count=count, wrong=wrong, samples_us=samples, plain_us=plain, **cpu)

    async def idle(self, sessions: int, seconds: float) -> dict[str, object]:
        before = memory_kb("VmRSS")
        for i in range(sessions):
            await self.contender.open(f"idle{i}")
        memory = memory_kb("VmRSS") - before
        await asyncio.sleep(0.5)
        with Measured() as measured:
            await asyncio.sleep(seconds)
        wrong = 0
        for i in range(sessions):
            wrong += not is_empty(await self.contender.run(f"idle{i}", "true"))
            await self.contender.close(f"idle{i}")
        return measured.result(count=sessions, wrong=wrong, rss_per_session_kb=memory / sessions)

    async def fleet(self, sessions: int, commands: int, one_waker: bool = False) -> dict[str, object]:
        keys = [f"fleet{i}" for i in range(sessions)]
        wrong: list[int] = []
        for key in keys:
            await self.contender.open(key)
            await self.contender.run(key, "true")

        async def work(key: str) -> None:
            run = self.contender.run
            wrong.append(sum([not is_empty(await run(key, "true")) for _ in range(commands)]))

        def work_now(key: str) -> None:
            run = self.contender.run_now
            wrong.append(sum(not is_empty(run(key, "true")) for _ in range(commands)))

        if one_waker:
            assert isinstance(self.contender, Core)
            with Measured() as measured:
                wrong = [0] * (sessions - 1) + [self.contender.run_all(keys, "true", commands)]
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
        for key in keys:
            await self.contender.close(key)
        total = sessions * commands
        missing = commands * (sessions - len(wrong))
        return measured.result(count=total, wrong=sum(wrong) + missing, per_second=total / measured.seconds)

    async def interrupt(self, count: int) -> dict[str, object]:
        key = await self.session("interrupt")
        samples: list[float] = []
        wrong = 0
        with Measured() as measured:
            for _ in range(count):
                await self.contender.begin(key, "sleep 100")
                start = time.perf_counter_ns()
                await self.contender.interrupt(key)
                samples.append((time.perf_counter_ns() - start) / 1e3)
                wrong += not is_empty(await self.contender.run(key, "true"))
        return measured.result(count=count, wrong=wrong, samples_us=samples)

    async def interrupt_running(self, count: int) -> dict[str, object]:
        key = await self.session("interrupt_running")
        samples: list[float] = []
        wrong = 0
        with Measured() as measured:
            for _ in range(count):
                samples.append(await self.contender.interrupt_running(key, "sleep 100") * 1e6)
                wrong += not is_empty(await self.contender.run(key, "true"))
        return measured.result(count=count, wrong=wrong, samples_us=samples)

    async def execute(self, text: str, count: int) -> dict[str, object]:
        samples: list[float] = []
        wrong = 0
        await self.contender.execute(text)
        with Measured() as measured:
            for _ in range(count):
                start = time.perf_counter_ns()
                answer = await self.contender.execute(text)
                samples.append((time.perf_counter_ns() - start) / 1e3)
                wrong += not is_empty(answer)
        return measured.result(count=count, wrong=wrong, samples_us=samples)

    async def imports(self, count: int) -> dict[str, object]:
        """A new interpreter that imports the runtime, less one that imports nothing."""

        def took(code: str) -> float:
            start = time.perf_counter_ns()
            subprocess.run([sys.executable, "-c", code], check=True)
            return (time.perf_counter_ns() - start) / 1e3

        code = f"import {self.contender.package}.runtime.local"
        took(code)
        with Measured() as measured:
            pairs = [(took("pass"), took(code)) for _ in range(count)]
        nothing = statistics.median(pair[0] for pair in pairs)
        return measured.result(count=count, wrong=0, samples_us=[pair[1] - nothing for pair in pairs])


def serve(make: Callable[[str], Any]) -> None:
    """Makes what the first argument names, and runs its methods as they are asked for."""
    # Whatever a library prints must not get between the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    name = sys.argv[1]
    try:
        workloads = make(name)
    except Exception as error:  # reported to the driver, which decides
        print(json.dumps({"error": f"{type(error).__name__}: {error}"}), file=answers, flush=True)
        return
    print(json.dumps({"ready": name, "python": sys.version.split()[0]}), file=answers, flush=True)
    with asyncio.Runner() as runner:
        for line in sys.stdin:
            request = json.loads(line)
            operation: Callable[..., Awaitable[dict[str, object]]] = getattr(workloads, request.pop("operation"))
            try:
                answer = runner.run(_ask(operation, request))
            except Exception as error:  # reported to the driver, which decides
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), file=answers, flush=True)


async def _ask(operation: Callable[..., Awaitable[dict[str, object]]], request: dict[str, Any]) -> dict[str, object]:
    return await operation(**request)


if __name__ == "__main__":
    serve(lambda name: Workloads(CONTENDERS[name]()))
