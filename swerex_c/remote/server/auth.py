"""The key that clients must send: its creation, validation, reading and hiding."""

from __future__ import annotations

import ctypes
import os
import re
import secrets
import stat
import warnings
from pathlib import Path

from swerex_c.exceptions import InvalidInputError

__all__ = ["VARIABLE", "checked", "from_file", "hide", "new", "protect"]

VARIABLE = "SWEREX_AUTH_TOKEN"
"""Name of the environment variable from which a server reads its key."""

_PR_SET_DUMPABLE = 4
"""Operation of prctl(2)."""


def new() -> str:
    """Generate a random key, of hexadecimal digits: one with a `-` first could not follow the option `--auth-token`."""
    return secrets.token_hex(24)


def checked(key: str, source: str) -> str:
    """Return the key unchanged if it is valid.

    Args:
        source: the origin of the key, for the error text.

    Raises:
        InvalidInputError: if it is empty, or cannot be the value of an HTTP header.
    """
    if not key:
        raise InvalidInputError(f"The key from {source} is empty: a server does not start without a key")
    if key != key.strip() or not (key.isascii() and key.isprintable()):
        msg = f"The key from {source} must be printable ASCII without a space at either end, to fit into an HTTP header"
        raise InvalidInputError(msg)
    return key


def from_file(path: str | Path) -> str:
    """Return the key in a file, without the newline at its end; warn if the file's mode gives other users access.

    Raises:
        InvalidInputError: if the file cannot be read or holds no valid key.
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


def hide(key: str) -> bool:
    """Overwrite the key in this process's arguments and environment, which the system shows to other processes.

    Before this call, for a few milliseconds after the start, every user of the machine can see the key in the
    arguments, and processes of this user can see it in the environment.

    Returns: whether the key is hidden; False if the system does not let the process write to that memory, or does not
        tell where it is, as under an emulator.
    """
    secret = re.escape(key.encode())
    # Match only whole arguments, and the one variable: the process still uses the rest of that memory.
    argument = rb"[\0=](%b)(?=\0)" % secret
    variable = rb"(?:\A|\0)%b=(%b)(?=\0)" % (VARIABLE.encode(), secret)
    try:
        # proc(5), /proc/PID/stat: arg_start, arg_end, env_start and env_end are the fields 48 to 51. The second field
        # is the program's name in parentheses and may hold any text, so fields are counted after its end.
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        arg_start, arg_end, env_start, env_end = map(int, fields[45:49])
        with open("/proc/self/mem", "r+b", buffering=0) as memory:
            for start, end, pattern in ((arg_start, arg_end, argument), (env_start, env_end, variable)):
                for found in re.finditer(pattern, os.pread(memory.fileno(), end - start, start)):
                    os.pwrite(memory.fileno(), b"*" * len(key), start + found.start(1))
    except (OSError, ValueError):
        return False
    return True


def protect() -> None:
    """Make this process's memory and environment readable by root alone, without effect on programs that it runs.

    From then on the process leaves no core dump, and its own user cannot debug it.
    """
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
