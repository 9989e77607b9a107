"""The benchmark of servers and clients: ours, the original's, and bare asyncio, in one interleaved run.

    python benchmarks/remote.py                 the whole table, some minutes
    python benchmarks/remote.py --quick         under a minute; the numbers are rough
    python benchmarks/remote.py --check         also says which targets are met
    python benchmarks/remote.py --json FILE     also writes everything measured

Servers are processes as their users start them; each client is a process of its own (remote_worker.py), which in each
round has its turn, in random order; remote_floor.py is what both are compared with.  See measure.py for rounds and
ratios.

Exit status: 0; 1 if an answer of ours was wrong or, with --check, a target was missed; 2 if it could not run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import secrets
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from measure import (
    HERE,
    MEGABYTE,
    BenchError,
    Run,
    Worker,
    machine,
    make_file,
    original_python,
    our_errors,
    our_path,
    work_directory,
)
from rows import Result, Target, Turn, Workload, median_ratio, p50_of
from tables import print_targets, print_workload

DUMMY = """\
import {package}.server as server
from {package}.runtime.dummy import DummyRuntime
server.runtime = DummyRuntime()
server.main()
"""
"""A server whose runtime answers at once: what is left is all but the session."""

START_LIMIT = 20.0
"""Seconds that a server has to start."""

CONTENDERS: dict[str, tuple[str, str]] = {
    "echo": ("echo", "echo"),
    "local": ("local", "local"),
    "copy": ("copy", "copy"),
    "copy to text": ("text", "text"),
    "copy of files": ("files", "files"),
    "bare run": ("bare", "none"),
    "bare HTTP": ("original", "http"),
    "no server": ("here", "none"),
    "ours": ("ours", "ours"),
    "ours, unix": ("ours", "ours, unix"),
    "ours, stdio": ("ours", "stdio"),
    "ours, alone": ("ours", "ours, alone"),
    "load": ("ours", "ours"),
    "ours on original": ("ours, JSON", "original"),
    "original on ours": ("original", "ours"),
    "original": ("original", "original"),
    "ours, dummy": ("ours", "ours, dummy"),
    "original on ours, dummy": ("original", "ours, dummy"),
    "original, dummy": ("original", "original, dummy"),
}
"""The client and the server of each."""

TEXTS = {"write": ("copy to text",), "read": ("copy to text",)}
"""What rows of files have besides: their content is a string."""

FILES = {"upload": ("copy of files",), "download": ("copy of files",)}
"""Or it is in a file at both ends."""

TRANSPORTS = ("ours", "ours, unix", "ours, stdio")
DUMMIES = ("ours, dummy", "original on ours, dummy", "original, dummy")
OUTPUT_FLOOR = ("bare run", "copy to text")
"""The least that a command's output takes: the command, read to its end, and those bytes once through a socket."""
SESSIONS = 100


# ---- servers ----


