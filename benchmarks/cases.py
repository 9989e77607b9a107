"""The cases: what is measured with which engines, what they have to answer, and the goals. The driver is bench.py."""

from __future__ import annotations

from collections.abc import Iterator

from measure import (
    MEGABYTE,
)
from rows import Result, Target, Turn, Workload, median_ratio, p50_of

__all__ = ["GROWTH", "IN_C", "targets", "workloads"]

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
LITERALS = [f"needle-{i:02d}-in-the-stack" for i in range(20)]
REGEXES = [
    r"error: [a-z]+ at line \d+",
    r"\(gdb\) $",
    r"Traceback \(most recent call last\)",
    r"(?:fatal|panic): .+",
    r"found [0-9]{4} of [0-9]{4}!",
]

GROWTH = (1, 8, 64, 256, 1000)
"""Numbers of sessions at once."""

SLOW = ("original", "tmux", "replwrap", "pexpect, as it comes", "subprocess")
"""Engines that have fewer rounds."""

ACTIONS: list[tuple[str, str | None, int]] = [
    ("cd $(mktemp -d) && git init -q . && git config user.name a && git config user.email a@b.c", "", 0),
    ("cat >calc.py <<'EOF'\ndef add(a, b):\n    return a - b  # wrong\nEOF", "", 0),
    (
        "cat >test_calc.py <<'EOF'\nimport unittest\nfrom calc import add\n\n"
        "class T(unittest.TestCase):\n    def test(self):\n        self.assertEqual(add(1, 2), 3)\nEOF",
        "",
        0,
    ),
    ("git add -A && git commit -qm first", "", 0),
    ("ls -1", "calc.py\ntest_calc.py\n", 0),
    ("grep -n wrong calc.py", "2:    return a - b  # wrong\n", 0),
    ("python3 -m unittest -q 2>&1 | tail -1", "FAILED (failures=1)\n", 0),
    ("sed -i 's/a - b  # wrong/a + b/' calc.py", "", 0),
    ("python3 -m unittest -q 2>&1 | tail -1", "OK\n", 0),
    ("git diff --stat | tail -1", " 1 file changed, 1 insertion(+), 1 deletion(-)\n", 0),
    ("cat calc.py", "def add(a, b):\n    return a + b\n", 0),
    ("seq 20000", None, 0),
    ("find /usr/include -name 'std*.h' | sort", None, 0),
    ("false", "", 1),
    ("export X=1; echo $X; pwd >/dev/null", "1\n", 0),
    ("git commit -qam second && git log --oneline | wc -l", "2\n", 0),
    ('rm -rf "$PWD"; cd /', "", 0),
]
"""What an agent does to mend a fault: commands, what they print (None: too long to say here), their exit codes."""

IN_C = ("bare C", "engine")


def floor_turn(label: str, *arguments: object) -> Turn:
    return Turn("bare C", {"arguments": list(arguments)}, label)


