"""The key that clients must show: where a server gets it from, and how it is kept out of sight."""

from __future__ import annotations

import os
import secrets
import stat
import warnings
from pathlib import Path

from swerex_c.exceptions import InvalidInputError

__all__ = ["VARIABLE", "checked", "from_file", "hide", "new", "take_from_environment"]

VARIABLE = "SWEREX_AUTH_TOKEN"
"""The environment variable that a server reads its key from."""


def new() -> str:
    """A key that nobody can guess. It does not begin as an option does, so that it can follow `--auth-token`."""
    while (key := secrets.token_urlsafe(24)).startswith("-"):
        pass
    return key


def checked(key: str, source: str) -> str:
    """The key itself, if it can be one.

    Raises:
        InvalidInputError: if it is empty, or could not be sent as the value of an HTTP header.
    """
    if not key:
        raise InvalidInputError(f"The key from {source} is empty: a server does not start without a key")
    if key != key.strip() or not (key.isascii() and key.isprintable()):
        msg = f"The key from {source} must be printable ASCII without a space at either end, to fit into an HTTP header"
        raise InvalidInputError(msg)
    return key


def from_file(path: str | Path) -> str:
    """The key that a file holds, without the newline at its end.

    Warns if others than its owner may read the file.

    Raises:
        InvalidInputError: if the file cannot be read or holds no key.
    """
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(65536)
    except OSError as error:
        raise InvalidInputError(f"The key cannot be read from {path}: {error.strerror}") from None
    if stat.S_ISREG(mode) and mode & (stat.S_IRWXG | stat.S_IRWXO):
        text = f"The key in {path} is open to others than its owner (mode {stat.S_IMODE(mode):04o}): chmod 600 {path}"
        warnings.warn(text, stacklevel=2)
    return checked(data.decode("utf-8", "replace").rstrip("\r\n"), str(path))


def take_from_environment() -> str | None:
    """The value of `SWEREX_AUTH_TOKEN`, which is removed so that no session inherits it; None if it is not set."""
    return os.environ.pop(VARIABLE, None)


def hide(key: str) -> bool:
    """Overwrite the key in the memory that the system shows as this process's arguments and environment.

    Until then, which is a few milliseconds after the start, everybody on the machine can see it in the arguments, and
    the user's own processes in the environment. What the shell that started the process keeps is not touched.

    Returns: whether it is out of sight; False where the system does not let a process write there.
    """
    # Only whole arguments and the one variable: what the process still uses is left as it is.
    arguments = (b"\0" + key.encode() + b"\0", b"=" + key.encode() + b"\0")
    variables = (VARIABLE.encode() + b"=" + key.encode() + b"\0",)
    try:
        # proc(5), /proc/PID/stat: arg_start, arg_end, env_start and env_end are the fields 48 to 51. The second field
        # is the program's name in parentheses and may hold anything, so that they are counted from its end.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        arg_start, arg_end, env_start, env_end = (int(text) for text in fields[45:49])
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            _overwrite(memory.fileno(), arg_start, arg_end, arguments, key)
            _overwrite(memory.fileno(), env_start, env_end, variables, key)
        shown = Path("/proc/self/cmdline").read_bytes() + b"\0" + Path("/proc/self/environ").read_bytes()
        return not any(pattern in shown for pattern in (*arguments, *variables))
    except (OSError, ValueError):
        return False


def _overwrite(memory: int, start: int, end: int, patterns: tuple[bytes, ...], key: str) -> None:
    data = os.pread(memory, end - start, start)
    for pattern in patterns:
        at = data.find(pattern)
        while at >= 0:
            os.pwrite(memory, b"*" * len(key), start + at + pattern.index(key.encode()))
            at = data.find(pattern, at + 1)
