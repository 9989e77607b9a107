"""Single commands in a place, as `LocalRuntime.execute` runs them on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import threading

from swerex_c.exceptions import CommandTimeoutError, InvalidInputError, ResourceError, RuntimeClosedError
from swerex_c.exec.client import READ_WORDS, packed
from swerex_c.exec.place import Answer, Place, Running
from swerex_c.exec.threads import in_thread
from swerex_c.runtime._answers import check_seconds
from swerex_c.runtime._execute import LONGEST_ARGUMENT, as_bytes, check_words, overdue, response
from swerex_c.runtime.abstract import Command, CommandResponse

__all__ = ["execute"]

_START = r"""
if [[ -w /dev/null ]]; then exec 8>&2 2>/dev/null; else exec 8>&2; fi
[[ ! $swx_posix ]] || export POSIXLY_CORRECT="${swx_posix#=}"
[[ ! $swx_nest ]] || export FUNCNEST="${swx_nest#=}"
[[ ! $swx_idle ]] || export TMOUT="${swx_idle#=}"
if (($2)); then
  exec -c "$BASH" --noprofile --norc -p -c "$1" swerex "$swx_branded" "$SWEREX_C_MARK"
else
  exec "$BASH" --noprofile --norc -p -c "$1"
fi
"""
"""`exec` can be told apart from what it executes in a shell that is no subshell only. And in a fresh one nothing of
the place's environment is left, not even what no shell could unset. What that says of a locale that the place does not
have is not the program's."""

