"""Where the microseconds of one command go: `true`, step by step, seen by the kernel's own tracing.

    python benchmarks/where.py                     # asyncio, the reactor's thread, the core, a bare terminal
    python benchmarks/where.py --rest 200          # 200 us after the last answer, so that the shell sleeps
    python benchmarks/where.py --cpu 0             # caller and shell on one processor: no wake has to cross
    python benchmarks/where.py --instructions      # by callgrind: instructions, allocations and copies (minutes)
    python benchmarks/where.py --python            # what the parts in Python cost, by CPU time

The first two need root and tracefs, the third valgrind.

The trace (tracefs: scheduler, system calls, workqueues) costs a quarter of a microsecond an event, and shows everybody
who takes part, the kernel's worker included. Times are the lowest tenth and the middle of the commands. On a
machine that others use, believe the counts and the lowest tenth.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import json
import os
import re
import resource
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from measuring.measured import Measured  # noqa: E402

TRACING = Path("/sys/kernel/tracing/instances")
WARM = 200
KINDS = ("asyncio", "reactor", "core", "pty")
"""Through the runtime, the same with the reactor's thread and the eventfd, the synchronous core, a bare terminal."""
NAMES = {0: "read", 1: "write", 7: "poll", 13: "rt_sigaction", 14: "rt_sigprocmask", 16: "ioctl", 17: "pread64",
         23: "select", 39: "getpid", 202: "futex", 232: "epoll_wait", 233: "epoll_ctl", 271: "ppoll", 24: "sched_yield",
         270: "pselect6", 281: "epoll_pwait", 15: "rt_sigreturn", 35: "nanosleep", 230: "clock_nanosleep"}  # fmt: skip
"""System calls of x86-64, by number."""

USED = ("ru_utime", "ru_stime", "ru_nvcsw", "ru_nivcsw")

PR_SET_TIMERSLACK = 29

MARK = 110
"""getppid, which nothing else calls: it says in the trace where a command begins and ends."""


# ---- what is traced: a process of its own ----


async def subject(kind: str, count: int, rest_us: float, cpu: int | None, direct: int | None, slack_us: int) -> None:
    """Say the two process ids; then for each line that asks for it run the commands, and say what came of them."""
    if cpu is not None:
        os.sched_setaffinity(0, [cpu])
    if slack_us:
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, slack_us * 1000, 0, 0, 0)
    waits = kind in ("asyncio", "reactor")
    direct = 0 if kind == "reactor" else direct
    one, pid, end = await asyncio_one(direct) if waits else core_one(direct or 0) if kind == "core" else await pty_one()
    for _ in range(WARM):
        await one() if waits else one()
    print(os.getpid(), pid, flush=True)
    while sys.stdin.readline() == "run\n":
        samples = []
        before = resource.getrusage(resource.RUSAGE_SELF)
        with Measured() as measured:
            for _ in range(count):
                until = time.perf_counter() + rest_us / 1e6
                while time.perf_counter() < until:
                    pass
                os.getppid()
                start = time.perf_counter_ns()
                await one() if waits else one()
                samples.append((time.perf_counter_ns() - start) / 1e3)
                os.getppid()
        after = resource.getrusage(resource.RUSAGE_SELF)
        used = {name: (getattr(after, name) - getattr(before, name)) / count for name in USED}
        found = {"samples": sorted(samples), "shell": measured.cpu_children_us / count, **used}
        print(json.dumps(found), flush=True)
    await end() if waits else end()


async def asyncio_one(direct: int | None = None) -> tuple[Callable[[], Any], int, Callable[[], Any]]:
    """What runs a command, the shell's process id, what ends it: through the runtime.

    direct: microseconds for which the calling thread waits by itself; None is as it comes.
    """
    from swerex_c.runtime.abstract import BashAction, CreateBashSessionRequest
    from swerex_c.runtime.local import LocalRuntime

    runtime = LocalRuntime()
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=30))
    session: Any = runtime.sessions["default"]
    if direct is not None:
        session._inline_wait_microseconds = direct

    async def one() -> None:
        answer = await runtime.run_in_session(BashAction(command="true", check="silent"))
        assert not answer.output and answer.exit_code == 0

    return one, session.pid, runtime.close


