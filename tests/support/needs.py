"""What a machine must have for a place to exist on it, and helpers that every place here uses."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NoReturn, TypeVar

from tests.support.processes import alive, descendants
from tests.support.wait import until

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent.parent
SBIN = "/usr/local/sbin:/usr/sbin:/sbin"  # not in the PATH of every user, and engines look for their helpers there


class Lacking(Exception):
    """The place cannot exist here; the text names what the machine lacks."""


def search_path() -> str:
    return os.environ.get("PATH", os.defpath) + ":" + SBIN


def program(name: str, package: str) -> str:
    """Return the path of a program, or raise `Lacking` with the package that has it."""
    found = shutil.which(name, path=search_path())
    if found is None:
        raise Lacking(f"{name} (Debian's package {package})")
    return found


@contextlib.contextmanager
def else_skipped() -> Iterator[None]:
    """Skip the test where the machine lacks something for the block, and tell what."""
    try:
        yield
    except Lacking as lack:
        skip(lack)


@contextlib.contextmanager
def started(make: Callable[[], AbstractContextManager[T]]) -> Iterator[T]:
    """Enter the context that `make` makes, or skip the test."""
    with contextlib.ExitStack() as stack:
        with else_skipped():
            entered = stack.enter_context(make())
        yield entered


def skip(lack: Exception) -> NoReturn:
    """Skip the test for what the machine lacks; with SWX_MUST=1 that is an error."""
    import pytest  # not of those who only measure

    if os.environ.get("SWX_MUST") == "1":
        raise lack
    pytest.skip(f"this machine lacks {lack}")


def said_by(*words: str, environment: dict[str, str], input: bytes | None, check: bool, seconds: float) -> str:
    """Call an engine's client, and return its standard output without the last newline."""
    done = subprocess.run(words, input=input or b"", env=environment, capture_output=True, timeout=seconds, check=False)
    if check and done.returncode:
        said = (done.stdout + done.stderr).decode(errors="replace")[-4000:]
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {said}")
    return done.stdout.decode(errors="replace").rstrip("\n")


def root(what: str) -> None:
    if os.geteuid() != 0:
        raise Lacking(f"root, which {what} needs")


CAPABILITIES = {"CAP_SETUID": 7, "CAP_NET_ADMIN": 12, "CAP_SYS_CHROOT": 18, "CAP_SYS_ADMIN": 21, "CAP_MKNOD": 27}
"""Numbers of the bits in /proc/self/status."""


def capability(name: str, what: str) -> None:
    """Raise `Lacking` without a capability, which root in a container may lack."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:") and not int(line.split()[1], 16) >> CAPABILITIES[name] & 1:
            raise Lacking(f"{name}, which {what} needs")


_prctl = ctypes.CDLL(None).prctl
_PR_SET_PDEATHSIG = 1


def die_with_parent(by: signal.Signals = signal.SIGTERM) -> None:
    """End with the parent, however that ends; for `preexec_fn`."""
    _prctl(_PR_SET_PDEATHSIG, int(by))


def alone(*words: str) -> list[str]:
    """A command line with mounts and processes of its own: nobody else sees what it mounts, and nothing is left of
    either when it ends or is killed."""
    capability("CAP_SYS_ADMIN", "mounts that nobody else sees")
    return [program("unshare", "util-linux"), "--pid", "--kill-child", "--mount-proc", *words]


def mentioning(text: str) -> list[int]:
    """Return the other processes with the text in their command line, environment or directory."""
    found = []
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        if pid == os.getpid() or not alive(pid):
            continue
        with contextlib.suppress(OSError):
            where = os.readlink(f"/proc/{pid}/cwd")
            words = Path(f"/proc/{pid}/cmdline").read_bytes() + Path(f"/proc/{pid}/environ").read_bytes()
            if text.encode() in words or where.startswith(text):
                found.append(pid)
    return found


def kill_tree(pid: int) -> None:
    """Kill a process and then all below it, so that it tells nobody of their end."""
    for each in [pid, *descendants(pid)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)


def kill_all(text: str) -> None:
    """Kill the processes that mention it, and those below them, until none is left of what they start meanwhile."""

    def none_is_left() -> bool:
        found = mentioning(text)
        for pid in found:
            kill_tree(pid)
        return not found

    until(none_is_left)


def mounts_below(directory: Path) -> list[str]:
    """Return the mount points below the directory, the innermost first."""
    points = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return sorted((point for point in points if point.startswith(f"{directory}/")), reverse=True)


def remove(directory: Path) -> None:
    """Delete the directory; mounts below it are detached first, and never entered."""
    for point in mounts_below(directory):
        subprocess.run(["umount", "-l", point], check=False, stderr=subprocess.DEVNULL)
    if not mounts_below(directory):
        shutil.rmtree(directory, ignore_errors=True)


def tail(path: Path, lines: int = 15) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except OSError:
        return "(no log)"