class Server:
    """A server as a process of its own."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self.log = log
        with log.open("w") as out:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )

    def port(self, pattern: str) -> int:
        """The port that its output tells."""
        return int(self.wait(lambda: re.search(pattern, self.log.read_text()))[1])

    def wait(self, ready: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + START_LIMIT
        while time.monotonic() < deadline and self.process.poll() is None:
            if found := ready():
                return found
            time.sleep(0.02)
        raise BenchError(f"a server did not start: {self.log.read_text()[-500:]}")

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def answers(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


class Remote(Run):
    always = ("echo", "local", "copy", "load")

    def __init__(self, arguments: argparse.Namespace, directory: Path) -> None:
        super().__init__(arguments, directory)
        self.key = secrets.token_urlsafe(24)
        self.servers: dict[str, Server] = {}
        self.places: dict[str, Result] = {}
        self.environment["SWE_REX_LOG_STREAM_LEVEL"] = "ERROR"  # uploads are logged
        path = our_path()
        self.ours = {**self.environment, **({"PYTHONPATH": path} if path else {})}

    def start(self, name: str) -> Worker:
        client, server = CONTENDERS[name]
        place = self.place(server)
        python, environment = sys.executable, self.ours
        if client == "original":
            python, environment = self.original_python(), self.environment
        worker = Worker(client, python, environment, "remote_worker.py")
        process = self.servers.get(server.removesuffix(", unix"))
        answer = worker.ask("connect", place=place, key=self.key, server=process and process.process.pid)
        if "error" in answer:
            worker.close()
            raise BenchError(answer["error"])
        return worker

    def original_python(self) -> str:
        python = original_python(may_install=not self.arguments.no_install)
        if python is None:
            raise BenchError("no environment with the original (SWX_ORIGINAL_PYTHON, or run without --no-install)")
        return python

    def place(self, name: str) -> Result:
        """Where a server is, which is started for it if it is not there yet."""
        if name not in self.places:
            if name == "none":
                self.places[name] = {}
            elif name == "stdio":
                self.places[name] = {"command": [sys.executable, "-m", "swerex_c.server", "--stdio"]}
            elif name.startswith("ours"):
                self.start_ours(name.removesuffix(", unix"))
            elif name.startswith("original"):
                self.start_original(name)
            else:
                self.start_floor(name)
        return self.places[name]

    @staticmethod
    def command(package: str, name: str) -> list[str]:
        return ["-c", DUMMY.format(package=package)] if name.endswith(", dummy") else ["-m", f"{package}.server"]

    def start_ours(self, name: str) -> None:
        unix = str(self.directory / f"{name}.socket")
        options = ["--host", "127.0.0.1", "--port", "0", "--unix", unix]
        environment = {**self.ours, "SWEREX_AUTH_TOKEN": self.key}
        server = self.launch(name, [sys.executable, *self.command("swerex_c", name), *options], environment)
        self.places[name] = {"port": server.port(r"Listening on http://127\.0\.0\.1:(\d+)")}
        self.places[f"{name}, unix"] = {"unix": unix}

    def start_original(self, name: str) -> None:
        port = free_port()
        options = ["--host", "127.0.0.1", "--port", str(port), "--auth-token", self.key]
        command = [self.original_python(), *self.command("swerex", name), *options]
        server = self.launch(name, command, self.environment)
        server.wait(lambda: answers(port))
        self.places[name] = {"port": port}

    def start_floor(self, name: str) -> None:
        server = self.launch(name, [sys.executable, str(HERE / "remote_floor.py"), name], self.ours)
        self.places[name] = {"port": server.port(r"(\d+)\n")}

    def launch(self, name: str, command: list[str], environment: dict[str, str]) -> Server:
        server = self.servers[name] = Server(command, environment, self.directory / f"{name}.log")
        return server

    def run(self, workload: Workload) -> None:
        around = workload.around(self) if isinstance(workload, Under) else contextlib.nullcontext()
        with around:
            super().run(workload)

    def close(self) -> None:
        super().close()
        for server in self.servers.values():
            server.close()


# ---- what goes on beside a row ----


@dataclass
class Under(Workload):
    """A row that is measured while something else goes on."""

    around: Callable[[Remote], AbstractContextManager[None]] = lambda run: contextlib.nullcontext()


@contextmanager
def busy(run: Remote) -> Iterator[None]:
    """A process that computes, for each processor."""
    count = len(os.sched_getaffinity(0))
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.wait()


def load(run: Remote, operation: str, **parameters: object) -> Result:
    worker: Worker | None = run.contender("load")
    if worker is None:
        raise BenchError(f"the load cannot be had: {run.absent['load']}")
    answer = worker.ask(operation, **parameters)
    if answer.get("error") or answer.get("wrong") or answer.get("ended"):
        raise BenchError(f"the load failed: {answer}")
    return answer


@contextmanager
def occupied(run: Remote) -> Iterator[None]:
    """A command runs in each of 100 sessions of our server, and prints 20 times a second."""
    flag = run.directory / "released"
    text = f"while [ ! -e {flag} ]; do echo tick; read -t 0.05; done; true"
    load(run, "occupy", sessions=SESSIONS, text=text)
    try:
        yield
    finally:
        load(run, "release", flag=str(flag))


@contextmanager
def hammered(run: Remote, what: str = "true") -> Iterator[None]:
    """100 sessions of our server carry out `true` as fast as they can, for a client of ours."""
    flag = run.directory / "enough"
    load(run, "open_all", sessions=SESSIONS if what == "true" else 1)
    worker: Worker = run.contenders["load"]
    worker.begin("hammer", sessions=SESSIONS, flag=str(flag), what=what)
    try:
        yield
    finally:
        flag.touch()
        answer = worker.finish()
        if answer.get("error") or answer.get("wrong"):
            raise BenchError(f"the load failed: {answer}")


def forking(run: Remote) -> AbstractContextManager[None]:
    """100 callers have our server `execute` programs as fast as it can."""
    return hammered(run, "execute")


# ---- workloads ----


def calls(what: str, names: tuple[str, ...], scale: float, rest_us: int = 0) -> list[Turn]:
    """Turns of requests one after the other; numbers are chosen so that each has about the same time."""
    counts = {
        "original": 10 if what == "true" else 200,
        **dict.fromkeys((*DUMMIES[1:], "original on ours", "ours on original", "bare HTTP"), 200),
    }
    turns = []
    for name in names:
        count = max(5, int(counts.get(name, 100 if what == "execute" else 1000) * scale))
        count = min(count, 100) if rest_us else count
        request = {"operation": "calls", "what": what, "count": count, "warm": min(50, count // 2), "rest_us": rest_us}
        turns.append(Turn(name, request, rounds=2 if name == "original" and what == "true" else None))
    return turns


def workloads(quick: bool, files: dict[int, str], copy: str) -> Iterator[Workload]:
    """Every row of the table."""
    scale = 0.1 if quick else 1.0
    both = ("original on ours", "original")
    rows = [
        Workload(
            "true",
            'true (run_in_session, check="silent")',
            calls("true", ("echo", "local", *TRANSPORTS, *both, *DUMMIES, "bare HTTP"), scale),
            baseline="echo + local",
            kind="remote",
        ),
        Workload(
            "alive",
            "is_alive",
            calls("alive", ("echo", *TRANSPORTS, "ours on original", *both, "bare HTTP"), scale),
            "echo",
            "remote",
        ),
        Under(
            "alive-busy",
            "is_alive while a process computes on each processor",
            calls("alive", ("echo", *TRANSPORTS, *both), scale / 2),
            baseline="echo",
            kind="remote",
            around=busy,
        ),
        Under(
            "alive-sessions",
            f"is_alive every 5 ms while {SESSIONS} sessions of our server run a command that prints",
            calls("alive", ("echo", *TRANSPORTS[:2], both[0]), scale, 5000),
            baseline="echo",
            kind="remote",
            around=occupied,
        ),
        Under(
            "alive-requests",
            f"is_alive every 5 ms while {SESSIONS} sessions of our server carry out requests without a pause",
            calls("alive", ("echo", *TRANSPORTS[:2], both[0]), scale, 5000),
            baseline="echo",
            kind="remote",
            around=hammered,
        ),
        Under(
            "alive-forks",
            f"is_alive every 5 ms while {SESSIONS} callers have our server execute programs",
            calls("alive", ("echo", "bare HTTP", *TRANSPORTS[:2], both[0]), scale, 5000),
            baseline="echo",
            kind="remote",
            around=forking,
        ),
        Workload(
            "execute",
            'execute(Command("true", shell=True))',
            calls("execute", ("no server", "ours", "ours on original", *both), scale),
            baseline="original",
            kind="remote",
        ),
    ]
    flight = {"operation": "in_flight", "what": "alive", "width": 64, "count": 30 if quick else 200}
    few = {**flight, "count": 1 if quick else 5}
    flight_turns = [
        *(Turn(name, flight) for name in ("echo", *TRANSPORTS)),
        Turn("ours", {**flight, "what": "true"}, "ours, true in 64 sessions"),
        *(Turn(name, few) for name in both),
    ]
    rows.append(Workload("in-flight", "is_alive, 64 at once on one connection", flight_turns, "echo", "rate"))
    for size in (1, 16):
        count = 1 if quick else max(1, 10 // size)
        request = {"operation": "output", "path": files[size], "count": count}
        output_turns = [
            *(Turn(name, {**request, "how": "execute"}) for name in OUTPUT_FLOOR),
            *(Turn(name, {**request, "how": "execute"}, f"{name}, execute") for name in ("no server", "ours", *both)),
            *(Turn(name, {**request, "how": "run"}, f"{name}, session") for name in ("no server", "ours", both[0])),
        ]
        if size == 1:
            output_turns.append(Turn("original", {**request, "how": "run", "count": 1}, "original, session", rounds=1))
        title = f"{size} MB of output (cat of a file)"
        rows.append(Workload(f"output-{size}", title, output_turns, "original, execute", "transfer", rounds=3))
    size = 1 if quick else 100
    for how, others in (("upload", both), ("download", ()), ("write", both), ("read", both)):
        request = {"operation": "transfer", "how": how, "path": files[size], "copy": copy, "count": 1}
        move_turns = [
            *(Turn(name, request) for name in ("copy", *TEXTS.get(how, ()), *FILES.get(how, ()), *TRANSPORTS)),
            *(Turn(name, request, rounds=1) for name in others),
        ]
        word = {"write": "write_file", "read": "read_file"}.get(how, how)
        rows.append(Workload(how, f"{word} of {size} MB", move_turns, "copy", "transfer"))
    idle = {"operation": "idle", "sessions": 20 if quick else SESSIONS, "seconds": 1 if quick else 5}
    idle_turns = [Turn("ours, alone", idle, "ours")]
    if not quick:
        idle_turns.append(Turn("original", {**idle, "sessions": 10}))
    title = f"a server with {idle['sessions']} idle sessions for {idle['seconds']} s"
    rows.append(Workload("idle", title, idle_turns, "", "idle", 1))
    for row in rows:
        row.rounds = min(row.rounds, 1 if quick else 5)
        yield row


# ---- targets ----


def targets(rows: dict[str, Workload]) -> Iterator[Target]:
    def value(row: str, name: str, key: str) -> float | None:
        found = rows[row].summary(name).get(key) if row in rows else None
        return float(found) if isinstance(found, int | float) else None

    def by(row: str, name: str, *bases: str) -> float | None:
        """p50 by the sum of the others' p50."""
        if row not in rows:
            return None
        results = rows[row].results
        return median_ratio(results.get(name, []), [results.get(base, []) for base in bases], p50_of)

    def scaled(number: float | None, factor: float) -> float | None:
        return None if number is None else number * factor

    def times(row: str, name: str, other: str) -> float | None:
        """How many times faster than the other."""
        ours, theirs = value(row, name, "p50_us"), value(row, other, "p50_us")
        return theirs / ours if ours and theirs else None

    yield Target("true: p50 by the echo and the local session, 1.5 of the first", allowed(rows), 1, True, "x")
    yield Target("true: times faster than the original", times("true", "ours", "original"), 500, False, "x")
    yield Target("is_alive: times faster than the original", times("alive", "ours", "original"), 20, False, "x")
    busy_times = times("alive-busy", "ours", "original")
    yield Target("is_alive on a busy machine: times faster than the original", busy_times, 60, False, "x")
    for name in TRANSPORTS[1:]:
        for row in ("true", "alive"):
            word = "is_alive" if row == "alive" else row
            yield Target(f"{word}, {name[6:]}: p50 by that over TCP", by(row, name, "ours"), 1.05, True, "x")
    for row, word in (("alive", "is_alive"), ("execute", "execute")):
        ratio = by(row, "original on ours", "original")
        yield Target(f"{word}, the original's client: p50 by that on its own server", ratio, 1, True, "x")
    yield Target("true, the original's client: session part, times faster", session_part(value), 1000, False, "x")
    part = by_session(rows)
    yield Target("true, the original's client: session part by the local session's own time", part, 1.5, True, "x")
    for row, word in (("alive", "is_alive"), ("true", "true, dummy")):
        name = "original on ours" if row == "alive" else "original on ours, dummy"
        share = by(row, name, "bare HTTP")
        yield Target(f"{word}, the original's client: p50 by that with a bare HTTP answer", share, 1.5, True, "x")
    worst = max((value("alive-sessions", name, "max_us") or 0 for name in TRANSPORTS[:2]), default=0) or None
    yield Target("is_alive while 100 sessions run: worst", scaled(worst, 1e-3), 10, True, "ms")
    worst = value("alive-requests", "original on ours", "max_us")
    yield Target("is_alive under 100 requests, the original's client: worst", scaled(worst, 1e-3), 75, True, "ms")
    worst = value("alive-forks", "original on ours", "max_us")
    text = "is_alive under 100 requests that start programs, the original's client: worst"
    yield Target(text, scaled(worst, 1e-3), 75, True, "ms")
    yield Target("64 in flight: rate by that of the echo", value("in-flight", "ours", "ratio"), 0.5, False, "x")
    for row, limit in (("output-1", 20), ("output-16", 6)):
        for how in ("execute", "session"):
            faster = times(row, f"ours, {how}", "original, execute")
            text = f"{row[7:]} MB of output, {how}: times faster than the original's execute"
            yield Target(text, faster, limit, False, "x")
        floor_share = by(row, "ours, execute", *OUTPUT_FLOOR)
        text = f"{row[7:]} MB of output, execute: p50 by the bare command and a bare copy of what it prints"
        yield Target(text, floor_share, 2, True, "x")
    for row in ("upload", "download", "write", "read"):
        floor = TEXTS.get(row, ("copy",))[0]
        share = by(row, floor, "ours")
        yield Target(f"{row} of 100 MB: bytes/s by those of a bare {floor}", share, 0.5, False, "x")
    for row, (floor,) in FILES.items():
        yield Target(f"{row} of 100 MB: bytes/s by those of a bare {floor}", by(row, floor, "ours"), 0.7, False, "x")
    for row, limit in (("upload", 32), ("download", 32), ("write", 300), ("read", 300)):
        for end, key in (("client", "rss_growth_kb"), ("server", "rss_growth_server_kb")):
            grown = scaled(value(row, "ours", key), 1024 / MEGABYTE)
            yield Target(f"{row} of 100 MB: memory of the {end}", grown, limit, True, "MB")
    yield Target("idle server: CPU", scaled(value("idle", "ours", "cpu_share"), 100), 0.05, True, "%")
    yield Target("idle server: memory of a session", value("idle", "ours", "rss_per_session_kb"), 100, True, "kB")