def core_one(direct: int = 0) -> tuple[Callable[[], Any], int, Callable[[], Any]]:
    """The same through the synchronous core."""
    from swerex_c import _core

    variables = [os.fsencode(f"{name}={value}") for name, value in os.environ.items()]
    session = _core.Session(os.fsencode(shutil.which("bash") or "/bin/bash"), variables, None, 24, 80, 1 << 28)
    waker = _core.Waker()

    def finish(operation: Any) -> Any:
        while not operation.done:
            select.select([waker.fileno()], [], [])
            waker.take()
        return operation

    def one() -> None:
        operation = finish(session.run("true", -1, None, None, None, waker, None, None, direct or 10_000))
        assert not operation.output and operation.code == 0

    finish(session.start(b"", 10.0, waker, None))
    return one, session.facts()["pid"], lambda: finish(session.close(waker, None))


async def pty_one() -> tuple[Callable[[], Any], int, Callable[[], Any]]:
    """The same with nothing but a terminal, `os.write` and `os.read`."""
    from swerex_c.bench.pty import RawTerminal, read_answer

    engine = RawTerminal()
    await engine.start()
    await engine.open("x")
    shell = engine.shells["x"]

    def one() -> None:
        os.write(shell.master, b"true\n")
        assert read_answer(shell.master) == (b"", 0)

    def end() -> None:
        shell.process.kill()
        shell.process.wait()

    return one, shell.process.pid, end


# ---- the trace ----

STEPS = (
    ("caller", "before the line is written", "begin", "typing"),
    ("caller", "write(2) to the terminal", "typing", "typed"),
    ("kernel", "the worker is started, and passes the line on", "typed", "passed"),
    ("kernel", "bash is woken and has its line", "passed", "line"),
    ("bash", "the line is parsed, PS0 expanded", "line", "first mark"),
    ("bash", "the line is parsed, `true`, PS1 expanded", "line", "only mark"),
    ("bash", "write(2) of PS1's mark", "only mark", "marked"),
    ("bash", "write(2) of PS0's mark", "first mark", "first marked"),
    ("bash", "`true`, and PS1 expanded", "first marked", "mark"),
    ("bash", "write(2) of PS1's mark", "mark", "marked"),
    ("kernel", "the reader is woken by it and has it", "marked", "answer"),
    ("caller", "the mark is found, and nothing proved", "answer", "returned"),
    ("reader", "the mark is recognised", "answer", "looking"),
    ("reader", "proof: /proc/PID/syscall is read", "looking", "proved"),
    ("caller", "behind the proof", "proved", "end"),
    ("thread", "behind the proof, to the eventfd", "proved", "told"),
    ("kernel", "the loop is woken by it", "told", "woken"),
    ("caller", "the loop, and the answer", "woken", "ended"),
)
"""Who, what, and between which two moments."""


@dataclass
class Event:
    """A line of the trace; times in microseconds."""

    at: float
    pid: int
    cpu: int
    name: str
    rest: str

    @property
    def call(self) -> int:
        """The number of the system call, of those that are one."""
        return int(self.rest.split()[1])


@contextmanager
def tracing(pids: list[str]) -> Iterator[Path]:
    """Events of these processes and what wakes them, in a buffer of our own."""
    place = TRACING / f"where-{os.getpid()}"
    place.mkdir()
    mine = "||".join(f"common_pid=={pid}" for pid in pids)
    events = {
        "raw_syscalls/sys_enter": mine,
        "raw_syscalls/sys_exit": mine,
        "sched/sched_waking": "||".join(f"pid=={pid}" for pid in pids),
        "sched/sched_switch": "||".join(f"prev_pid=={pid}||next_pid=={pid}" for pid in pids),
        "workqueue/workqueue_execute_start": "",
        "workqueue/workqueue_execute_end": "",
        "workqueue/workqueue_queue_work": mine,
    }
    try:
        (place / "tracing_on").write_text("0")
        (place / "buffer_size_kb").write_text("24000")
        (place / "trace_clock").write_text("mono")
        for event, condition in events.items():
            if condition:
                (place / "events" / event / "filter").write_text(condition)
            (place / "events" / event / "enable").write_text("1")
        (place / "tracing_on").write_text("1")
        yield place
    finally:
        (place / "tracing_on").write_text("0")
        (place / "events" / "enable").write_text("0")
        place.rmdir()


