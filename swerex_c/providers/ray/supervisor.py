"""Supervisor process of an environment: the ancestor of all its processes.

    Ray's worker (the actor) -pipe- supervisor ── environment's server ── sessions, commands, container engine clients

The supervisor is small and has one thread. It adopts orphans (PR_SET_CHILD_SUBREAPER), so that no process started in
the environment can leave its tree, neither by `setsid` and `nohup` nor with an empty environment. It ends the whole
tree, and the container of an environment that has one,

- when the actor is gone for any reason: this closes the other end of a pipe;
- when the actor requests it: the supervisor then first asks the server to end gracefully;
- when the server has ended by itself, was killed or has crashed;
- at the time limit, and at the memory limit.

The kernel kills the server when the supervisor is killed (PR_SET_PDEATHSIG). These processes escape: processes that
another service starts on request (cron, at, systemd, a container engine that is called by hand), processes that this
user may not kill (programs that became another user), and, if the supervisor itself is killed, processes that ignore
the terminal's hang-up and the environment's container, which `swerex-c prune` on that node removes.

The supervisor reads its specification from standard input, which stays open, as one line of JSON. Its standard output
has lines of JSON: that the server is ready or why it is not, and at the end the kind and the words of the reason why
the environment has ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from swerex_c.utils.temporary import make_temporary

__all__ = ["PROGRAM", "main"]

PROGRAM = """
import json, os, sys
if os.fork():
    os._exit(0)
spec = json.loads(sys.stdin.buffer.raw.readline())
sys.path[:] = spec["sys_path"]
from swerex_c.providers.ray.supervisor import main
main(spec)
"""
"""Program for `python -c`. It finds modules where the worker finds them. It forks to become an orphan, because a Ray
worker that ends kills its children but not orphans, and the supervisor has to outlive it."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_SWEEP_SECONDS = 10.0
"""Maximum seconds to kill processes until none is left."""

_STOP_SECONDS, _CONTAINER_STOP_SECONDS = 5.0, 30.0
"""Seconds that the environment has to end gracefully."""

_CHECK_INTERVAL = 0.1
"""Minimum seconds between two checks of the server and of the limits."""

_CHECK_SHARE = 20
"""Minimum ratio of interval to duration of a check: checks use at most 1/20 of a core for any process count."""


def main(spec: dict[str, Any]) -> None:
    """Supervise an environment until it ends, then exit the process."""
    try:
        _Supervisor(spec).run()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class _Supervisor:
    def __init__(self, spec: dict[str, Any]):
        self.spec = spec
        self.directory = make_temporary("swerex-ray-")
        self.has_container = spec["environment"]["type"] == "docker"
        self.server = 0
        self.status: int | None = None

    def run(self) -> None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)  # the supervisor ends with its environment
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the raylet ignores it, which hides how children have ended
        try:
            self._start()
            self._end(self._wait())
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _start(self) -> None:
        supervisor = os.getpid()
        self.server = os.fork()
        if self.server:
            return
        code = 1
        try:
            for number in (signal.SIGINT, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != supervisor:
                os._exit(1)
            told = os.dup(1)  # commands do not inherit it
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            os.dup2(2, 1)
            import asyncio

            from swerex_c.providers.ray.server import run

            asyncio.run(run(self.spec, self.directory, told))
            code = 0
        except BaseException as error:
            print(f"The environment's server failed: {error!r}", file=sys.stderr)
        finally:
            os._exit(code)

    # Waiting

    def _wait(self) -> tuple[str, str]:
        """Wait for the first reason to end the environment, and return its kind and words."""
        time_limit, memory_limit = self.spec["time_limit"], self.spec["memory_limit"]
        began, check_at = time.monotonic(), 0.0
        while True:
            ready, _, _ = select.select([0], [], [], _CHECK_INTERVAL)
            now = time.monotonic()
            self._reap()
            if memory_limit is not None and now >= check_at:
                if _takes_more_than(memory_limit):
                    return "memory", f"it exceeded its memory limit of {memory_limit} bytes"
                check_at = now + _CHECK_SHARE * (time.monotonic() - now)
            if self.status is not None:
                killed = f"was killed by signal {-self.status}"
                how = killed if self.status < 0 else f"ended with exit code {self.status}"
                return "server", f"the process that ran it {how}"
            if time_limit is not None and now - began >= time_limit:
                return "time", f"it has reached its time limit of {time_limit:g} seconds"
            if ready:
                if os.read(0, 4096):
                    return "stopped", "it was stopped"
                # If the actor lives to report it, it has closed the pipe because of its node.
                return "actor", "Ray's process on the node has ended, so the node has"

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self.server:
                    self.status = os.waitstatus_to_exitcode(found[1])

    # Ending

    def _end(self, reason: tuple[str, str]) -> None:
        if reason[0] == "stopped":
            deadline = time.monotonic() + (_CONTAINER_STOP_SECONDS if self.has_container else _STOP_SECONDS)
            _kill(self.server, signal.SIGTERM)
            while self.status is None and time.monotonic() < deadline:
                time.sleep(0.005)
                self._reap()
        self._sweep()
        if self.has_container and self.status != 0:
            self._end_container()
        with contextlib.suppress(OSError):  # the actor is gone
            os.write(1, json.dumps({"ended": reason}).encode() + b"\n")

    def _sweep(self) -> None:
        """Kill all descendants, as far as that is possible in `_SWEEP_SECONDS`."""
        deadline = time.monotonic() + _SWEEP_SECONDS
        while time.monotonic() < deadline:
            # Stop the processes first, so that none starts another one during the search.
            seen: set[int] = set()
            while fresh := [pid for pid in _descendants() if pid not in seen]:
                for pid in fresh:
                    _kill(pid, signal.SIGSTOP)
                seen.update(fresh)
            if not seen:
                return
            for pid in seen:
                _kill(pid, signal.SIGKILL)
            self._reap()
            time.sleep(0.005)

    def _end_container(self) -> None:
        """End the container that the server could not end itself. A label of it has the server's pid."""
        from swerex_c.providers import orphans, ownership
        from swerex_c.providers.docker.engine import Engine

        async def own() -> AsyncIterator[orphans.OwnedSandbox]:
            async for one in Engine(self.spec["environment"]["container_runtime"]).owned():
                if one.facts.get(ownership.PID) == str(self.server):
                    yield one

        with contextlib.suppress(Exception):
            for one in orphans.prune(own()):
                if one.error is not None:
                    print(f"The container {one.name} could not be ended: {one.error}", file=sys.stderr)


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _descendants() -> list[int]:
    """Return the pids of this process's live descendants, parents before children."""
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # proc(5): the second field may hold anything, up to the last parenthesis.
            fields = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
            if fields[0] not in (b"Z", b"X"):
                children.setdefault(int(fields[1]), []).append(int(name))
    found = [os.getpid()]
    for each in found:
        found += children.pop(each, ())
    return found[1:]


def _takes_more_than(limit: int) -> bool:
    """Check whether the descendants of this process take more than `limit` bytes of memory.

    Shared pages count once. Processes that allocate very quickly can exceed a limit until the next check.
    """
    found = _descendants()
    return sum(map(_resident, found)) > limit and sum(map(_proportional, found)) > limit


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def _proportional(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return _resident(pid)