def allowed(rows: dict[str, Workload]) -> float | None:
    """p50 of `true` over TCP by what it may be: 1.5 echos and the local session's own time."""
    if "true" not in rows:
        return None
    by_round: dict[str, dict[int, float]] = {}
    for name in ("ours", "echo", "local"):
        by_round[name] = {result["round"]: p50_of(result) for result in rows["true"].results.get(name, [])}
    both = by_round["ours"].keys() & by_round["echo"].keys() & by_round["local"].keys()
    ratios = [by_round["ours"][i] / (1.5 * by_round["echo"][i] + by_round["local"][i]) for i in both]
    return statistics.median(ratios) if ratios else None


def session_part(value: Callable[[str, str, str], float | None]) -> float | None:
    """How many times longer the original's server takes for a command, without what a server costs that has none."""
    names = ("original", "original, dummy", "original on ours", "original on ours, dummy")
    p50 = [value("true", name, "p50_us") or 0.0 for name in names]
    return (p50[0] - p50[1]) / (p50[2] - p50[3]) if all(p50) and p50[2] > p50[3] else None


def by_session(rows: dict[str, Workload]) -> float | None:
    """What a command adds to a request by the original's client, by the session's own time after a wait: the limit."""
    if "true" not in rows:
        return None
    names = ("original on ours", "original on ours, dummy", "local")
    results = [rows["true"].results.get(name, []) for name in names]
    whole, rest, local = ({result["round"]: p50_of(result) for result in found} for found in results)
    ratios = [(whole[i] - rest[i]) / local[i] for i in whole.keys() & rest.keys() & local.keys()]
    return statistics.median(ratios) if ratios else None