LINE = re.compile(r"-(\d+)\s+\[(\d+)\] \S+ +([\d.]+): (\w+): (.*)")


def read_trace(place: Path) -> list[Event]:
    found = []
    with (place / "trace").open() as lines:
        for line in lines:
            if match := LINE.search(line):
                found.append(Event(float(match[3]) * 1e6, int(match[1]), int(match[2]), match[4], match[5]))
    return found


@dataclass
class Command:
    """What the trace has of one command."""

    moments: dict[str, float]
    calls: Counter[tuple[str, str]]
    """System calls, by who and which."""

    counts: Counter[str]
    cpu: Counter[str]
    """Microseconds on a processor, by who."""

    events: int
    to_sleep: list[float]
    """Microseconds from entering a system call of the caller's to its having left the processor."""

    from_sleep: list[float]
    """From its being back there to the end of the system call."""


def commands(events: list[Event], caller: int, shell: int, others: set[int]) -> Iterator[Command]:
    """The events cut into commands. `others` are the caller's further threads."""
    works = {words[1] for it in events if it.name == "workqueue_queue_work" for words in [it.rest.split("=", 1)]}
    works = {work.split()[0] for work in works if "flush_to_ldisc" in work}
    inside: list[Event] = []
    began = False
    for it in events:
        if it.pid == caller and it.name == "sys_enter" and it.call == MARK:
            if began:
                yield cut(inside, it.at, caller, shell, others, works)
            inside, began = [], not began
        elif began:
            inside.append(it)


def cut(events: list[Event], end: float, caller: int, shell: int, others: set[int], works: set[str]) -> Command:
    who = {caller: "caller", shell: "bash", **dict.fromkeys(others, "thread")}
    found = Command({"begin": events[0].at, "end": end}, Counter(), Counter(), Counter(), len(events), [], [])
    moments = found.moments
    running: dict[int, float] = {caller: events[0].at}
    working: dict[int, float] = {}
    entered = back = 0.0
    for it in events:
        mine = who.get(it.pid, "")
        if it.name == "sys_enter" and mine:
            name = NAMES.get(it.call, str(it.call))
            found.calls[mine, name] += 1
            if mine == "caller":
                entered, back = it.at, 0.0
            if mine == "caller" and name == "write" and "typing" not in moments:
                moments["typing"] = it.at
            if mine == "bash" and name == "write":
                moments["first mark" if "first mark" not in moments else "mark"] = it.at
            if mine in ("caller", "thread") and name == "pread64" and moments.keys() & {"mark", "only mark"}:
                moments.setdefault("looking", it.at)
            if mine == "thread" and name == "write":
                moments["told"] = it.at
        elif it.name == "sys_exit" and mine:
            name, result = NAMES.get(it.call, str(it.call)), int(it.rest.split("=")[1])
            if mine == "caller" and name == "write" and "typed" not in moments:
                moments["typed"] = it.at
            if mine == "caller" and back:
                found.from_sleep.append(it.at - back)
                back = 0.0
            if mine == "bash" and name == "read" and "line" not in moments:
                moments["line"] = it.at
            if mine == "bash" and name == "write":
                moments["first marked" if "mark" not in moments else "marked"] = it.at
            if mine == "caller" and name == "epoll_wait" and "told" in moments:
                moments.setdefault("woken", it.at)
            if mine in ("caller", "thread") and name == "read" and result > 0 and "looking" not in moments:
                moments["answer"] = it.at
                found.counts["reads with data"] += 1
                found.counts["bytes read"] += result
            if mine in ("caller", "thread") and name == "pread64":
                moments["proved"] = it.at
                found.counts["looks at /proc"] += 1
        elif it.name == "sched_waking":
            woken = who.get(int(re.search(r" pid=(\d+)", it.rest)[1]), "")  # type: ignore[index]
            by_worker = it.pid in working
            found.counts[f"wakes of {woken}"] += 1
            if woken == "bash" and by_worker:
                moments["passed"] = it.at
        elif it.name == "sched_switch":
            old, new = (int(number) for number in re.findall(r"_pid=(\d+)", it.rest))
            if old == caller and "prev_state=S" in it.rest:
                found.to_sleep.append(it.at - entered)
                back = -1.0
            if new == caller and back:
                back = it.at
            if old in who:
                found.counts[f"switches of {who[old]}"] += 1
                if old in running:
                    found.cpu[who[old]] += it.at - running.pop(old)
                found.counts[f"of which preempted: {who[old]}"] += "prev_state=R" in it.rest
            if new in who:
                running[new] = it.at
        elif it.name == "workqueue_execute_start" and it.rest.split()[2].rstrip(":") in works:
            working[it.pid] = it.at
            found.counts["runs of the worker"] += 1
            found.counts["of which on another processor than the command began: worker"] += it.cpu != events[0].cpu
        elif it.name == "workqueue_execute_end" and it.pid in working:
            found.cpu["worker"] += it.at - working.pop(it.pid)
    if "told" in moments:
        moments["ended"] = moments.pop("end")
    elif "looking" not in moments:
        moments["returned"] = moments.pop("end")
    for pid, since in running.items():
        found.cpu[who[pid]] += end - since
    if "mark" not in moments and "first marked" in moments:  # there is but one
        moments["only mark"], moments["marked"] = moments.pop("first mark"), moments.pop("first marked")
    return found


