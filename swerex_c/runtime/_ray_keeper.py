"""The program that an environment's processes come from, so that all of them are found and ended, whatever happens.

    Ray's worker (the actor) -pipe- keeper ── environment's server ── sessions, commands, clients of a container engine

The keeper is small and has one thread. It adopts what loses its parent (PR_SET_CHILD_SUBREAPER), so that nothing that
was started in the environment can leave its tree: neither by `setsid` and `nohup` nor with an empty environment. It
ends the whole tree, and the container of an environment that has one,

- when the actor is gone, however that came about: a pipe's other end is closed then;
- when the actor asks for it, first by asking the server to end what it has in good order;
- when the server has ended by itself, was killed or has crashed;
- at the time limit, and at the memory limit.

The server is killed by the kernel when the keeper is (PR_SET_PDEATHSIG). What escapes: processes that something else
starts when asked to (cron, at, systemd, a container engine that is called by hand), those that this user may not kill
(programs that became another user), and, if the keeper itself is killed, what ignores the terminal's hang-up and the
environment's container, which `swerex-c prune` on that node removes.

It is told what to do by one line of JSON on its standard input, which stays open; it tells by lines of JSON on its
standard output that the server is ready, or why it is not, and in the end why it ended.
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
import tempfile
import time
import traceback
from typing import TYPE_CHECKING, Any

from swerex_c.runtime._ray_limits import descendants, new_limit

if TYPE_CHECKING:
    from swerex_c.runtime._ray_limits import Group, Watch

__all__ = ["PROGRAM", "main", "stop_seconds"]

PROGRAM = """
import json, os, sys
if os.fork():
    os._exit(0)
spec = json.loads(sys.stdin.buffer.raw.readline())
sys.path[:] = spec["sys_path"]
from swerex_c.runtime._ray_keeper import main
main(spec)
"""
"""For `python -c`: modules are found where the worker finds them. A worker of Ray's that ends kills its children, but
not those that are nobody's child any more: the keeper is to outlive it."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

_SWEEP_SECONDS = 10.0
"""How long what is killed may take to be gone."""

_STOP_SECONDS = 5.0
_STOP_SECONDS_CONTAINER = 30.0

_IDLE = 60.0
"""Seconds of a wait that nothing limits."""


def stop_seconds(spec: dict[str, Any]) -> float:
    """How long the environment has to end in good order."""
    return _STOP_SECONDS_CONTAINER if spec["environment"]["type"] == "docker" else _STOP_SECONDS


def main(spec: dict[str, Any]) -> None:
    """Keep an environment until it ends, and end the process."""
    keeper = _Keeper(spec)
    try:
        keeper.run()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


class _Keeper:
    def __init__(self, spec: dict[str, Any]):
        self.spec = spec
        self.directory = tempfile.mkdtemp(prefix="swerex-ray-")
        self.limit: Group | Watch | None = None
        self.server = 0
        self.status: int | None = None
        self._asked = b""

    def run(self) -> None:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # it ends when what it keeps does
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        container = self.spec["environment"]["type"] == "docker"
        if self.spec["memory_limit"] is not None and not container:
            name = os.path.basename(self.directory)
            self.limit = new_limit(self.spec["memory_limit"], name, groups=self.spec.get("groups", True))
        try:
            self._start()
            why = self._wait(wake_read)
            self._end(why)
        finally:
            shutil.rmtree(self.directory, ignore_errors=True)
            if self.limit is not None:
                self.limit.close()

    def _start(self) -> None:
        keeper = os.getpid()
        self.server = os.fork()
        if self.server:
            return
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD):
                signal.signal(number, signal.SIG_DFL)
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != keeper:
                os._exit(1)
            told = os.dup(1)  # not inherited
            null = os.open(os.devnull, os.O_RDWR)
            os.dup2(null, 0)
            os.dup2(2, 1)
            if self.limit is not None:
                self.limit.enter()
            from swerex_c.runtime._ray_server import run

            code = run(self.spec, self.directory, told)
        except BaseException as error:
            print(f"The environment's server failed: {error!r}", file=sys.stderr)
        finally:
            os._exit(code)

    # Waiting

    def _wait(self, wake: int) -> dict[str, Any]:
        """Wait for the first reason to end; which it is."""
        began = time.monotonic()
        limit = self.spec["time_limit"]
        poll = select.poll()
        poll.register(0, select.POLLIN)
        poll.register(wake, select.POLLIN)
        while True:
            seconds = _IDLE if self.limit is None else self.limit.interval
            if limit is not None:
                seconds = max(0.0, min(seconds, began + limit - time.monotonic()))
            ready = [fd for fd, _ in poll.poll(seconds * 1000 + 1)]
            if wake in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake, 4096)
            self._reap()
            if self.limit is not None and self.limit.exceeded(os.getpid()):
                return {"ended": "memory", "limit": self.limit.limit}
            if self.status is not None:
                return {"ended": "server", "status": self.status}
            if limit is not None and time.monotonic() - began >= limit:
                return {"ended": "time", "limit": limit}
            if 0 in ready:
                if not (asked := os.read(0, 4096)):
                    return {"ended": "actor"}
                self._asked += asked
                if b"stop\n" in self._asked:
                    return {"ended": "stopped"}

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                if found[0] == self.server:
                    self.status = os.waitstatus_to_exitcode(found[1])

    # Ending

    def _end(self, why: dict[str, Any]) -> None:
        if why["ended"] == "stopped":
            self._ask_server(stop_seconds(self.spec))
        left = self._sweep()
        # The memory's limit may be why the server itself was killed.
        if why["ended"] == "server" and self.limit is not None and self.limit.exceeded(os.getpid()):
            why = {"ended": "memory", "limit": self.limit.limit}
        if self.spec["environment"]["type"] == "docker" and self.status != 0:
            self._end_container()
        with contextlib.suppress(OSError):  # the actor is gone
            os.write(1, json.dumps({**why, "left": left}).encode() + b"\n")

    def _ask_server(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.server, signal.SIGTERM)
        while self.status is None and time.monotonic() < deadline:
            time.sleep(0.005)
            self._reap()

    def _sweep(self) -> int:
        """Kill all that there is; how much is left that cannot be."""
        deadline = time.monotonic() + _SWEEP_SECONDS
        while True:
            # First they are stopped, so that none begins another while the next is looked for.
            seen: set[int] = set()
            while fresh := [pid for pid in descendants(os.getpid()) if pid not in seen]:
                for pid in fresh:
                    _kill(pid, signal.SIGSTOP)
                seen.update(fresh)
            for pid in seen:
                _kill(pid, signal.SIGKILL)
            self._reap()
            if not seen or time.monotonic() > deadline:
                return len(seen)
            time.sleep(0.005)

    def _end_container(self) -> None:
        """The container of a server that could not end it itself, and that is known by its process number."""
        from swerex_c.deployment import _owners
        from swerex_c.deployment._engine import Engine

        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # its clients are waited for by themselves
        with contextlib.suppress(Exception):
            engine = Engine(self.spec["environment"]["container_runtime"])
            for one in engine.labelled(_owners.LABEL, _owners.FACTS):
                own = one.labels.get("swerex_c.pid") == str(self.server)
                if own and _owners.labelled(one.labels, one.name) and _owners.lives(one.labels) is False:
                    keep = _owners.KEEP in one.labels
                    if problem := (engine.kill if keep else engine.remove)(one.id):
                        print(f"The container {one.name} could not be ended: {problem}", file=sys.stderr)


def _kill(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