_PROGRAM = (
    READ_WORDS
    + r"""
swx_posix=${POSIXLY_CORRECT+=$POSIXLY_CORRECT}
set +o posix
swx_nest=${FUNCNEST+=$FUNCNEST} swx_idle=${TMOUT+=$TMOUT}
unset -v FUNCNEST TMOUT
swx_fail() { swx_note "$1"; exit 126; }
swx_read || exit 125
exec 2>&8 8>&-
swx_branded=${1-0} swx_mark=${2-}
set -- "${swx_words[@]}"
unset -v swx_words
[[ ! -r /dev/null ]] || exec </dev/null
swx_directory=$1 swx_shell=$2 swx_count=$3 swx_hard=$4 swx_path=${5-}
shift 5
if [[ $swx_directory ]]; then
  swx_directory=${swx_directory#=}
  [[ $swx_directory ]] || swx_fail 1
  [[ $swx_directory == /* ]] || swx_directory=./$swx_directory
  if ! cd -P -- "$swx_directory" 2>&-; then
    [[ -d $swx_directory ]] && swx_fail 3
    [[ -e $swx_directory ]] && swx_fail 2
    swx_fail 1
  fi
fi
swx_pairs=()
if [[ $swx_count ]]; then
  swx_pairs=("${@:1:swx_count}")
  shift "$swx_count"
  ((swx_branded == 0)) || swx_pairs+=("SWEREX_C_MARK=$swx_mark") # or it could not be found any more
else
  swx_path=${PATH-}
fi
if ((swx_shell)); then
  swx_name=/bin/sh swx_file=/bin/sh
  [[ -x /bin/sh ]] || swx_file=$BASH
  if ((swx_shell > 1)); then
    exec 9< <(printf 'exec 9<&-;%s' "$1") || swx_fail 6
    shift
    swx_text='. /dev/fd/9'
    [[ -e /dev/fd/9 ]] || swx_text='. /proc/self/fd/9'
    set -- "$swx_text" "$@"
  fi
  set -- -c "$@"
else
  swx_name=$1 swx_file=
  shift
  if [[ $swx_name == */* ]]; then
    swx_file=$swx_name
  elif [[ $swx_name ]]; then
    while [[ $swx_path ]]; do
      swx_place=${swx_path%%:*}
      [[ $swx_path == *:* ]] && swx_path=${swx_path#*:} || swx_path=
      swx_place=${swx_place:-.}/$swx_name
      [[ -f $swx_place ]] || continue
      if [[ -x $swx_place ]]; then swx_file=$swx_place; break; fi
      swx_file=${swx_file:-$swx_place}
    done
  fi
  [[ $swx_file ]] || swx_fail 4
fi
swx_magic='#!'
if [[ -f $swx_file && -x $swx_file && -r $swx_file ]]; then
  LC_ALL=C IFS= read -r -N 4 swx_magic 2>&- <"$swx_file" || [[ $swx_magic ]] || swx_fail 9
  [[ $swx_magic == '#!'* || $swx_magic == $'\177ELF' || ! $swx_magic =~ ^[[:print:][:space:]]*$ ]] || swx_fail 9
fi
swx_why() {
  if [[ ! -e $swx_file && -e ${swx_file%/*} && ! -d ${swx_file%/*} ]]; then swx_fail 8; fi
  [[ -e $swx_file ]] || swx_fail 4
  [[ ! -d $swx_file && -x $swx_file ]] || swx_fail 5
  (($1 != 127)) || swx_fail 4
  [[ $swx_magic == '#!'* || $swx_magic == $'\177ELF' ]] || swx_fail 9
  swx_fail 6
}
swx_no_level() { # exec counts SHLVL down and exports it, but for an array, which nobody can export
  unset -v SHLVL
  declare -g -a SHLVL=(1)
}
shopt -s execfail
if [[ $swx_count ]]; then
  export -n PWD OLDPWD _
  swx_no_level
  if ((swx_hard)); then
    swx_env=
    for swx_place in /usr/bin/env /bin/env; do
      [[ -x $swx_place ]] && swx_env=$swx_place
    done
    if [[ $swx_env ]]; then
      [[ -e $swx_file && ! -d $swx_file && -x $swx_file ]] || swx_why 126
      if [[ $swx_file == *=* ]]; then
        set -- /bin/sh -c 'exec "$0" "$@"' "$swx_file" "$@"
      else
        set -- "$swx_file" "$@"
      fi
      exec -c "$swx_env" -i -- "${swx_pairs[@]}" "$@"
      swx_fail 6
    fi
  fi
  for swx_pair in "${swx_pairs[@]}"; do
    swx_key=${swx_pair%%=*}
    [[ $swx_key != SHLVL ]] || unset -v SHLVL
    if ! export "$swx_pair" 2>&- || [[ ${!swx_key} != "${swx_pair#*=}" ]]; then
      printf %s "$swx_key"
      swx_fail 7
    fi
  done
elif ((SHLVL == 2)); then # the place has none
  swx_no_level
fi
[[ ! $swx_posix ]] || export POSIXLY_CORRECT="${swx_posix#=}"
[[ ! $swx_idle ]] || export TMOUT="${swx_idle#=}"
[[ ! $swx_nest ]] || export FUNCNEST="${swx_nest#=}"
command exec -a "$swx_name" -- "$swx_file" "$@"
swx_code=$?
unset -v FUNCNEST
swx_why "$swx_code"
"""
)
"""Reads words from standard input: `=` and the directory, or nothing; 1 for a text for the shell, 2 for one that is too
long for an argument; how many variables there are, or nothing for the place's environment; 1 if bash cannot be trusted
with their names; the path to search in, if there are variables; the variables; the program and its arguments. Becomes
that program, or tells by a note why not."""

_DIRECTORY_MISSING, _NOT_A_DIRECTORY, _DIRECTORY_CLOSED = 1, 2, 3
_MISSING, _CLOSED, _REFUSED, _BAD_NAME, _NO_DIRECTORY_ABOVE, _NO_PROGRAM = 4, 5, 6, 7, 8, 9
_ERRORS = {
    _DIRECTORY_MISSING: errno.ENOENT,
    _NOT_A_DIRECTORY: errno.ENOTDIR,
    _DIRECTORY_CLOSED: errno.EACCES,
    _MISSING: errno.ENOENT,
    _CLOSED: errno.EACCES,
    _NO_DIRECTORY_ABOVE: errno.ENOTDIR,
    _NO_PROGRAM: errno.ENOEXEC,
}

_EASY_NAME = re.compile(
    r"(?!(?:BASH|COMP_|DIRSTACK$|EPOCH|EUID$|FUNC|GROUPS$|HIST|LINENO$|OPT|PIPESTATUS$|POSIX|PPID$|RANDOM$|READLINE"
    r"|SECONDS$|SHELLOPTS$|SHLVL$|SRANDOM$|UID$|_$))[A-Za-z_][A-Za-z0-9_]*"
)
"""Variables that bash passes on as they were assigned."""