def trimmed(values: list[float]) -> float:
    """The mean of those between the lowest tenth and the middle: the trace has whole microseconds."""
    ordered = sorted(values)
    part = ordered[len(ordered) // 10 : len(ordered) // 2 + 1]
    return sum(part) / len(part)


def at(values: list[float], share: float) -> float:
    return sorted(values)[int(len(values) * share)]


def environment() -> dict[str, str]:
    """Nothing that prints beside the commands."""
    return dict(os.environ, HISTFILE="/dev/null", SWE_REX_LOG_STREAM_LEVEL="ERROR", TERM="dumb", LC_ALL="C.UTF-8")


def trace(
    kind: str, count: int, rest_us: float, more: list[str]
) -> tuple[list[Command], dict[str, Any], dict[str, Any]]:
    """The commands as traced; what came of them, and of as many without the trace, in the same process before."""
    words = [sys.executable, __file__, "--subject", kind, "--count", str(count), "--rest", str(rest_us)]
    words += more
    with subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()
    ) as process:
        assert process.stdin is not None and process.stdout is not None

        def run() -> dict[str, Any]:
            assert process.stdin is not None and process.stdout is not None
            print("run", file=process.stdin, flush=True)
            said: dict[str, Any] = json.loads(process.stdout.readline())
            return said

        caller, shell = process.stdout.readline().split()
        threads = os.listdir(f"/proc/{caller}/task")
        without = run()
        with tracing([*threads, shell]) as place:
            with_trace = run()
            (place / "tracing_on").write_text("0")
            events = read_trace(place)
        process.stdin.close()
    others = {int(it) for it in threads} - {int(caller)}
    return list(commands(events, int(caller), int(shell), others)), with_trace, without


