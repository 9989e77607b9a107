"""The goals of servers and containers."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from rows import Result
from values import Goal, Value, beside, best, by, inverse, of

__all__ = ["docker", "remote"]


def faster(row: str, line: str, other: str) -> Value:
    """How many times."""
    return inverse(beside(row, line, other))


def less(one: Value, other: Value) -> Value:
    def find(record: Result) -> float | None:
        a, b = one(record), other(record)
        return a - b if a is not None and b is not None else None

    return find


def added(row: str, whole: str, rest: str, other: str) -> Value:
    """The median over the rounds of what one line takes more than a second, by a third."""

    def find(record: Result) -> float | None:
        lines = record["rows"].get(row, {}).get("lines", {})
        a, b, c = [lines.get(name, {}).get("rounds", {}) for name in (whole, rest, other)]
        found = [(a[number] - b[number]) / c[number] for number in a if b.get(number) and c.get(number)]
        return statistics.median(found) if found else None

    return find


THEIRS = (("original", "original, dummy"), ("original on ours", "original on ours, dummy"))


def commands() -> Iterator[Goal]:
    for line, echo, what in (("ours", "echo", "TCP"), ("ours, unix", "echo, unix", "unix")):
        floor = beside("remote-true", line, echo, "local")
        yield Goal(f"remote true over {what}: by local and a bare echo over the same", floor, 1.5)
        yield Goal(f"remote true over {what}, on one processor", of("remote-true", line, "pinned_ratio"), 1.5)
    yield Goal("remote true: times faster than the original", faster("remote-true", "ours", "original"), 500, False)
    own, dummy, theirs = "original on ours", "original on ours, dummy", "remote, the original's client: "
    both = [less(of("remote-true", a, "p50_us"), of("remote-true", b, "p50_us")) for a, b in THEIRS]
    yield Goal(f"{theirs}true: session's part, times faster", by(*both), 1000, False)
    yield Goal(f"{theirs}true: session's part, by the local session", added("remote-true", own, dummy, "local"), 1.5)
    # A session that is asked as seldom takes longer here, too: processor and shell sleep meanwhile.
    rested = added("remote-true", own, dummy, "local, rested")
    yield Goal(f"{theirs}true: session's part, by a local session that rests as long", rested, 1.5)
    yield Goal(f"{theirs}true, dummy: by a bare HTTP answer", beside("remote-true", dummy, "bare HTTP"), 1.5)
    yield Goal(f"{theirs}is_alive: by a bare HTTP answer", beside("remote-alive", own, "bare HTTP"), 1.5)
    for row, word in (("alive", "is_alive"), ("execute", "execute")):
        yield Goal(f"{theirs}{word}: by its own server", beside(f"remote-{row}", own, "original"), 1)
    for row, word in (("true", "true"), ("alive", "is_alive")):
        for line in ("ours, unix", "ours, stdio"):
            yield Goal(f"remote {word}, {line[6:]}: by TCP", beside(f"remote-{row}", line, "ours"), 1.05)


def alive() -> Iterator[Goal]:
    # Where waking a processor takes long, the bare echo itself does not reach so many times; then the second says it.
    for row, times, what, echo in (("remote-alive", 25, "idle", 33), ("remote-alive-busy", 75, "busy", 92)):
        found = faster(row, "ours", "original")
        yield Goal(f"remote is_alive, {what}: times faster than the original", found, times, False)
        yield Goal(f"remote is_alive, {what}: by the bare echo", of(row, "ours", "ratio"), echo / times)
    worst = best(*(of("remote-alive-sessions", line, "max_us", 1e-3) for line in ("ours", "ours, unix")))
    yield Goal("remote is_alive while 100 sessions run: worst", worst, 10, True, "ms")
    for key, what in (("requests", "100 requests"), ("forks", "100 requests that start programs")):
        worst = of(f"remote-alive-{key}", "original on ours", "max_us", 1e-3)
        yield Goal(f"remote is_alive under {what}, the original's client: worst", worst, 75, True, "ms")
    rate = of("remote-in-flight", "ours", "ratio")
    yield Goal("remote, 64 requests in flight: rate by the bare echo", rate, 0.5, False)


def outputs() -> Iterator[Goal]:
    for size, times in ((1, 20), (16, 6)):
        row = f"remote-output-{size}"
        for how in ("execute", "session"):
            value = faster(row, f"ours, {how}", "original, execute")
            text = f"remote {size} MB of output, {how}: times faster than the original's execute"
            yield Goal(text, value, times, False)
        floor = beside(row, "ours, execute", "bare run", "copy to text")
        yield Goal(f"remote {size} MB of output, execute: by the bare command and a bare copy", floor, 2)


def transfers() -> Iterator[Goal]:
    for how, floor in (("upload", "copy"), ("download", "copy"), ("write", "copy to text"), ("read", "copy to text")):
        yield Goal(f"remote {how}: bytes/s by a bare {floor}", faster(f"remote-{how}", "ours", floor), 0.5, False)
    for how in ("upload", "download"):
        rate = faster(f"remote-{how}", "ours", "copy of files")
        yield Goal(f"remote {how}: bytes/s by a bare copy of files", rate, 0.7, False)
    for how, limit in (("upload", 32), ("download", 32), ("write", 300), ("read", 300)):
        for end, key in (("client", "rss_growth_kb"), ("server", "rss_growth_server_kb")):
            grown = of(f"remote-{how}", "ours", key, 1.024e-3)
            yield Goal(f"remote {how} of 100 MB: memory of the {end}", grown, limit, True, "MB")
    yield Goal("remote idle server: CPU", of("remote-idle", "ours", "cpu_share", 100), 0.05, True, "%")
    yield Goal("remote idle server: memory a session", of("remote-idle", "ours", "rss_per_session_kb"), 100, True, "kB")


def remote() -> Iterator[Goal]:
    for goals in (commands, alive, outputs, transfers):
        yield from goals()


def docker() -> Iterator[Goal]:
    yield Goal("docker start: by docker run and exec", of("docker-create", "ours", "ratio"), 1.5)
    yield Goal("docker true: by the C loop over docker exec", of("docker-true", "ours", "ratio"), 1.3)
    yield Goal("docker true: times faster than the original", faster("docker-true", "ours", "original"), 100, False)
    for how in ("write", "read"):
        rate = inverse(of(f"docker-{how}", "ours", "ratio"))
        yield Goal(f"docker {how}_file: bytes/s by docker exec and cat", rate, 0.7, False)
