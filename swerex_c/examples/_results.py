"""Result file of a batch, recoverable after a crash.

The file is append-only, with one JSON object per line. A record is on disk before its task counts as finished. If the
process or the machine dies while it writes a record, the next run removes the incomplete record and does that task
again.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError, field_serializer

from swerex_c.exceptions import InvalidInputError

__all__ = ["Result", "ResultFile"]


class Result(BaseModel):
    """Result of a task."""

    id: str
    outcome: Literal["resolved", "failed", "limit", "error"]
    """Outcome of the check ("resolved" or "failed"); "limit" if the task reached a limit of time or memory, its own or
    that of its environment; "error" if it was not completed for another reason."""

    error: str = ""
    """Class name of the exception for the limit or the error."""

    message: str = ""
    attempts: int = 1
    """Number of attempts; more than 1 if the environment was lost, except by reaching a limit."""

    seconds: float = 0.0
    """Duration of the last attempt, from getting the environment to the end of the attempt."""

    commands: int = 0
    """Number of commands of all attempts."""

    patch: str = ""
    check_output: str = ""
    check_exit_code: int | None = None
    finished: str = ""
    """Time at which the task finished, in UTC."""

    @field_serializer("error", "message", "patch", "check_output")
    def _as_text(self, value: str) -> str:
        """Escape characters that UTF-8 cannot encode, such as surrogates for the bytes of a file name."""
        return value.encode("utf-8", "backslashreplace").decode()

    model_config = ConfigDict(extra="ignore")


class ResultFile:
    """Open result file, with the records of this run and of earlier runs.

    Only one process at a time can open it. Not thread-safe.
    """

    def __init__(self, path: Path):
        """Open or create the file, read its records, and remove an incomplete last record.

        Raises:
            InvalidInputError: if another process writes the file, or a complete line is not a record.
            OSError: if the file cannot be opened.
        """
        self.path = path
        self.results: dict[str, Result] = {}
        self._file = path.open("a+b", buffering=0)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._read()
        except BlockingIOError:
            self._file.close()
            raise InvalidInputError(f"Another process writes {path}") from None
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def _read(self) -> None:
        self._file.seek(0)
        *lines, incomplete = self._file.read().split(b"\n")
        for number, line in enumerate(lines, 1):
            if line.strip():
                try:
                    result = Result.model_validate_json(line)
                except ValidationError:
                    raise InvalidInputError(f"{self.path}, line {number}: this is no result of a task") from None
                self.results[result.id] = result
        if incomplete:
            self._file.truncate(self._file.tell() - len(incomplete))
            os.fsync(self._file.fileno())

    def add(self, result: Result) -> None:
        """Append a record and sync it to disk. Blocks.

        Raises:
            OSError: if the record cannot be written; the file is then truncated to its former end if possible.
        """
        rest = memoryview(result.model_dump_json().encode() + b"\n")
        before = os.fstat(self._file.fileno()).st_size
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(before)
            raise
        self.results[result.id] = result
