"""Whose a container, pod or sandbox is, written on it as labels, and whether that process still lives."""

from __future__ import annotations

import functools
import hashlib
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["FACTS", "KEEP", "LABEL", "Left", "labelled", "labels", "lives", "told"]

LABEL = "swerex_c"
"""The label that every container of ours has; its value is the container's name.

An image that is made of a container has its labels, and so has whatever is started from that image."""

KEEP = "swerex_c.keep"
"""The label of a container that is to be kept when it has ended."""

_HOST, _BOOT, _SPACE, _PID, _STARTED = (f"swerex_c.{name}" for name in ("host", "boot", "pidns", "pid", "started"))

FACTS = (LABEL, _HOST, _BOOT, _SPACE, _PID, _STARTED, KEEP)
"""The labels that say whose a container is, and whether it is kept."""


@dataclass(frozen=True)
class Left:
    """A place that a dead process left."""

    id: str
    """What its engine or cloud knows it by."""

    name: str
    about: str
    """What it is, for people, such as its image."""

    owner: str
    """Who it was, as `told` says."""

    keep: bool = False
    """Whether it is only ended, because it was started with `remove_container=False`."""

    error: str | None = None
    """Why it could not be ended."""


def labels(name: str, *, keep: bool) -> dict[str, str]:
    """What a container of this process is labelled with, whose name is unique."""
    facts = {
        LABEL: name,
        _HOST: _host(),
        _BOOT: _boot(),
        _SPACE: _pid_namespace(),
        _PID: str(os.getpid()),
        _STARTED: _started(os.getpid()) or "",
    }
    return facts | ({KEEP: "1"} if keep else {})


def labelled(facts: Mapping[str, str], name: str) -> bool:
    """Whether a container got its labels itself, and not from the image that it was started from."""
    return facts.get(LABEL) == name


def lives(facts: Mapping[str, str]) -> bool | None:
    """Whether the process that labelled a container so still runs; None if that cannot be known from here.

    It cannot be known of another machine that shares the engine, nor of another pid namespace.
    """
    boot, space, pid = facts.get(_BOOT), facts.get(_SPACE), facts.get(_PID, "")
    if not boot or not _boot() or not pid.isdecimal() or facts.get(_HOST) != _host():
        return None
    if boot != _boot():
        return False
    if not space or space != _pid_namespace():
        return None
    try:
        os.kill(int(pid), 0)
    except PermissionError:
        pass  # another user's; its start may be hidden
    except (ProcessLookupError, OverflowError):
        return False
    began = _started(int(pid))
    if began is None:
        return None
    return began == facts.get(_STARTED)


def told(facts: Mapping[str, str]) -> str:
    """A word on who it was, for people."""
    return f"process {facts.get(_PID, '?')}"


@functools.cache
def _host() -> str:
    """A name for this machine that no other has, and that it keeps: a copied disk has another network card.

    A container that shares the engine's socket is another machine, as its host's name says.
    """
    parts = [_text("/etc/machine-id"), socket.gethostname()]
    for card in sorted(Path("/sys/class/net").glob("*/device")):
        parts.append(_text(str(card.parent / "address")))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


@functools.cache
def _boot() -> str:
    return _text("/proc/sys/kernel/random/boot_id")


def _pid_namespace() -> str:
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """When a process began, in clock ticks since the boot; "" if it has ended but was not waited for, or is gone.

    None if it is there and does not say.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return ""
        except PermissionError:
            pass
        return None  # /proc hides other users' processes
    except OSError:
        return None
    return "" if fields[0] in "ZX" else fields[19]


def _text(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""
