"""The cases whose shells are elsewhere: behind a server, in a container; engines/remote.py and engines/docker.py.

What stands before a colon in a contender's name is what bench.py starts for it: servers, or a Docker engine.
"""

from __future__ import annotations

from collections.abc import Iterator

from extent import Extent
from files import Files
from rows import Result, Turn, Workload
from servers import SESSIONS

__all__ = ["docker", "remote"]

TRANSPORTS = ("ours", "ours, unix", "ours, stdio")
OURS = (*TRANSPORTS, "ours, uvloop")
BOTH = ("original on ours", "original")
DUMMIES = ("ours, dummy", "original on ours, dummy", "original, dummy")
ECHOS = ("echo", "echo, unix", "echo, uvloop")
OUTPUT_FLOOR = ("bare run", "copy to text")
"""The least that a command's output takes: the command, read to its end, and those bytes once through a socket."""
REST_US = 1000
"""So long a session is left alone between two requests of the original's client, about: shell and processor sleep."""
FEW = ("original on ours", "ours on original", "bare HTTP", *DUMMIES[1:])
"""Those that make a connection for each request, and so take ten times as long."""
FLOORS = {"write": ("copy to text",), "read": ("copy to text",), "upload": ("copy of files",)}
FLOORS["download"] = FLOORS["upload"]
"""Besides the copy: what comes is one string, or is in a file at both ends."""


def there(place: str, name: str, request: Result, label: str = "", rounds: int | None = None) -> Turn:
    return Turn(f"{place}: {name}", request, label or name, rounds)


