"""The benchmark of swerex_c: every contender in one interleaved run, every answer checked.

    python benchmarks/bench.py                 the whole table, some minutes
    python benchmarks/bench.py --quick         under a minute; the numbers are rough
    python benchmarks/bench.py --check         also says which targets are met
    python benchmarks/bench.py --json FILE     also writes everything measured

Each workload runs in rounds; in each round every contender has its turn, in random order, in a process of its own
(worker.py, or floor.c for the plain C loops).  A ratio is the median over the rounds of "p50 of this contender by p50
of the C loop in the same round", so that a machine that changes its mood between rounds changes both sides.

Exit status: 0; 1 if an answer of ours was wrong or, with --check, a target was missed; 2 if it could not run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from measure import (
    MEGABYTE,
    ROOT,
    BenchError,
    Floor,
    Result,
    Run,
    Target,
    Turn,
    Worker,
    Workload,
    build,
    build_floor,
    duration,
    machine,
    make_file,
    median_ratio,
    original_python,
    our_errors,
    our_path,
    p50_of,
    print_targets,
    print_workload,
    work_directory,
)

PATTERNS = [f"needle-{i:02d}-in-the-stack" for i in range(10)] + [
    r"error: [a-z]+ at line \d+",
    r"\(gdb\) $",
    r">>> $",
    r"In \[\d+\]: ",
    r"Traceback \(most recent call last\)",
    r"(?:fatal|panic): .+",
    r"password( for \w+)?: ",
    r"\[y/N\] ?",
    r"segmentation fault",
    r"found [0-9]{4} of [0-9]{4}!",
]
NEEDLE = "found 1234 of 5678!"

IN_C = ("bare C", "engine")

# ---- contenders as processes ----


def build_engine(directory: Path) -> str:
    """The core without the frame codec, which alone needs a library."""
    core = ROOT / "csrc"
    rooms = [str(path) for path in sorted(core.glob("swx_*.c")) if path.stem != "swx_frame"]
    if not rooms:
        raise BenchError("the sources of the core are not here")
    return build(directory, "engine", f"-I{core}", *rooms)


# ---- workloads ----


def floor_turn(label: str, *arguments: object) -> Turn:
    return Turn("bare C", {"arguments": list(arguments)}, label)


def command_workload(
    key: str, title: str, text: str, counts: dict[str, int], scale: float, rest_us: int = 0
) -> Workload:
    def number(name: str) -> int:
        return max(3, int(counts[name] * scale))

    turns = []
    for name in counts:
        if name in IN_C:
            turns.append(Turn(name, {"arguments": ["command", number(name), text, rest_us]}))
        else:
            request = {"text": text, "count": number(name), "warm": min(50, number(name) // 2), "rest_us": rest_us}
            turns.append(Turn(name, {"operation": "command", **request}, rounds=2 if name == "original" else None))
    # While resting the contenders burn time, so the CPU of a rested row says nothing.
    return Workload(key, title, turns, kind="rested" if rest_us else "latency")


def workloads(quick: bool, files: dict[int, str]) -> Iterator[Workload]:
    """Every row of the table.  Numbers are chosen so that each contender has about the same time, the original less."""
    scale = 0.2 if quick else 1.0
    rounds = 2 if quick else 5
    hand = {"pexpect": 500, "ptyprocess": 2000, "pipes": 1000}
    everyone = {"bare C": 2000, "engine": 2000, "ours": 2000, "core": 2000, **hand, "original": 10}
    some = {"bare C": 300, "engine": 300, "ours": 300, "core": 300, **dict.fromkeys(hand, 200), "original": 5}

    rows = [
        command_workload("true", 'true (run_in_session, check="silent"), back to back', "true", everyone, scale),
        command_workload("true-rested", "true, 200 us after the last: shell asleep", "true", everyone, scale, 200),
        command_workload("bin-true", "/bin/true", "/bin/true", some, scale),
    ]

    starts = 10 if quick else 30
    create = {"operation": "create", "count": starts}
    rows.append(
        Workload(
            "create",
            "a session: start until its first prompt",
            [
                floor_turn("bare C", "start", starts, "user"),
                floor_turn("bare C, no readline", "start", starts, "rc"),
                floor_turn("bare C, no startup files", "start", starts, "bare"),
                *(Turn(name, create) for name in ("ours", "core")),
                Turn("pexpect", create, "pexpect, no startup files"),
                Turn("original", {"operation": "create", "count": 3}, rounds=1),
            ],
        )
    )

    for size, path in files.items():
        count = max(1, min(10, 20 // size)) if not quick else 2 if size == 1 else 1
        request = {"operation": "output", "path": path, "count": count}
        names = ["ours", "core", "ptyprocess", "pipes"] + (["pexpect"] if size <= 8 else [])
        in_c = {"arguments": ["output", path, count]}
        turns = [*(Turn(name, in_c) for name in IN_C), *(Turn(name, request) for name in names)]
        if size == 1 or (size == 8 and not quick):
            turns.append(Turn("original", {**request, "count": 1}, rounds=1))
        title = f"{size} MB of output (cat of a file)"
        rows.append(Workload(f"output-{size}", title, turns, kind="output", rounds=3 if size > 8 else 5))

    search = {"path": files[16], "patterns": PATTERNS, "needle": NEEDLE, "expected": PATTERNS[-1]}
    fast = {"operation": "patterns", "count": 1 if quick else 5, **search}
    slow = {**fast, "count": 1}
    search_turns = [Turn("ours", fast), Turn("core", fast), Turn("ptyprocess", slow, rounds=1)]
    if not quick:
        search_turns.append(Turn("pexpect", fast, rounds=2))
    rows.append(Workload("patterns", "one of 20 patterns at the end of 16 MB", search_turns, "", "patterns", 3))

    idle = {"operation": "idle", "sessions": 20 if quick else 100, "seconds": 1 if quick else 5}
    idle_turns = [Turn(name, idle) for name in ("ours", "core", "ptyprocess", "pipes")]
    if not quick:
        idle_turns.append(Turn("original", {**idle, "sessions": 10}))
    title = f"{idle['sessions']} idle sessions for {idle['seconds']} s"
    rows.append(Workload("idle", title, idle_turns, "", "idle", 1))

    fleet = {"operation": "fleet", "sessions": 64, "commands": 50}
    rows.append(
        Workload(
            "fleet",
            "64 sessions, 50 commands each, at once",
            [
                floor_turn("bare C", "fleet", 64, 50),
                *(Turn(name, fleet) for name in ("ours", "core", "ptyprocess", "pipes")),
                Turn("core", {**fleet, "one_waker": True}, "core, one thread"),
                Turn("pexpect", fleet, rounds=1),
                Turn("original", {**fleet, "sessions": 4, "commands": 3}, "original, 4 sessions", rounds=1),
            ],
            kind="fleet",
        )
    )

    interrupt = {"operation": "interrupt", "count": 2 if quick else 5}
    rows.append(
        Workload(
            "interrupt",
            "interrupt of `sleep 100`, after its caller gave up on it",
            [
                floor_turn("bare C", "interrupt", 3),
                *(Turn(name, interrupt) for name in ("ours", "core", "pexpect", "ptyprocess")),
                Turn("ours", {**interrupt, "operation": "interrupt_running"}, "ours, while its caller waits"),
                Turn("original", {**interrupt, "count": 2}, rounds=1),
            ],
            rounds=2,
        )
    )

    execute = {"operation": "execute", "text": "true", "count": 40 if quick else 150}
    rows.append(
        Workload(
            "execute",
            'execute(Command("true", shell=True))',
            [Turn(name, execute) for name in ("ours", "subprocess", "original")],
            "subprocess",
        )
    )
    imports = {"operation": "imports", "count": 3 if quick else 5}
    import_turns = [Turn(name, imports) for name in ("ours", "original")]
    rows.append(Workload("import", "import of runtime.local", import_turns, "original", "import", 3))
    for row in rows:
        row.rounds = min(row.rounds, rounds)
        yield row


# ---- the run ----


class Bench(Run):
    always = ("bare C",)

    def start(self, name: str) -> Floor | Worker:
        if name == "bare C":
            return Floor(build_floor(self.directory), self.environment)
        if name == "engine":
            return Floor(build_engine(self.directory), self.environment)
        if name in ("original", "pexpect", "ptyprocess"):
            python = original_python(may_install=not self.arguments.no_install)
            if python is None:
                raise BenchError("no environment with the original (SWX_ORIGINAL_PYTHON, or run without --no-install)")
            return Worker(name, python, self.environment)
        path = our_path()
        extra = {"PYTHONPATH": path} if path else {}
        return Worker(name, sys.executable, {**self.environment, **extra})

    def ask(self, contender: Floor | Worker, request: Result) -> Result:
        return contender.ask(*request["arguments"]) if isinstance(contender, Floor) else contender.ask(**request)


# ---- targets ----


def targets(rows: dict[str, Workload]) -> Iterator[Target]:
    def value(row: str, name: str, key: str) -> float | None:
        found = rows[row].summary(name).get(key) if row in rows else None
        return float(found) if isinstance(found, int | float) else None

    def quotient(a: float | None, b: float | None) -> float | None:
        return a / b if a is not None and b else None

    def compare(row: str, ours: str, other: str) -> float | None:
        if row not in rows:
            return None
        return median_ratio(rows[row].results.get(ours, []), [rows[row].results.get(other, [])], p50_of)

    def scaled(number: float | None, by: float) -> float | None:
        return None if number is None else number * by

    yield Target("true: p50 by the bare C loop", value("true", "ours", "ratio"), 2.5, True, "x")
    yield Target("true, shell asleep: p50 by the bare C loop", value("true-rested", "ours", "ratio"), 2.5, True, "x")
    faster = quotient(value("true", "original", "p50_us"), value("true", "ours", "p50_us"))
    yield Target("true: times faster than the original", faster, 1000, False, "x")
    yield Target("true: CPU of this process per command", value("true", "ours", "cpu_self_us"), 30, True, "us")
    yield Target("/bin/true: p50 by the bare C loop", value("bin-true", "ours", "ratio"), 1.15, True, "x")
    yield Target("create_session by a bare bash start", value("create", "ours", "ratio"), 1.5, True, "x")
    for size in (1, 8, 100):
        share = quotient(1, value(f"output-{size}", "ours", "ratio"))
        yield Target(f"{size} MB of output: bytes/s by the bare C read loop", share, 0.8, False, "x")
    speed = {size: value(f"output-{size}", "ours", "megabytes_per_second") for size in (8, 100)}
    yield Target("100 MB of output: bytes/s by those of 8 MB (linear)", quotient(speed[100], speed[8]), 0.7, False, "x")
    growth = quotient(value("output-100", "ours", "rss_growth_kb"), 100 * MEGABYTE / 1024)
    yield Target("100 MB of output: growth of memory by its size", growth, 2.6, True, "x")
    added = scaled(value("patterns", "ours", "added_share"), 100)
    yield Target("20 patterns in 16 MB: time added to reading", added, 20, True, "%")
    yield Target("idle sessions: CPU", scaled(value("idle", "ours", "cpu_share"), 100), 0.05, True, "%")
    yield Target("fleet, asyncio: commands/s by the C epoll loop", value("fleet", "ours", "ratio"), 0.5, False, "x")
    yield Target(
        "fleet, asyncio: CPU of this process per command", value("fleet", "ours", "cpu_self_us"), 25, True, "us"
    )
    core = max((value("fleet", name, "ratio") or 0 for name in ("core", "core, one thread")), default=0) or None
    yield Target("fleet, core: commands/s by the C epoll loop", core, 0.7, False, "x")
    yield Target("interrupt of sleep 100", scaled(value("interrupt", "ours", "p50_us"), 1e-3), 5, True, "ms")
    yield Target("import of the runtime by the original's", value("import", "ours", "ratio"), 0.334, True, "x")
    for other in ("pexpect", "ptyprocess"):
        yield Target(f"true: p50 by {other} by hand", compare("true", "ours", other), 1.5, True, "x")


MARKDOWN_COLUMNS = ("ours", "core", "original", "pexpect", "ptyprocess", "bare C")
MARKDOWN_KEYS: list[tuple[str, Callable[[float], str]]] = [
    ("per_second", lambda number: f"{number:,.0f}/s"),
    ("added_share", lambda number: f"{number * 100:+.0f} %"),
    ("cpu_share", lambda number: f"{number * 100:.2f} % CPU"),
    ("megabytes_per_second", lambda number: f"{number:.3g} MB/s"),
    ("p50_us", duration),
]


def markdown(rows: dict[str, Workload], about: Result) -> str:
    """The short table for a README: the one number of each row that matters."""

    def cell(workload: Workload, contender: str) -> str:
        # "core, one thread" and its like stand in the column of what they are a variant of, where they are better.
        lines = [workload.summary(t.name) for t in workload.turns if t.name.split(",")[0] == contender]
        lines = [line for line in lines if "error" not in line]
        for key, show in MARKDOWN_KEYS:
            values = [line[key] for line in lines if key in line]
            if values:
                return show(max(values) if key == "per_second" else values[0])
        return ""

    lines = ["| " + " | ".join(["p50", *MARKDOWN_COLUMNS]) + " |", "|---" * (len(MARKDOWN_COLUMNS) + 1) + "|"]
    for workload in rows.values():
        cells = [cell(workload, name) for name in MARKDOWN_COLUMNS]
        lines.append("| " + " | ".join([workload.title.replace("|", "\\|"), *cells]) + " |")
    where = "{date}, {cpu}, {processors} processors, load {load_before:.1f}, {kernel}, {bash}".format(**about)
    return "\n".join([*lines, "", f"{where}. Made by `{about['command']}`.", ""])


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="swerex_c beside the original, other ways by hand, and plain C")
    parser.add_argument("--quick", action="store_true", help="few rounds; for CI")
    parser.add_argument("--check", action="store_true", help="compare with the targets; exit 1 if one is missed")
    parser.add_argument("--json", metavar="FILE", help="write all results there")
    parser.add_argument("--markdown", metavar="FILE", help="write the short table for a README there")
    parser.add_argument("--only", metavar="ROW,...", help="these workloads only (true, fleet, output-8, ...)")
    parser.add_argument("--contenders", metavar="NAME,...", help="these contenders only (ours, core, original, ...)")
    parser.add_argument("--no-install", action="store_true", help="do not make an environment for the original")
    parser.add_argument("--cpus", metavar="N,...", help="pin everything to these processors")
    parser.add_argument("--seed", type=int, default=1, help="for the order of turns")
    parser.add_argument("--facts", action="store_true", help="print the prices of system calls and end")
    return parser.parse_args()


def run(arguments: argparse.Namespace, directory: Path) -> int:
    if arguments.facts:
        return subprocess.run([build_floor(directory), "facts"], check=False).returncode
    bench = Bench(arguments, directory)
    about = machine("bench.py", arguments.seed)
    for key, value in about.items():
        print(f"{key:12} {value}")
    sizes = (1, 8, 16) if arguments.quick else (1, 8, 16, 100)
    files = {size: make_file(directory, size) for size in sizes}
    only = set(arguments.only.split(",")) if arguments.only else None
    rows: dict[str, Workload] = {}
    try:
        for workload in workloads(arguments.quick, files):
            if (only and workload.key not in only) or (not only and workload.key == "output-16"):
                continue
            bench.run(workload)
            print_workload(workload)
            sys.stdout.flush()
            rows[workload.key] = workload
    finally:
        bench.close()
    about["contenders"] = {n: c.python for n, c in bench.contenders.items() if isinstance(c, Worker)}
    print("\ninterpreters: " + ", ".join(f"{name} {python}" for name, python in about["contenders"].items()))
    found = [t for t in targets(rows) if t.value is not None or not (only or arguments.quick)]
    if arguments.check and found:
        print_targets(found)
    table = {key: {t.name: row.summary(t.name) for t in row.turns} for key, row in rows.items()}
    wrong = [f"{key}, {name}" for key, lines in table.items() for name, line in lines.items() if line.get("wrong")]
    for text in wrong:
        print(f"wrong answers: {text}")
    if arguments.json:
        goals = [{**vars(t), "met": t.met} for t in found]
        document = {"machine": about, "rows": table, "targets": goals, "absent": bench.absent}
        Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    failed = {
        f"{name}: {error}" for row in rows.values() for name, error in our_errors(row, ("ours", "core", "bare C"))
    }
    for text in sorted(failed):
        print(f"failed: {text}")
    if arguments.markdown:
        Path(arguments.markdown).write_text(markdown(rows, about))
    ours_wrong = any(", original" not in text for text in wrong)
    missed = arguments.check and any(not t.met for t in found)
    return 1 if ours_wrong or failed or missed else 0


def main() -> int:
    arguments = parse()
    if arguments.cpus:
        os.sched_setaffinity(0, {int(n) for n in arguments.cpus.split(",")})
    try:
        with work_directory() as directory:
            return run(arguments, directory)
    except (BenchError, subprocess.CalledProcessError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
