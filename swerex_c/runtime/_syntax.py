"""Whether bash accepts a command, before anything of it runs.

Most commands are proved complete by the core's scanner and never come here; for the others `bash -n` reads them from
its standard input, so that no delimiter and no length is in the way.
"""

from __future__ import annotations

import os
import shutil
import subprocess

from swerex_c import _core
from swerex_c.exceptions import BashIncorrectSyntaxError, InvalidInputError, ResourceError
from swerex_c.runtime._answers import shown

__all__ = ["check_bash_command", "find_bash", "judge", "split_bash_command"]

_HERE_DOCUMENT_WARNING = b"delimited by end-of-file"

_bash_paths: dict[str | None, str] = {}


def find_bash() -> str:
    """The path of the bash that sessions run.

    Raises:
        ResourceError: if there is none in PATH.
    """
    path = os.environ.get("PATH")
    found = _bash_paths.get(path)
    if found is None or not os.path.exists(found):
        found = shutil.which("bash")
        if found is None:
            msg = "There is no bash on this machine (or not in PATH): install it, or put its directory into PATH"
            raise ResourceError(msg)
        _bash_paths[path] = found
    return found


def encode(command: str) -> bytes:
    """The bytes of a command: UTF-8, and surrogates from `surrogateescape` as the bytes they stand for.

    Raises:
        InvalidInputError: if the text holds a NUL or a surrogate that stands for no byte.
    """
    if "\0" in command:
        msg = "A command cannot contain a NUL byte, because no shell can be given one"
        raise InvalidInputError(msg)
    try:
        return command.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as e:
        msg = f"A command has to be text that UTF-8 can encode: {e}"
        raise InvalidInputError(msg) from None


def judge(command: str, returncode: int, stdout: bytes, stderr: bytes) -> bool:
    """What `bash -n` meant by its answer: True, complete; False, complete but for a here-document that the end of the
    text ends.

    Raises:
        BashIncorrectSyntaxError: if bash does not accept the command.
    """
    if returncode == 0:
        return _HERE_DOCUMENT_WARNING not in stderr
    out, err = (text.decode(errors="backslashreplace") for text in (stdout, stderr))
    msg = (
        f"Error (exit code {returncode}) while checking bash command \n{shown(command)}\n"
        f"---- Stderr ----\n{err}\n---- Stdout ----\n{out}"
    )
    raise BashIncorrectSyntaxError(msg, extra_info={"bash_stdout": out, "bash_stderr": err})


def check_bash_command(command: str) -> None:
    """Raise `BashIncorrectSyntaxError` unless bash accepts the command. Blocks while bash reads it."""
    text = encode(command)
    if _core.scan(text)[0] != "unsure":
        return
    result = subprocess.run([find_bash(), "-n"], input=text, capture_output=True, check=False)
    judge(command, result.returncode, result.stdout, result.stderr)


def split_bash_command(inpt: str) -> list[str]:
    r"""Split a text into the commands that bash would read from it one after the other.

    A newline ends a command unless it is escaped, quoted, or inside of a here-document or a compound command. Lines of
    blanks and comments make no command.

    Raises:
        BashIncorrectSyntaxError: if the text's end is not the end of a command.
    """
    commands: list[str] = []
    pending: list[str] = []
    for line in inpt.strip().splitlines():
        pending.append(line)
        text = "\n".join(pending)
        verdict, flags = _core.scan(encode(text))[:2]
        if flags & _core.SCAN_BACKSLASH_END:
            continue
        if verdict == "empty":
            pending = []
        elif verdict == "complete" or _accepted_whole(text):
            commands.append(text.strip())
            pending = []
    if pending:
        text = "\n".join(pending)
        check_bash_command(text)
        commands.append(text.strip())
    return commands


def _accepted_whole(text: str) -> bool:
    result = subprocess.run([find_bash(), "-n"], input=encode(text), capture_output=True, check=False)
    return result.returncode == 0 and not result.stderr
