"""All that the start of a shell depends on, to compare it with a later start."""

from __future__ import annotations

import contextlib
import os
import pwd
import time
from typing import NamedTuple

from swerex_c.engine.syntax import find_bash
from swerex_c.exceptions import SwerexException

__all__ = ["RACY_SECONDS", "FileState", "StartConditions", "is_settled", "start_conditions"]

RACY_SECONDS = 0.1
"""Seconds during which a file may change again without a new modification time."""

_EXCLUDED = frozenset(
    (b"BASHOPTS", b"BASH_FUNC_builtin%%", b"POSIXLY_CORRECT", b"PROMPT_COMMAND", b"SECONDS", b"SHELLOPTS", b"TMOUT")
)
"""Variables with which a waiting shell would differ from a new one: it would run something at its first prompt, count
seconds from another start, end by itself, or misunderstand its commands."""

_Variables = list[tuple[bytes, bytes]]


class FileState(NamedTuple):
    """The state of a file, for comparison."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int


class StartConditions(NamedTuple):
    """Everything that a shell's start depends on, except for inherited attributes."""

    variables: _Variables
    directory: str
    logical: tuple[int, int] | None
    """Device and inode of $PWD, which the shell adopts if it is the current directory."""
    previous: bool
    """True if $OLDPWD is a directory."""
    host: str
    user: pwd.struct_passwd | None
    """Source of $HOME and $SHELL if they are not set."""
    bash: bytes
    program: FileState | None
    files: tuple[FileState | None, ...]
    """The startup files, if they are read ahead of time."""


def _file_state(path: str | bytes) -> FileState | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return FileState(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def _variables() -> _Variables:
    """Return the environment in its order, in one step that is atomic towards other threads."""
    encoded = getattr(os.environ, "_data", None)
    if isinstance(encoded, dict):
        return list(encoded.items())
    return [(os.fsencode(name), os.fsencode(value)) for name, value in dict(os.environ).items()]


def start_conditions(ahead: bool) -> StartConditions | None:
    """Return the current conditions, or None if a waiting shell cannot be used.

    Args:
        ahead: whether the shell reads its startup files ahead of time, so that their state counts.
    """
    variables = _variables()
    known = dict(variables)
    if not _EXCLUDED.isdisjoint(known):
        return None
    try:
        directory = os.getcwd()
        bash = os.fsencode(find_bash())
        user = None if b"HOME" in known and b"SHELL" in known else pwd.getpwuid(os.getuid())
    except (OSError, KeyError, SwerexException):
        return None
    logical = None
    if known.get(b"PWD", b"").startswith(b"/"):
        with contextlib.suppress(OSError):
            found = os.stat(known[b"PWD"])
            logical = (found.st_dev, found.st_ino)
    previous = b"OLDPWD" in known and os.path.isdir(known[b"OLDPWD"])
    files = (_file_state("/etc/bash.bashrc"), _file_state(_home(known, user) + b"/.bashrc")) if ahead else ()
    return StartConditions(
        variables, directory, logical, previous, os.uname().nodename, user, bash, _file_state(bash), files
    )


def _home(known: dict[bytes, bytes], user: pwd.struct_passwd | None) -> bytes:
    """Return the home directory that ~ stands for."""
    home = known.get(b"HOME")
    return os.fsencode(user.pw_dir) if home is None and user is not None else home or b""


def is_settled(stamp: FileState | None) -> bool:
    """Check whether every change of a file from now on changes its stamp."""
    return stamp is None or time.time_ns() - max(stamp.modified, stamp.changed) > RACY_SECONDS * 1e9