# ---- the run ----


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="servers and clients of swerex_c, of the original, and bare asyncio")
    parser.add_argument("--quick", action="store_true", help="few rounds; for CI")
    parser.add_argument("--check", action="store_true", help="compare with the targets; exit 1 if one is missed")
    parser.add_argument("--json", metavar="FILE", help="write all results there")
    parser.add_argument("--only", metavar="ROW,...", help="these workloads only (true, alive, in-flight, ...)")
    parser.add_argument("--contenders", metavar="NAME,...", help="these only, besides what they are compared with")
    parser.add_argument("--no-install", action="store_true", help="do not make an environment for the original")
    parser.add_argument("--seed", type=int, default=1, help="for the order of turns")
    return parser.parse_args()


def run(arguments: argparse.Namespace, directory: Path) -> int:
    about = machine("remote.py", arguments.seed)
    for key, value in about.items():
        print(f"{key:12} {value}")
    sizes = (1, 16) if arguments.quick else (1, 16, 100)
    files = {size: make_file(directory, size) for size in sizes}
    only = set(arguments.only.split(",")) if arguments.only else None
    rows: dict[str, Workload] = {}
    remote = Remote(arguments, directory)
    try:
        for workload in workloads(arguments.quick, files, str(directory / "copy")):
            if only and workload.key not in only:
                continue
            remote.run(workload)
            print_workload(workload)
            sys.stdout.flush()
            rows[workload.key] = workload
    finally:
        remote.close()
    return report(arguments, about, remote, rows, complete=not (only or arguments.quick))