async def execute(place: Place, command: Command, output_limit: int) -> CommandResponse:
    """Run a command in a place; see `LocalRuntime.execute`.

    The shell for `shell=True` is the place's /bin/sh, or bash under that name where there is none. Where bash cannot
    set a variable of `env`, the place's program env does. If the caller is cancelled, the command is ended with
    everything that it started before that is raised.

    Args:
        output_limit: bytes that are kept of each of its streams: half of them its beginning, half its end.

    Raises:
        PlaceLostError: if the place is gone.
        ConnectionLostError: if the connection to it was lost meanwhile. The command may still run.
        ResourceError: if the shell that ran it has ended without its exit code (the command may have killed it).
        and what `LocalRuntime.execute` raises.
    """
    job = _Job(place, command, output_limit)
    try:
        return await in_thread(job.run)
    except asyncio.CancelledError:
        with contextlib.suppress(asyncio.CancelledError):
            await in_thread(job.cancel)
        raise


class _Job:
    """One command, which may be cancelled from another thread."""

    def __init__(self, place: Place, command: Command, output_limit: int) -> None:
        check_seconds(command.timeout, "timeout")
        self._place = place
        self._command = command
        self._limit = output_limit
        self._argv = check_words(command)
        self._input = _words(command, self._argv)
        self._lock = threading.Lock()
        self._running: Running | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """End it. Returns when it is ended."""
        with self._lock:
            self._cancelled = True
            running = self._running
        if running is not None:
            running.kill()

    def run(self) -> CommandResponse:
        command = self._command
        clean = "0" if command.env is None else "1"
        running = self._place.start_reading(_START, _PROGRAM, clean, merge=command.merge_output_streams)
        try:
            with self._lock:
                self._running = running
                cancelled = self._cancelled
            if cancelled:
                msg = "The command was cancelled"
                raise RuntimeClosedError(msg)
            try:
                answer = running.collect(packed(running.nonce, 0, self._input), command.timeout, self._limit)
            except CommandTimeoutError as e:
                raise overdue(command, e.output) from None
        finally:
            running.close()
        if running.note is not None:
            raise self._refusal(running.note, answer)
        return response(command, answer.stdout, answer.stderr, answer.code)

    def _refusal(self, note: int, answer: Answer) -> Exception:
        """Why the program could not be executed."""
        command, words = self._command, " ".join(answer.stderr.decode(errors="replace").split())
        if note in (_DIRECTORY_MISSING, _NOT_A_DIRECTORY, _DIRECTORY_CLOSED):
            return OSError(_ERRORS[note], os.strerror(_ERRORS[note]), command.cwd)
        if note in _ERRORS:
            program = "/bin/sh" if command.shell else os.fsdecode(self._argv[0])
            return OSError(_ERRORS[note], os.strerror(_ERRORS[note]), program)
        where = self._place.backend.name
        if note == _BAD_NAME:
            name = answer.stdout.decode(errors="replace")
            return InvalidInputError(f"The variable {name!r} cannot be set in {where}, which has no program env")
        if sum(map(len, self._input)) > LONGEST_ARGUMENT:
            return InvalidInputError("The command and its environment are too long for this system (E2BIG)")
        return ResourceError(f"The command cannot be run in {where}: {words}")


def _words(command: Command, argv: list[bytes]) -> list[bytes]:
    """What `_PROGRAM` reads."""
    directory, pairs, path, hard = b"", [], b"", False
    if command.cwd is not None:
        directory = b"=" + as_bytes(command.cwd)
    if command.env is not None:
        for name, value in command.env.items():
            if not name or "=" in name:
                msg = f"The command cannot be run: {name!r} is no name of a variable"
                raise InvalidInputError(msg)
            pairs.append(as_bytes(name) + b"=" + as_bytes(value))
            hard = hard or _EASY_NAME.fullmatch(name) is None
        path = as_bytes(command.env.get("PATH", os.defpath))
    if any(b"\0" in word for word in (directory, *pairs)):
        msg = "A path cannot contain a NUL byte" if b"\0" in directory else "The command cannot be run: a NUL byte"
        raise InvalidInputError(msg)
    shell = 0 if not command.shell else 2 if len(argv[0]) > LONGEST_ARGUMENT else 1
    count = b"" if command.env is None else b"%d" % len(pairs)
    return [directory, b"%d" % shell, count, b"%d" % hard, path, *pairs, *argv]
