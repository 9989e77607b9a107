"""The driver's side of a worker process."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
from typing import IO, Any

from .operations import Result

__all__ = ["NO_TIME", "Worker", "WorkerError"]

NO_TIME = "left out: there was no time for it"
HANGS = 5.0
"""Seconds without an answer after which a slow machine is no longer a plausible cause."""


class WorkerError(Exception):
    """An engine is not available, or no longer available; the text gives the reason."""


class Worker:
    """Process with an engine.

    It has its own process session, so that ^C on the terminal reaches only the driver.
    """

    def __init__(
        self,
        command: list[str],
        environment: dict[str, str],
        first: dict[str, Any],
        *,
        blocking: bool = True,
        grace: float = 10.0,
    ) -> None:
        """Start the process without waiting for its first response.

        Args:
            first: the request that names the engine.
            blocking: whether the process may not notice the end of its input while it is busy.
            grace: maximum seconds for the end of the process.

        Raises:
            WorkerError: if the program cannot be run.
        """
        self.blocking, self.grace = blocking, grace
        pipe = subprocess.PIPE
        try:
            self.process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, start_new_session=True)
        except OSError as error:
            raise WorkerError(f"{command[0]}: {error.strerror}") from None
        self.begin(**first)

    @staticmethod
    def _stream(stream: IO[bytes] | None) -> IO[bytes]:
        assert stream is not None
        return stream

    def begin(self, **request: object) -> None:
        """Send a request; `answer` waits for its response.

        Only one request may be sent at a time.
        """
        self.busy = True
        stdin = self._stream(self.process.stdin)
        with contextlib.suppress(BrokenPipeError):  # `answer` reports the end of the process
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()

    def answer(self, limit: float) -> Result:
        """Wait up to `limit` seconds for the next response, and return it.

        Raises:
            WorkerError: if there is no response within that time, or the process has ended.
        """
        stdout = self._stream(self.process.stdout)
        if not select.select([stdout], [], [], max(0.0, limit))[0]:
            raise WorkerError(NO_TIME if limit < HANGS else f"it gave no answer in {limit:.0f} s")
        line = stdout.readline()
        self.busy = False
        if not line:
            raise WorkerError(f"its process ended with {self.process.wait()}")
        answer: Result = json.loads(line)
        return answer

    def ask(self, limit: float, **request: object) -> Result:
        """Run an operation within `limit` seconds, and return its result.

        Returns:
            the result, with `error` if the operation failed.

        Raises:
            WorkerError: as `answer`.
        """
        self.begin(**request)
        return self.answer(limit)

    def begin_to_end(self) -> None:
        """Make the process end its shells and exit, without waiting for it."""
        if self.busy and self.blocking:
            # The process would notice the end of its input too late. Its shells end with their terminals.
            self.process.terminate()
        with contextlib.suppress(BrokenPipeError):
            self._stream(self.process.stdin).close()

    def end(self) -> None:
        """Wait up to `grace` seconds for the exit of the process, then kill it."""
        try:
            self.process.wait(timeout=self.grace)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._stream(self.process.stdout).close()
