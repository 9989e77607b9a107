"""The result file of a batch: one JSON object a line, only ever appended to, whole again after any kind of end.

A record is on the disk before its task counts as finished. The one that was being written when the process or the
machine died is cut off by the next run, which does that task again.
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
    """What came of a task."""

    id: str
    outcome: Literal["resolved", "failed", "limit", "error"]
    """Whether the check was passed; "limit" if the task ran into a limit of time or memory, its own or that of its
    environment; "error" if it was not carried out to its end for another reason."""

    error: str = ""
    """The kind of the limit or the error: the name of an exception's class."""

    message: str = ""
    attempts: int = 1
    """How often the task was begun; more than once if its environment was lost, but at no limit of its own."""

    seconds: float = 0.0
    """The last attempt, from the environment to the end of the check."""

    commands: int = 0
    """Commands of all attempts."""

    patch: str = ""
    check_output: str = ""
    check_exit_code: int | None = None
    finished: str = ""
    """When, in UTC."""

    @field_serializer("error", "message", "patch", "check_output")
    def _as_text(self, value: str) -> str:
        """What no UTF-8 can have, as surrogates for the bytes of a file's name, is written out."""
        return value.encode("utf-8", "backslashreplace").decode()

    model_config = ConfigDict(extra="ignore")


class ResultFile:
    """The records of this and of earlier runs. One process at a time; not thread-safe."""

    def __init__(self, path: Path):
        """Open or create it, read what is there, and cut off what was not written to its end.

        Raises:
            InvalidInputError: if another process writes it, or a line before the last is no record.
            OSError: if it cannot be opened.
        """
        self.path = path
        self.results: dict[str, Result] = {}
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            self._lock()
            self._read()
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidInputError(f"Another process writes {self.path}") from None

    def _read(self) -> None:
        whole = self.path.read_bytes()
        end = whole.rfind(b"\n") + 1
        for number, line in enumerate(whole[:end].splitlines(), 1):
            if not line.strip():
                continue
            try:
                result = Result.model_validate_json(line)
            except ValidationError:
                raise InvalidInputError(f"{self.path}, line {number}: this is no result of a task") from None
            self.results[result.id] = result
        if end < len(whole):
            os.ftruncate(self._fd, end)
            os.fsync(self._fd)

    def add(self, result: Result) -> None:
        """Append a record. It is on the disk when this returns. Blocks.

        Raises:
            OSError: if it cannot be; the file then ends where it ended before, if that can be had.
        """
        data = result.model_dump_json().encode() + b"\n"
        before = os.fstat(self._fd).st_size
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._fd, rest) :]
            os.fsync(self._fd)
        except OSError:
            os.ftruncate(self._fd, before)
            raise
        self.results[result.id] = result

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