def show_trace(kind: str, count: int, rest_us: float, more: list[str]) -> None:
    found, with_trace, without = trace(kind, count, rest_us, more)
    print(f"\n{kind}: {len(found)} commands, {rest_us:g} us apart {' '.join(more)}; load {os.getloadavg()[0]:.1f}")
    both = [f"{at(it['samples'], 0.1):.1f} / {at(it['samples'], 0.5):.1f}" for it in (without, with_trace)]
    print(f"  whole command, lowest tenth / middle: {both[0]} us; while it was traced {both[1]} us")
    events = sum(it.events for it in found) / len(found)
    cost = (at(with_trace["samples"], 0.1) - at(without["samples"], 0.1)) / events
    print(f"  the trace: {events:.0f} events of a command, by the lowest tenth {cost:.2f} us each")
    user, system, slept, pushed = (without[name] for name in USED)
    rested = " with the rest" if rest_us else ""
    cpu_us = (user + system) * 1e6  # its division is a guess of the kernel's, by its ticks
    print(
        f"  CPU without the trace: caller {cpu_us:.1f} us{rested}, bash {without['shell']:.1f} us; "
        f"the caller slept {slept:.2f} times and was preempted {pushed:.2f} times"
    )
    usual = [it for it in found if {"typing", "typed", "line", "marked", "answer"} <= set(it.moments)]
    print("  step                                                     lowest tenth  to middle   n")
    for who, text, start, end in STEPS:
        values = [it.moments[end] - it.moments[start] for it in usual if {start, end} <= set(it.moments)]
        if len(values) > len(usual) / 20:
            print(f"  {who:7} {text:48} {at(values, 0.1):10.1f} {trimmed(values):10.1f} {len(values):5}")
    for what, waits in (
        ("from a system call to sleep", [us for it in found for us in it.to_sleep]),
        ("from sleep to its end", [us for it in found for us in it.from_sleep]),
    ):
        if waits:
            print(f"  caller  {what:48} {at(waits, 0.1):10.1f} {trimmed(waits):10.1f} {len(waits):5}")
    total: Counter[tuple[str, str]] = sum((it.calls for it in found), Counter())
    for who in ("caller", "thread", "bash"):
        calls = {name: number / len(found) for (other, name), number in total.most_common() if other == who}
        text = ", ".join(f"{name} {number:.2f}" for name, number in calls.items() if number >= 0.005)
        if text:
            print(f"  system calls of {who}: {sum(calls.values()):.1f} ({text})")
    counts: Counter[str] = sum((it.counts for it in found), Counter())
    for name, number in sorted(counts.items()):
        print(f"  {name}: {number / len(found):.2f}")
    for who in ("caller", "thread", "bash", "worker"):
        values = [it.cpu[who] for it in found]
        if any(values):
            print(f"  on a processor: {who} {trimmed(values):.1f} us, middle {at(values, 0.5):.1f}")


# ---- instructions ----


async def parts(count: int, direct: int | None) -> None:
    """The parts of a command, each `count` times; between them getppid, at which callgrind writes down what it has."""
    from swerex_c.engine.completions import current_completions
    from swerex_c.engine.session import _observation
    from swerex_c.runtime.abstract import BashAction

    async def fourth() -> None: ...

    async def third() -> None:
        await fourth()

    async def second() -> None:
        await third()

    async def first() -> None:
        await second()

    whole, _, end = await asyncio_one(direct)
    core, _, end_core = core_one(direct or 0)
    works: dict[str, Callable[[], Any]] = {
        "an empty loop": lambda: None,
        "BashAction(...)": lambda: BashAction(command="true", check="silent"),
        "BashObservation(...)": lambda: _observation("", 0, "SHELLPS1PREFIX", "", 0),
        "a future, for what takes longer": lambda: current_completions().create_future(),
        "through the core": core,
    }
    coroutines: dict[str, Callable[[], Any]] = {"four coroutines that do nothing": first, "through asyncio": whole}
    for work in works.values():
        for _ in range(WARM):
            work()
    for coroutine in coroutines.values():
        for _ in range(WARM):
            await coroutine()
    for name, work in works.items():
        os.getppid()
        cpu = time.process_time_ns()
        for _ in range(count):
            work()
        say_part(name, cpu, count)
    for name, coroutine in coroutines.items():
        os.getppid()
        cpu = time.process_time_ns()
        for _ in range(count):
            await coroutine()
        say_part(name, cpu, count)
    os.getppid()
    end_core()
    await end()


def say_part(name: str, begin: int, count: int) -> None:
    """Its CPU, which is wrong below callgrind."""
    cpu = (time.process_time_ns() - begin) / 1e3 / count
    os.getppid()
    print(json.dumps([name, cpu]), flush=True)


CALLS = {
    "malloc": r"(malloc|calloc|realloc)",
    "copies": r"_*mem(cpy|move)_\w+",
    "of Python's heap": r"_?PyObject_(Malloc|Calloc|Realloc)",
}
"""Which functions are counted as what. Python's heap takes memory from malloc only for what is large."""


@dataclass
class Profile:
    """What callgrind says of a part."""

    total: int
    by_object: Counter[str]
    """Instructions by library."""

    by_function: Counter[str]
    calls: Counter[str]
    """How often a function was called."""