def report(
    arguments: argparse.Namespace, about: Result, remote: Remote, rows: dict[str, Workload], complete: bool
) -> int:
    """Targets, files, what went wrong; the exit status."""
    found = [target for target in targets(rows) if target.value is not None or complete]
    if arguments.check and found:
        print_targets(found)
    table = {key: {turn.name: row.summary(turn.name) for turn in row.turns} for key, row in rows.items()}
    wrong = [f"{key}, {name}" for key, lines in table.items() for name, line in lines.items() if line.get("wrong")]
    for text in wrong:
        print(f"wrong answers: {text}")
    if arguments.json:
        goals = [{**vars(target), "met": target.met} for target in found]
        document = {"machine": about, "rows": table, "targets": goals, "absent": remote.absent}
        Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    own = ("ours", "no server", "local", "echo", "copy", "bare", "original on ours")
    failed = {f"{key}: {name}: {error}" for key, row in rows.items() for name, error in our_errors(row, own)}
    if "original" in remote.absent:
        theirs = ("original on ours", "ours on original", "bare HTTP")
        failed = {text for text in failed if not any(name in text for name in theirs)}
    for text in sorted(failed):
        print(f"failed: {text}")
    ours_wrong = any(text.partition(", ")[2].partition(",")[0] != "original" for text in wrong)
    missed = arguments.check and any(not target.met for target in found)
    return 1 if ours_wrong or failed or missed else 0


def main() -> int:
    arguments = parse()
    try:
        with work_directory() as directory:
            return run(arguments, directory)
    except (BenchError, subprocess.CalledProcessError) as error:
        print(f"remote: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