def calls(extent: Extent, what: str, names: tuple[str, ...], share: float = 1.0, rest_us: int = 0) -> list[Turn]:
    """Requests one after the other; numbers are chosen so that each has about the same time."""
    turns = []
    for name in names:
        one_by_one = name == "original" and what == "true"
        count = 10 if one_by_one else 200 if name in (*FEW, "original") else 100 if what == "execute" else 1000
        count = extent.number(int(count * share))
        count = min(count, 100) if rest_us else count
        request = {"operation": "calls", "what": what, "count": count, "warm": min(50, count // 2), "rest_us": rest_us}
        turns.append(there("remote", name, request, rounds=2 if one_by_one else None))
    return turns


def remote(extent: Extent, files: Files) -> Iterator[Workload]:
    for rows in (requests, sessions, flights, outputs, transfers, idle):
        yield from rows(extent, files)


def requests(extent: Extent, files: Files) -> Iterator[Workload]:
    title = 'remote: true (run_in_session, check="silent")'
    turns = calls(extent, "true", (*ECHOS, "local", *OURS, *BOTH, *DUMMIES, "bare HTTP"))
    rested = {"operation": "calls", "what": "true", "count": extent.number(100), "warm": 10, "rest_us": REST_US}
    turns.append(there("remote", "local", rested, "local, rested"))
    yield Workload("remote-true", title, turns, "echo + local", "remote", pinned=True)
    turns = calls(extent, "alive", (*ECHOS, *OURS, "ours on original", *BOTH, "bare HTTP"))
    yield Workload("remote-alive", "remote: is_alive", turns, "echo", "remote", pinned=True)
    some = ("echo", *TRANSPORTS[:2], BOTH[0])
    beside = {
        "busy": ("while a process computes on each processor", (*ECHOS, *OURS, *BOTH)),
        "sessions": (f"while {SESSIONS} sessions of our server run a command that prints", some),
        "requests": (f"while {SESSIONS} sessions of our server carry out requests without a pause", some),
        "forks": (f"while {SESSIONS} callers have our server execute programs", (*some, "bare HTTP")),
    }
    for key, (what, names) in beside.items():
        busy = key == "busy"
        turns = calls(extent, "alive", names, 0.5 if busy else 1.0, 0 if busy else 5000)
        title = f"remote: is_alive{'' if busy else ' every 5 ms'} {what}"
        yield Workload(f"remote-alive-{key}", title, turns, "echo", "remote", beside=key)
    turns = calls(extent, "execute", ("no server", "ours", "ours on original", *BOTH))
    yield Workload("remote-execute", 'remote: execute(Command("true", shell=True))', turns, "original", "remote")


def sessions(extent: Extent, files: Files) -> Iterator[Workload]:
    create = {"operation": "create", "count": extent.number(10)}
    turns = [there("remote", name, create) for name in ("no server", *TRANSPORTS[:2])]
    turns += [there("remote", name, {**create, "count": 2}, rounds=1) for name in BOTH]
    yield Workload("remote-create", "remote: a session, until its first prompt", turns, "no server", "remote")
    interrupt = {"operation": "interrupt", "count": extent.number(5)}
    turns = [there("remote", name, interrupt) for name in ("no server", *TRANSPORTS[:2])]
    turns += [there("remote", name, {**interrupt, "count": 2}, rounds=1) for name in BOTH]
    yield Workload("remote-interrupt", "remote: interrupt of `sleep 100`", turns, "no server", "remote", 2)


def flights(extent: Extent, files: Files) -> Iterator[Workload]:
    flight = {"operation": "in_flight", "what": "alive", "width": 64, "count": extent.number(200)}
    few = {**flight, "count": extent.number(5)}
    turns = [
        *(there("remote", name, flight) for name in (*ECHOS, *OURS)),
        there("remote", "ours", {**flight, "what": "true"}, "ours, true in 64 sessions"),
        *(there("remote", name, few) for name in BOTH),
    ]
    yield Workload("remote-in-flight", "remote: is_alive, 64 at once on one connection", turns, "echo", "rate")


def outputs(extent: Extent, files: Files) -> Iterator[Workload]:
    for size in (1, 16):
        count = 1 if extent.quick else max(1, 10 // size)
        request = {"operation": "printed", "path": files.lines(size), "count": count}
        by_execute, in_session = {**request, "how": "execute"}, {**request, "how": "run"}
        ours = ("no server", *TRANSPORTS[:2])
        turns = [
            *(there("remote", name, by_execute) for name in OUTPUT_FLOOR),
            *(there("remote", name, by_execute, f"{name}, execute") for name in (*ours, *BOTH)),
            *(there("remote", name, in_session, f"{name}, session") for name in (*ours, BOTH[0])),
        ]
        if size == 1:
            turns.append(there("remote", "original", {**in_session, "count": 1}, "original, session", rounds=1))
        title = f"remote: {size} MB of output (cat of a file)"
        yield Workload(f"remote-output-{size}", title, turns, "original, execute", "transfer", rounds=3)


def transfers(extent: Extent, files: Files) -> Iterator[Workload]:
    size = 1 if extent.quick else 100
    path = files.lines(size)
    for how in ("upload", "download", "write", "read"):
        request = {"operation": "transfer", "how": how, "path": path, "copy": f"{path}-copy", "count": 1}
        turns = [
            *(there("remote", name, request) for name in ("copy", *FLOORS[how], *TRANSPORTS)),
            *(there("remote", name, request, rounds=1) for name in (BOTH if how != "download" else ())),
        ]
        word = {"write": "write_file", "read": "read_file"}.get(how, how)
        yield Workload(f"remote-{how}", f"remote: {word} of {size} MB", turns, "copy", "transfer")


def idle(extent: Extent, files: Files) -> Iterator[Workload]:
    sessions = 20 if extent.quick else SESSIONS
    nothing = {"operation": "idle_server", "sessions": sessions, "seconds": extent.idle_seconds}
    turns = [there("remote", "ours, alone", nothing, "ours")]
    if not extent.quick:
        turns.append(there("remote", "original", {**nothing, "sessions": 10}))
    title = f"remote: a server with {sessions} idle sessions for {extent.idle_seconds:g} s"
    yield Workload("remote-idle", title, turns, "", "idle", 1)


def docker(extent: Extent, files: Files) -> Iterator[Workload]:
    def turns(operation: str, counts: dict[str, int], **more: object) -> list[Turn]:
        return [
            there("docker", name, {"operation": operation, "count": max(1, int(count * extent.share)), **more})
            for name, count in counts.items()
        ]

    def one_by_one(what: str, counts: dict[str, int], rest_us: int = 0) -> list[Turn]:
        return turns("calls", counts, what=what, warm=1, rest_us=rest_us)

    title = "docker: DockerDeployment.start() and a session (docker: run -d, then exec)"
    found = turns("create", {"docker": 3, "ours": 3, "original": 1})
    yield Workload("docker-create", title, found, "docker", "remote")
    bare = there("docker", "bare C", {"arguments": [extent.number(2000), "true"]})
    found = [bare, *one_by_one("true", {"ours": 2000, "original": 10})]
    title = 'docker: true (run_in_session, check="silent") in a container'
    yield Workload("docker-true", title, found, "bare C", "remote")
    title = 'docker: execute(Command("true", shell=True)) in a container, one after the other (docker: exec)'
    found = one_by_one("execute", {"docker": 10, "ours": 10, "original": 50})
    yield Workload("docker-execute", title, found, "docker", "remote")
    found = one_by_one("execute", {"docker": 5, "ours": 5, "original": 5}, 500_000)
    yield Workload("docker-execute-rested", "docker: the same, half a second apart", found, "docker", "remote")
    path = files.lines(16)
    for how in ("write", "read"):
        found = turns("transfer", {"docker": 3, "ours": 3, "original": 1}, how=how, path=path, copy=f"{path}-copy")
        title = f"docker: {how}_file of 16 MB (docker: exec -i, cat)"
        yield Workload(f"docker-{how}", title, found, "docker", "transfer")