def read_profile(path: Path) -> Profile:
    """Callgrind's format, in which names stand once and are numbers from then on."""
    found = Profile(0, Counter(), Counter(), Counter())
    names: dict[tuple[str, str], str] = {}

    def name(kind: str, text: str) -> str:
        number, _, given = text.partition(" ")
        if given:
            names[kind, number] = given
        return names.get((kind, number), number)

    library = function = called = ""
    inclusive = False
    for line in path.read_text().splitlines():
        key, equals, rest = line.partition("=")
        if equals and key in ("ob", "cob"):
            given = name("ob", rest)
            library = given if key == "ob" else library
        elif equals and key in ("fn", "cfn"):
            given = name("fn", rest)
            function, called = (given, called) if key == "fn" else (function, given)
        elif equals and key == "calls":
            found.calls[called] += int(rest.split()[0])
            inclusive = True
        elif line[:1] in "+-*0123456789" and line:
            cost = int(line.split()[1]) if len(line.split()) > 1 else 0
            if not inclusive:
                found.total += cost
                found.by_object[library] += cost
                found.by_function[function] += cost
            inclusive = False
    return found


def show_instructions(count: int) -> None:
    """The parts below callgrind, where the calling thread waits as long as it has to."""
    with tempfile.TemporaryDirectory() as directory:
        out = f"{directory}/out"
        words = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", "--dump-before=getppid"]
        words += [f"--log-file={directory}/log"]
        words += [sys.executable, __file__, "--parts", "--count", str(count), "--direct", "60000000"]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, env=environment(), check=True)
        names = [json.loads(line)[0] for line in done.stdout.splitlines()]
        # The first file is what was before the first part; then come a part and what is between, in turn.
        profiles = {part: read_profile(Path(f"{out}.{2 * at + 2}")) for at, part in enumerate(names)}
    nothing = profiles.pop("an empty loop").total
    print(f"\ninstructions of this process in user space, each of {count} commands")
    for part, profile in profiles.items():
        calls = Counter[str]()
        for name, number in profile.calls.items():
            for what, pattern in CALLS.items():
                if re.fullmatch(pattern, re.split("['@]", name)[0]):
                    calls[what] += number
        text = ", ".join(f"{what} {calls[what] / count:.1f}" for what in CALLS)
        print(f"  {part}: {(profile.total - nothing) / count:,.0f}; calls: {text}")
        for library, number in profile.by_object.most_common(6):
            if number / count >= 50:
                print(f"      {number / count:8,.0f}  {Path(library).name}")
        if part.startswith("through"):
            for function, number in profile.by_function.most_common(16):
                print(f"      {number / count:8,.0f}  {function}")


def show_parts(count: int) -> None:
    """The parts at full speed, by CPU time: the lowest of some runs, since other processes can only add to it."""
    runs = []
    for _ in range(5):
        words = [sys.executable, __file__, "--parts", "--count", str(count)]
        done = subprocess.run(words, stdout=subprocess.PIPE, text=True, env=environment(), check=True)
        runs.append(dict(json.loads(line) for line in done.stdout.splitlines()))
    print(f"\nCPU of this process, user and system, each of {count} commands; lowest and middle of 5 runs")
    for part in runs[0]:
        values = [run[part] for run in runs]
        print(f"  {part:34} {min(values):8.2f} us  {at(values, 0.5):8.2f} us")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python benchmarks/where.py")
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--rest", type=float, default=0.0, metavar="MICROSECONDS")
    parser.add_argument("--cpu", type=int, help="put the caller and its shell on this processor")
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--python", action="store_true")
    parser.add_argument("--parts", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--direct", type=int, help="microseconds for which the calling thread waits by itself")
    parser.add_argument("--slack", type=int, help="microseconds by which the kernel may be late with that")
    parser.add_argument("--subject", choices=KINDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.subject:
        asyncio.run(
            subject(options.subject, options.count, options.rest, options.cpu, options.direct, options.slack or 0)
        )
        return 0
    if options.parts:
        asyncio.run(parts(options.count, options.direct))
        return 0
    if options.instructions:
        show_instructions(min(options.count, 300))
        return 0
    if options.python:
        show_parts(options.count)
        return 0
    if not os.access(TRACING, os.W_OK):
        sys.exit(f"where.py: {TRACING} cannot be written: it needs root, and a kernel with tracing")
    more = [word for name in ("cpu", "direct", "slack") if (value := getattr(options, name)) is not None
            for word in (f"--{name}", str(value))]  # fmt: skip
    for kind in [options.only] if options.only else KINDS:
        show_trace(kind, options.count, options.rest, more)
    return 0


if __name__ == "__main__":
    sys.exit(main())
