"""Single commands in a sandbox, run as `LocalRuntime.execute` runs local ones."""

from __future__ import annotations

import os
import re

from swerex_c.engine.execute import LONGEST_ARGUMENT, as_bytes, check_words, encode_variables, overdue, response
from swerex_c.engine.outcomes import validate_seconds
from swerex_c.exceptions import CommandTimeoutError, InvalidInputError, ResourceError
from swerex_c.models import Command, CommandResponse
from swerex_c.sandbox.clients import CompletedCommand
from swerex_c.sandbox.loader import MERGED, REUSABLE, encode_request
from swerex_c.sandbox.sandbox import Sandbox
from swerex_c.utils.shell_script import read_script

__all__ = ["execute"]

_START = read_script("sandbox/scripts/start_program.bash")
_PROGRAM = read_script("sandbox/scripts/program.bash")

_OF_DIRECTORY, _BAD_NAME = 100, 200
"""Notes of program.bash: an error's number, plus the first of these if it is that of the directory; or the second."""

_EASY_NAME = re.compile(
    r"(?!(?:BASH|COMP_|DIRSTACK$|EPOCH|EUID$|FUNC|GROUPS$|HIST|LINENO$|OPT|PIPESTATUS$|POSIX|PPID$|RANDOM$|READLINE"
    r"|SECONDS$|SHELLOPTS$|SHLVL$|SRANDOM$|UID$|_$))[A-Za-z_][A-Za-z0-9_]*"
)
"""Names of variables that bash passes on as they were assigned."""


async def execute(sandbox: Sandbox, command: Command, output_limit: int) -> CommandResponse:
    """Run a command in a sandbox; see `LocalRuntime.execute`.

    For `shell=True`, the shell is the sandbox's /bin/sh, or bash under that name if there is none. A variable of `env`
    that bash cannot set is set by the sandbox's program env. If the caller is cancelled, the command and everything
    that it started are ended before the cancellation is raised.

    Raises:
        what `LocalRuntime.execute` and `RunningScript.wait` raise.
    """
    validate_seconds(command.timeout, "timeout")
    argv = check_words(command)
    words = _words(command, argv)
    kind = REUSABLE | (MERGED if command.merge_output_streams else 0)
    bare = "0" if command.env is None else "1"
    async with await sandbox.start(_START, _PROGRAM, bare, kind=kind, limit=output_limit) as running:
        try:
            request = encode_request(running.nonce, 0, words)
            answer = await running.collect(request, command.timeout)
        except CommandTimeoutError as e:
            raise overdue(command, e.output) from None
    if running.note is not None:
        raise _refusal(running.note, command, os.fsdecode(argv[0]), words, answer, sandbox.backend.name)
    return response(command, answer.stdout, answer.stderr, answer.code)


def _refusal(
    note: int, command: Command, program: str, words: list[bytes], answer: CompletedCommand, sandbox: str
) -> Exception:
    """Return the error for a program that could not be executed."""
    if note < _BAD_NAME:
        of_directory, number = divmod(note, _OF_DIRECTORY)
        name = command.cwd if of_directory else "/bin/sh" if command.shell else program
        return OSError(number, os.strerror(number), name)
    if note == _BAD_NAME:
        name = answer.stdout.decode(errors="replace")
        return InvalidInputError(f"The variable {name!r} cannot be set in {sandbox}, which has no program env")
    if sum(map(len, words)) > LONGEST_ARGUMENT:
        return InvalidInputError("The command and its environment are too long for this system (E2BIG)")
    said = " ".join(answer.stderr.decode(errors="replace").split())
    return ResourceError(f"The command cannot be run in {sandbox}: {said}")


def _words(command: Command, argv: list[bytes]) -> list[bytes]:
    """Return the words that `_PROGRAM` reads."""
    directory, path, hard = b"", b"", False
    pairs: list[bytes] = []
    if command.cwd is not None:
        directory = b"=" + as_bytes(command.cwd)
    if command.env is not None:
        pairs = encode_variables(command.env)
        hard = any(_EASY_NAME.fullmatch(name) is None for name in command.env)
        path = as_bytes(command.env.get("PATH", os.defpath))
    if b"\0" in directory:
        raise InvalidInputError("A path cannot contain a NUL byte")
    shell = 0 if not command.shell else 2 if len(argv[0]) > LONGEST_ARGUMENT else 1
    count = b"" if command.env is None else b"%d" % len(pairs)
    return [directory, b"%d" % shell, count, b"%d" % hard, path, *pairs, *argv]
