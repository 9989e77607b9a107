"""Check whether bash accepts a command before any of it runs.

The core's scanner proves most commands complete. The others are given to `bash -n` on its standard input, which limits
neither their length nor the delimiters in them.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from swerex_c import _core
from swerex_c.engine.outcomes import shorten
from swerex_c.exceptions import BashIncorrectSyntaxError, InvalidInputError, ResourceError

__all__ = [
    "check_bash_command",
    "check_result",
    "encode",
    "english_environment",
    "find_bash",
    "own_environment",
    "split_bash_command",
]

_REFUSAL = re.compile(rb"^[^:\n]*: line \d+: (?!warning: )", re.MULTILINE)
"""Pattern of bash's messages about what it does not accept."""

_HERE_DOCUMENT_WARNING = b"delimited by end-of-file"
"""Part of bash's message about a here-document that the end of the text terminates."""

_bash_paths: dict[str | None, str] = {}


def find_bash() -> str:
    """Return the path of the bash that sessions run.

    Raises:
        ResourceError: if PATH has no bash.
    """
    path = os.environ.get("PATH")
    found = _bash_paths.get(path)
    if found is None or not os.path.exists(found):
        found = shutil.which("bash")
        if found is None:
            raise ResourceError("bash is not in PATH: install it, or add its directory to PATH")
        _bash_paths[path] = found
    return found


def encode(command: str) -> bytes:
    """Encode a command as UTF-8.

    Surrogates of `surrogateescape` become the bytes that they stand for.

    Raises:
        InvalidInputError: if the text contains a NUL or a surrogate that stands for no byte.
    """
    if "\0" in command:
        raise InvalidInputError("A command cannot contain a NUL byte")
    try:
        return command.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as e:
        raise InvalidInputError(f"The command cannot be encoded as UTF-8: {e}") from None


def own_environment() -> dict[bytes, bytes]:
    """Return this process's environment, copied in one step, since another thread may change it."""
    encoded = getattr(os.environ, "_data", None)
    return dict(encoded) if isinstance(encoded, dict) else dict(os.environb)


def english_environment() -> dict[bytes, bytes]:
    """Return this process's environment, but with English messages."""
    return {**own_environment(), b"LANGUAGE": b"C"}


def _parse(text: bytes, *options: str) -> subprocess.CompletedProcess[bytes]:
    """Run `bash -n` on a text, with additional options. Blocks."""
    argv, env = ["bash", *options, "-n"], english_environment()  # its messages begin with argv[0], as in SWE-ReX
    return subprocess.run(argv, executable=find_bash(), input=text, capture_output=True, check=False, env=env)


def check_result(command: str, returncode: int | None, stdout: bytes, stderr: bytes) -> bool:
    """Return whether `bash -n` found the command complete.

    False means that bash accepts the command, but the end of the text terminates a here-document.

    Raises:
        BashIncorrectSyntaxError: if bash does not accept the command.
    """
    # Messages count, too: if another part of the process has collected the exit code, `subprocess` returns 0 and the
    # core returns None.
    if not returncode and not _REFUSAL.search(stderr):
        return _HERE_DOCUMENT_WARNING not in stderr
    out, err = (text.decode(errors="backslashreplace") for text in (stdout, stderr))
    known = f" (exit code {returncode})" if returncode else ""
    msg = (
        f"Error{known} while checking bash command \n{shorten(command)}\n"
        f"---- Stderr ----\n{err}\n---- Stdout ----\n{out}"
    )
    raise BashIncorrectSyntaxError(msg, extra_info={"bash_stdout": out, "bash_stderr": err})


def check_bash_command(command: str, *options: str) -> None:
    """Raise `BashIncorrectSyntaxError` unless bash, with additional options, accepts the command.

    Blocks while bash parses the command.
    """
    text = encode(command)
    if _core.scan(text)[0] != "unsure":
        return
    result = _parse(text, *options)
    check_result(command, result.returncode, result.stdout, result.stderr)


def split_bash_command(inpt: str) -> list[str]:
    r"""Split a text into the commands that bash would read from it one after the other.

    A newline ends a command unless it is escaped, quoted, or inside a here-document or a compound command. Blank lines
    and comment lines are not commands.

    Raises:
        BashIncorrectSyntaxError: if the text ends within a command.
    """
    commands: list[str] = []
    pending: list[str] = []
    for line in inpt.strip().split("\n"):
        pending.append(line)
        text = "\n".join(pending)
        verdict, flags = _core.scan(encode(text))
        if flags & _core.SCAN_BACKSLASH_END:
            continue
        if verdict == "empty":
            pending = []
        elif verdict == "complete" or _is_complete(text):
            commands.append(text.strip())
            pending = []
    if pending:
        text = "\n".join(pending)
        check_bash_command(text)
        commands.append(text.strip())
    return commands


def _is_complete(text: str) -> bool:
    result = _parse(encode(text))
    return result.returncode == 0 and not result.stderr
