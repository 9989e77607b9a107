"""Isolated views of this machine, made by bubblewrap."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from swerex_c.exceptions import InvalidInputError, PlaceLostError
from swerex_c.exec.backend import Backend

__all__ = ["HIDDEN", "BwrapBackend"]

HIDDEN = (
    "/run/containerd",
    "/run/crio",
    "/run/dbus",
    "/run/docker.sock",
    "/run/podman",
    "/run/systemd/private",
    "/run/user",
)
"""Sockets, or directories of such, through which programs outside the view can be started."""

# What root has in a container, without the right to make devices: to change owners, to become another user, to look
# into what belongs to others. Nothing with which the view itself could be changed.
_ROOT_CAPABILITIES = sum(1 << bit for bit in (0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 31))
_CAP_SYS_ADMIN = 21

_HOLD = "chmod 1777 /tmp /var/tmp; echo ready; read -r line"
"""The program that the view is made for. It ends when nobody holds its standard input any more."""

_MOUNT_GONE = ("apply mount flags", "No such file or directory")
"""What bwrap says if a mount of the machine, such as a container's, goes while it makes its own of them."""

_TRIES, _AGAIN_SECONDS = 10, 0.1
"""How often a view is tried to be made where that happens, and after what pause."""

_WORDS = 500
"""How many characters of what bubblewrap said a message holds."""

_END_SECONDS = 5.0


