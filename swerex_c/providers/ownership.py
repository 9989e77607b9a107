"""Labels for the owner process of a sandbox, and the check that it is alive."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path

__all__ = ["HOST", "OWNER_LABELS", "KEEP", "LABEL", "PID", "has_own_labels", "labels", "is_owner_alive", "start_time"]

LABEL = "swerex_c"
"""The label of every container that this package starts; its value is the container's name.

An image committed from a container inherits its labels, and so does every container started from that image."""

KEEP = "swerex_c.keep"
"""The label of a container that is kept after it has ended."""

PID = "swerex_c.pid"
"""The label with the id of the owner process."""

HOST = "swerex_c.host"
"""The label with the id of the owner process's machine."""

_BOOT, _SPACE, _STARTED = (f"swerex_c.{name}" for name in ("boot", "pidns", "started"))

OWNER_LABELS = (LABEL, HOST, _BOOT, _SPACE, PID, _STARTED, KEEP)
"""The labels that identify the owner of a container and say whether the container is kept."""


def labels(name: str, *, keep: bool) -> dict[str, str]:
    """Return the labels of a container that this process starts.

    Args:
        name: a unique name.
        keep: True if the container is kept after it has ended.
    """
    facts = {
        LABEL: name,
        HOST: _host(),
        _BOOT: _boot(),
        _SPACE: _pid_namespace(),
        PID: str(os.getpid()),
        _STARTED: start_time(os.getpid()) or "",
    }
    return facts | ({KEEP: "1"} if keep else {})


def has_own_labels(facts: Mapping[str, str], name: str) -> bool:
    """Check whether a container's labels are its own, not inherited from its image."""
    return facts.get(LABEL) == name


def is_owner_alive(facts: Mapping[str, str]) -> bool | None:
    """Check whether the process that set the labels is running; None if unknown.

    It is unknown for a process on another machine that shares the engine, or in another pid namespace.
    """
    boot, space, pid = facts.get(_BOOT), facts.get(_SPACE), facts.get(PID, "")
    if not boot or not _boot() or not pid.isdecimal() or facts.get(HOST) != _host():
        return None
    if boot != _boot():
        return False
    if not space or space != _pid_namespace():
        return None
    began = start_time(int(pid))
    return None if began is None else began != "" and began == facts.get(_STARTED)


@functools.cache
def _host() -> str:
    """Return an identifier of this machine that is unique and stable.

    A copied disk has other network cards; a container that shares the engine's socket has another hostname. In a
    container without a card, both may be those of a container on another machine: it is unique until the next boot.
    """
    parts = [_text("/etc/machine-id"), socket.gethostname()]
    cards = sorted(Path("/sys/class/net").glob("*/device"))
    parts += [_text(str(card.parent / "address")) for card in cards] or [_boot()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@functools.cache
def _boot() -> str:
    return _text("/proc/sys/kernel/random/boot_id")


def _pid_namespace() -> str:
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def start_time(pid: int) -> str | None:
    """Return the start time of a process in clock ticks since boot.

    Return "" if the process is gone or a zombie, and None if it exists but its start time cannot be read.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        try:
            os.kill(pid, 0)
        except (ProcessLookupError, OverflowError):
            return ""
        except PermissionError:
            pass
        return None  # /proc hides other users' processes
    except OSError:
        return None
    return "" if fields[0] in "ZX" else fields[19]


def _text(path: str) -> str:
    with contextlib.suppress(OSError):
        return Path(path).read_text().strip()
    return ""