def bytes_turn(name: str, request: Result, rounds: int | None = None) -> Turn:
    """A library that works on bytes in memory: text_worker.py."""
    return Turn(f"bytes: {name}", request, name, rounds)


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
            if name == "Tcl Expect":
                turns.append(Turn(name, {"arguments": ["command", number(name), text, rest_us]}))
                continue
            request = {"text": text, "count": number(name), "warm": min(50, number(name) // 2), "rest_us": rest_us}
            turns.append(Turn(name, {"operation": "command", **request}, rounds=2 if name in SLOW else None))
    # While resting the contenders burn time, so the CPU of a rested row says nothing.
    return Workload(key, title, turns, kind="rested" if rest_us else "latency")


def workloads(quick: bool, files: dict[int, str], line_file: str) -> Iterator[Workload]:
    """Every row of the table.  Numbers are chosen so that each contender has about the same time, the original less."""
    scale = 0.2 if quick else 1.0
    rounds = 2 if quick else 5
    ours = ("ours", "ours, uvloop", "core")
    hand = {"pexpect": 500, "ptyprocess": 2000, "pipes": 1000, "Tcl Expect": 1000}
    slow = {"subprocess": 100, "tmux": 20, "replwrap": 10, "pexpect, as it comes": 10, "original": 10}
    everyone = {"bare C": 2000, "engine": 2000, **dict.fromkeys(ours, 2000), **hand, **slow}
    some = {"bare C": 300, "engine": 300, **dict.fromkeys(ours, 300), **dict.fromkeys(hand, 200), "original": 5}

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
                Turn("Tcl Expect", {"arguments": ["create", 5]}, "Tcl Expect, no startup files", rounds=2),
                Turn("replwrap", {**create, "count": 2}, rounds=1),
                Turn("tmux", {**create, "count": 2}, rounds=1),
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
        if size <= 16:
            turns.append(Turn("Tcl Expect", in_c, rounds=2))
        if size == 1 or (size == 8 and not quick):
            turns.append(Turn("original", {**request, "count": 1}, rounds=1))
        title = f"{size} MB of output (cat of a file)"
        rows.append(Workload(f"output-{size}", title, turns, kind="output", rounds=3 if size > 8 else 5))

    line = {"path": line_file, "count": 1}
    turns = [Turn(name, {"arguments": ["output", line_file, 1]}) for name in IN_C]
    turns += [Turn(name, {"operation": "output", **line}) for name in ("ours", "core", "ptyprocess", "pipes")]
    rows.append(Workload("output-line", "the same bytes in one line", turns, kind="output", rounds=3))

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

    for sessions in GROWTH[: 3 if quick else None]:
        commands = max(4, min(400, 6400 // sessions))
        many = {"operation": "fleet", "sessions": sessions, "commands": commands}
        turns = [floor_turn("bare C", "fleet", sessions, commands)]
        turns += [Turn("ours", many), Turn("core", {**many, "one_waker": True}), Turn("ptyprocess", many)]
        rows.append(
            Workload(f"fleet-{sessions}", f"{sessions} sessions at once, `true`", turns, kind="fleet", rounds=2)
        )

    stall = {"operation": "stall", "sessions": 100 if quick else 1000, "megabytes": 20 if quick else 300}
    title = f"how late a timer of 1 ms is: {stall['sessions']} sessions, {stall['megabytes']} MB of output"
    rows.append(
        Workload(
            "stall",
            title,
            [Turn(name, stall) for name in ("ours", "ours, uvloop")]
            + [Turn("ours", {**stall, "sessions": 1, "megabytes": 0}, "nothing but the timer")],
            "nothing but the timer",
            "late",
            2,
        )
    )

    replay = {"operation": "replay", "count": 2 if quick else 5}
    rows.append(
        Workload(
            "replay",
            f"an agent's {len(ACTIONS)} actions: here-documents, grep, tests, git, long output",
            [
                *(Turn(name, {**replay, "actions": ACTIONS}) for name in ("ours", "core", "ptyprocess")),
                Turn("pipes", {**replay, "actions": ACTIONS}),
                Turn("original", {**replay, "actions": ACTIONS, "count": 1}, rounds=1),
            ],
            "ptyprocess",
            rounds=3,
        )
    )

    threads = {"operation": "threads", "count": 500 if quick else 3000}
    rows.append(
        Workload(
            "threads",
            "two threads, a session each, beside one alone (commands that compute)",
            [Turn(name, threads) for name in ("core", "ptyprocess")],
            "",
            "speedup",
            3,
        )
    )

    for key, title, patterns, needle, expected in (
        ("match-literal", "one of 20 literals", LITERALS, LITERALS[7], LITERALS[7]),
        ("match-regex", "one of 5 regular expressions", REGEXES, NEEDLE, REGEXES[-1]),
    ):
        stream = {"path": files[16], "patterns": patterns, "needle": needle, "expected": expected, "chunk": 4096}
        names = ["ours", "hyperscan", "pcre2"] + (["find", "pyahocorasick"] if patterns is LITERALS else [])
        request = {"operation": "match", **stream, "count": 2}
        turns = [bytes_turn(name, request) for name in names]
        turns.append(bytes_turn("re", {**request, "count": 1}, rounds=1))
        rows.append(Workload(key, f"{title} at the end of 16 MB in chunks of 4 KiB", turns, "pcre2", "match", 3))
    for size in (100, 1_000_000):
        for operation in ("encode", "decode"):
            request = {"operation": operation, "size": size, "count": 50}
            turns = [bytes_turn(name, request) for name in ("ours", "ormsgpack", "msgpack")]
            title = f"{operation} an answer with {size:,} bytes of output"
            rows.append(Workload(f"{operation}-{size}", title, turns, "ormsgpack", "bytes", 3))

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

    yield Target("/bin/true, core: p50 by the bare C loop", value("bin-true", "core", "ratio"), 1.1, True, "x")
    for size in GROWTH[2:]:
        row = f"fleet-{size}"
        yield Target(f"{size} sessions, asyncio: rate by the C loop's", value(row, "ours", "ratio"), 0.55, False, "x")
        yield Target(f"{size} sessions, core: rate by the C loop's", value(row, "core", "ratio"), 0.85, False, "x")
    line = quotient(value("output-line", "ours", "megabytes_per_second"), speed[100] or speed[8])
    yield Target("one line: bytes/s by those of many lines", line, 0.9, False, "x")
    late = scaled(value("stall", "ours", "p99_us"), 1e-3)
    yield Target("a timer of 1 ms under load: p99 of its delay", late, 1, True, "ms")
    yield Target("20 literals: GB/s", scaled(value("match-literal", "ours", "megabytes_per_second"), 1e-3), 1.5, False)
    yield Target("5 regexes: GB/s", scaled(value("match-regex", "ours", "megabytes_per_second"), 1e-3), 1.0, False)
    for row in ("encode-100", "decode-100", "encode-1000000", "decode-1000000"):
        yield Target(f"{row}: time by ormsgpack's", value(row, "ours", "ratio"), 1.0, True, "x")
    yield Target("two threads by one", value("threads", "core", "speedup"), 1.8, False, "x")