class BwrapBackend(Backend):
    """A view of this machine's files with private /tmp and /var/tmp, and with processes of its own.

    It is made by `open` and ends with `close`, and with this process. All clients are in the same view: they see the
    same files and each other's processes. It keeps mistakes in; programs that look for a way out may find one, through
    sockets above all, if the network is shared or a file of theirs is not hidden.
    """

    def __init__(
        self,
        *,
        writable: Sequence[str | os.PathLike[str]] = (),
        network: bool = True,
        root: Literal["read-only", "overlay"] = "read-only",
        hidden: Sequence[str | os.PathLike[str]] = HIDDEN,
        directory: str | os.PathLike[str] | None = None,
        command: str = "bwrap",
    ) -> None:
        """
        Args:
            writable: directories and files of this machine that can be changed, as absolute paths.
            network: whether the machine's network is there; without it there is only a loopback device.
            root: what becomes of writing to other files: it is refused, or it goes into a layer in memory that ends
                with the view. One who is not root can change there only what is their own in directories of their own.
            hidden: directories that are empty and files that cannot be read; those that do not exist do no harm.
            directory: where programs start; None is this process's current directory when the view is made, or / where
                that is not to be seen.
            command: the program bubblewrap.

        Raises:
            InvalidInputError: if a path is not absolute.
        """
        self.name = "isolated view of this machine"
        self._writable = [_absolute(path) for path in writable]
        self._hidden = [_absolute(path) for path in hidden]
        self._directory = None if directory is None else _absolute(directory)
        self._network, self._root, self._command = network, root, command
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._place: str | None = None
        self._enter: list[str] | None = None
        self._init = 0
        self._owner = os.getpid()

    def environment(self) -> dict[str, str]:
        environment = dict(os.environ)
        # A directory in the machine's /tmp is not there.
        environment.pop("TMPDIR", None)
        return environment

    def terminal(self, argv: Sequence[str], names: Sequence[str]) -> list[str]:
        return self.pipes(argv, names)

    def pipes(self, argv: Sequence[str], names: Sequence[str]) -> list[str]:
        enter = self._enter
        if enter is None:
            raise PlaceLostError(f"The {self.name} is not there: it was not opened, or is closed")
        return [*enter, *argv]

    def why_lost(self, timeout: float) -> str | None:
        process = self._process
        if process is None:
            return f"The {self.name} is not there: it was not opened, or is closed"
        with self._lock:
            code = process.poll()
        return None if code is None else f"The {self.name} has ended: bwrap's exit code is {code}"

    def open(self, timeout: float) -> None:
        with self._lock:
            if self._process is not None:
                return
            limit = time.monotonic() + timeout
            for tries_left in reversed(range(_TRIES)):
                try:
                    self._make(limit)
                    return
                except BaseException as error:
                    self._unmake()
                    if isinstance(error, OSError):
                        raise PlaceLostError(f"The {self.name} cannot be made: {error}") from error
                    gone = isinstance(error, PlaceLostError) and all(it in str(error) for it in _MOUNT_GONE)
                    if not gone or not tries_left or time.monotonic() + _AGAIN_SECONDS > limit:
                        raise
                time.sleep(_AGAIN_SECONDS)

    def close(self) -> None:
        with self._lock:
            if self._owner == os.getpid():
                self._unmake()

    def _make(self, limit: float) -> None:
        python, command = _python(), shutil.which(self._command)
        if command is None:
            raise PlaceLostError(
                f"There is no command {self._command!r}, which makes the {self.name} (Debian's package bubblewrap)"
            )
        for path in self._writable:
            if not os.path.exists(path):
                raise PlaceLostError(f"{path!r}, which shall be writable in the {self.name}, does not exist")
        read, write = os.pipe()
        try:
            with tempfile.TemporaryFile() as said:
                process = self._process = subprocess.Popen(
                    self._line(python, command, write),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=said,
                    pass_fds=(write,),
                    cwd="/",
                    start_new_session=True,
                )
                os.close(write)
                write = -1
                ready = self._ready(process, limit)
                if not ready:
                    late = process.poll() is None and time.monotonic() >= limit
                    said.seek(0)
                    words = " ".join(said.read(100_000).decode(errors="replace").split())[-_WORDS:]
                    why = "it took too long" if late else words or "bwrap ended without a word"
                    raise PlaceLostError(f"The {self.name} cannot be made: {why}")
            told = json.loads(os.read(read, 65536))
        finally:
            os.close(read)
            if write >= 0:
                os.close(write)
        pid = self._init = int(told["child-pid"])
        numbers = [str(os.stat(f"/proc/{pid}/ns/{name}").st_ino) for name in ("mnt", "pid")]
        directory = self._directory or os.getcwd()
        kept = _ROOT_CAPABILITIES if os.geteuid() == 0 else 0
        script = str(Path(__file__).with_name("_enter.py"))
        self._enter = [python, "-I", "-S", script, str(pid), *numbers, f"{kept:x}", directory]

    def _ready(self, process: subprocess.Popen[bytes], limit: float) -> bool:
        """Whether the view is there, as soon as that is known."""
        assert process.stdout is not None
        with process.stdout:
            if not select.select([process.stdout], [], [], max(0.0, limit - time.monotonic()))[0]:
                return False
            return os.read(process.stdout.fileno(), 100) == b"ready\n"

    def _line(self, python: str, command: str, info: int) -> list[str]:
        """The command line that makes the view."""
        user = os.geteuid() != 0
        line = [command, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--info-fd", str(info)]
        line += [] if self._network else ["--unshare-net"]
        before: list[str] = []
        if self._root == "overlay":
            self._place = tempfile.mkdtemp(prefix="swx-view-")
            script = str(Path(__file__).with_name("_overlay.py"))
            skipped = ":".join(["/proc", "/dev", "/tmp", "/var/tmp"])
            before = [python, "-I", "-S", script, self._place, skipped]
            line += ["--bind", f"{self._place}/root", "/", "--ro-bind", "/sys", "/sys"]
            line += ["--unshare-user", "--uid", str(os.geteuid()), "--gid", str(os.getegid())] if user else []
        else:
            line += ["--ro-bind", "/", "/"]
            # Root without the right to mount may still have it in a user namespace.
            line += ["--unshare-user"] if not user and not _may_mount() else []
        line += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
        if not user:  # who could change the kernel's settings for the whole machine
            line += [
                "--ro-bind",
                "/proc/sys",
                "/proc/sys",
                "--ro-bind-try",
                "/proc/sysrq-trigger",
                "/proc/sysrq-trigger",
            ]
        line += ["--tmpfs", "/var/tmp"] if os.path.isdir("/var/tmp") else []
        for path in self._hidden:
            real = os.path.realpath(path)
            if os.path.isdir(real):
                line += ["--tmpfs", real]
            elif os.path.exists(real):
                line += ["--ro-bind", "/dev/null", real]
        for path in self._writable:
            line += ["--bind", path, path]
        # What is left in the view ends with bwrap, which goes by the thread that started it: that of a shell lives on.
        return ["sh", "-c", '"$@"; exit "$?"', "sh", *before, *line, "--die-with-parent", "--", "/bin/sh", "-c", _HOLD]

    def _unmake(self) -> None:
        process, self._process = self._process, None
        place, self._place = self._place, None
        self._enter = None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            limit = time.monotonic() + _END_SECONDS
            while self._init and _lives(self._init) and time.monotonic() < limit:
                time.sleep(0.001)  # the kernel ends what was left in it
            self._init = 0
        if place is not None:
            with contextlib.suppress(OSError):
                os.rmdir(place)


def _absolute(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    if not os.path.isabs(text) or "\0" in text:
        raise InvalidInputError(f"{text!r} is not an absolute path")
    return os.path.normpath(text)


def _python() -> str:
    found = sys.executable or shutil.which("python3")
    if not found:
        raise PlaceLostError("There is no Python to enter an isolated view with: sys.executable is empty")
    return found


def _lives(pid: int) -> bool:
    """Whether a process is there, and not only its exit code. The first of a view ends after all others."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b") ")[2][:1] not in b"ZX"
    except OSError:
        return False


def _may_mount() -> bool:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
    return True
