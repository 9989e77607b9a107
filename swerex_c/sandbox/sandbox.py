"""Run scripts in a sandbox, each in a fresh bash over pipes.

    sandbox = Sandbox(backend)
    sandbox.open(60)
    result = sandbox.run('printf %s "$1" | tr a-z A-Z', "words of any bytes", timeout=10)
    sandbox.close()

All methods block, and may be called from any thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from swerex_c.exceptions import (
    CommandTimeoutError,
    ConnectionLostError,
    ResourceError,
    RuntimeClosedError,
    SwerexException,
)
from swerex_c.models import OUTPUT_LIMIT
from swerex_c.sandbox import processes
from swerex_c.sandbox.backend import Backend
from swerex_c.sandbox.loader import NO_INPUT, REUSABLE, DeadlineExceeded, LoaderClient
from swerex_c.sandbox.loader_pool import START_SECONDS, LoaderPool, lost
from swerex_c.utils.finalizers import call_from_finalizer
from swerex_c.utils.threads import in_thread, start_thread

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

__all__ = ["ScriptResult", "Sandbox", "RunningScript", "in_killable_thread"]

T = TypeVar("T")

KILL_SECONDS = 2.0 + processes.END_SECONDS
"""Maximum seconds to end everything that a script has started."""

_NOTICE_SECONDS = (0, 0.5, 1)
"""Pauses in seconds before each check whether the sandbox has ended: an engine may notice only when all streams end."""


@dataclass
class ScriptResult:
    """Exit status and output of one script."""

    code: int
    """Exit status, or minus the number of the signal that ended the script."""

    stdout: bytes
    stderr: bytes

    dropped: int
    """Bytes removed from the middle of the two streams, because they exceeded the limit."""


class Sandbox:
    """Sandbox in use, reached through a backend.

    `mark` is the prefix of the marks of everything started in it.
    """

    def __init__(self, backend: Backend, *, logger: logging.Logger | None = None) -> None:
        self.backend = backend
        self.mark = processes.new_mark()
        self.programs: Mapping[str, tuple[str, ...]] | None = None
        """Command lines of the programs for `swerex_c.sandbox.file_ops`, which sets this when it needs them first."""
        self._shells = LoaderPool(backend, self.mark, logger)
        self._running: weakref.WeakSet[RunningScript] = weakref.WeakSet()
        self._lock = threading.Lock()
        self._closed = False
        weakref.finalize(self, call_from_finalizer, self._shells.close).atexit = False

    def open(self, timeout: float, *, shells: bool = True) -> None:
        """Open the backend, and start the first shell.

        Args:
            shells: False if shells are known to work: the first starts when needed, or after a short idle time.

        Raises:
            SandboxLostError: if the sandbox does not exist or cannot be reached.
            NotSupportedError: if the sandbox has no bash.
            ResourceError: if no shell can be started there for another reason.
            TimeoutError: if that takes longer than `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        self.backend.open(timeout)
        if not shells:
            self._shells.start_later()
            return
        self._shells.put_back(self._shells.take(max(0.0, deadline - time.monotonic()), lend=True))

    def start(self, script: str, *words: str, kind: int = 0) -> RunningScript:
        """Start a script in a bash of its own.

        It has the sandbox's own environment and directory.

        Args:
            script: bash. It runs in a subshell: `$$` is the shell above it, which reports its end.
            words: the script's arguments `$1`, `$2`, ...; of any length, without NUL bytes.
            kind: flags of `swerex_c.sandbox.loader`. A `REUSABLE` script starts faster. It must read exactly the bytes
                that are written to it, and must not pass its standard input to a process that outlives it.

        Raises:
            SandboxLostError, NotSupportedError, ResourceError, RuntimeClosedError: if the script was not started.
        """
        with self._lock:
            if self._closed:
                msg = "The runtime was closed: make another one"
                raise RuntimeClosedError(msg)
        try:
            running = self._begin(script, words, kind, time.monotonic() + START_SECONDS)
        except TimeoutError as e:
            raise lost(self.backend) or ResourceError(str(e)) from None
        with self._lock:
            self._running.add(running)
        return running

    def _begin(self, script: str, words: Sequence[str], kind: int, deadline: float) -> RunningScript:
        """Start a script in a shell. The caller must give it to `_release`.

        Raises:
            TimeoutError: if the script was not started before `deadline`.
            and what `start` raises.
        """
        mark = processes.new_mark(self.mark)
        encoded = [os.fsencode(word) for word in words]
        while True:
            client = self._shells.take(deadline - time.monotonic(), lend=bool(kind & REUSABLE))
            nonce = None
            try:
                possible = kind if client.keeps else kind & ~REUSABLE
                nonce = client.send(script, encoded, possible, mark, deadline)
            except DeadlineExceeded:
                msg = f"A shell in {self.backend.name} has not accepted its script in time"
                raise TimeoutError(msg) from None
            finally:
                if nonce is None:
                    self._shells.retire(client)
            if nonce is not None:
                return RunningScript(self, client, nonce, mark, kept=bool(possible & REUSABLE))

    def _release(self, running: RunningScript) -> None:
        """Release the client of a script that has ended or is given up."""
        with self._lock:
            self._running.discard(running)
        client, ended = running.client, running.done and running.code is not None and not running.killed
        if running.kept and ended and client.recycle(running.nonce):
            self._shells.put_back(client)
        else:
            self._shells.retire(client)

    def run(
        self,
        script: str,
        *words: str,
        input: bytes = b"",
        timeout: float | None = None,
        limit: int = OUTPUT_LIMIT,
    ) -> ScriptResult:
        """Run a script to its end.

        Args:
            input: its standard input.
            timeout: seconds after which the script and everything it started are ended; None means no limit.
            limit: bytes kept of each stream: half from its beginning, half from its end.

        Raises:
            CommandTimeoutError: if the script took too long; `output` has its output so far.
            what `start` and `RunningScript.wait` raise.
        """
        with self.start(script, *words, kind=0 if input else REUSABLE | NO_INPUT) as running:
            return running.collect(input, timeout, limit)

    def close(self) -> None:
        """End all running scripts and all clients, and close the backend.

        May be called again.
        """
        with self._lock:
            self._closed = True
            running = list(self._running)
        threads = []
        for one in running:
            try:
                threads.append(start_thread(one.kill, "swerex-kill"))
            except ResourceError:
                one.kill()
        deadline = time.monotonic() + KILL_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        self._shells.close()
        self.backend.close()

    def _end_marked(self, mark: str) -> None:
        """End everything that has the mark. Does not use `run`, which would call this again for its own timeout."""
        words = [mark, str(processes.END_SECONDS)]
        deadline = time.monotonic() + KILL_SECONDS
        running = self._begin(processes.END_MARKED, words, REUSABLE | NO_INPUT, deadline)
        try:
            with contextlib.suppress(DeadlineExceeded, BrokenPipeError):
                running.wait_until(deadline)
        finally:
            self._release(running)


class RunningScript:
    """One running script in the sandbox. Its streams contain only its own output.

    They end when the script itself ends: later output of children that it left is not included. Reading one stream
    never depends on reading another: pending output is buffered in memory.
    """

    def __init__(self, sandbox: Sandbox, client: LoaderClient, nonce: bytes, mark: str, *, kept: bool) -> None:
        self.client = client
        self.nonce = nonce
        """Secret that lets a shell executed by the script use `swx_note` too; no other process there may get it."""
        self.mark = mark
        """Value of SWEREX_C_MARK in everything that the script executes."""
        self.kept = kept
        """True if the client can take another script afterwards."""
        self.killed = False
        """True if `kill` was called."""
        self._sandbox = sandbox
        self._stdout, self._stderr = client.stdout, client.stderr
        self._closed = False
        self._lock = threading.Lock()

    @property
    def code(self) -> int | None:
        """Return the exit status, or minus the number of the ending signal.

        Returns:
            None if it is not yet known.
        """
        value = self._stdout.records.get(b"E")
        return None if value is None else int(value)

    @property
    def note(self) -> int | None:
        """Return the number that the script sent with `swx_note NUMBER`.

        Programs that the script executes cannot forge it.

        Returns:
            None if none has arrived.
        """
        value = self._stdout.records.get(b"N")
        return None if value is None else int(value)

    @property
    def done(self) -> bool:
        """Return whether all output of the script has arrived."""
        return self._stdout.done and self._stderr.done

    def write(self, data: ReadableBuffer, deadline: float | None = None) -> None:
        """Write all of `data` to standard input.

        Raises:
            BrokenPipeError: if the script has ended.
            DeadlineExceeded: if the script does not take the data before `deadline` (of the monotonic clock).
        """
        self.client.write(memoryview(data), lambda: self.done, deadline)

    def close_input(self) -> None:
        """Close standard input.

        Does nothing for a script of the kind `REUSABLE`, which knows the end of its input from its contents.
        """
        if not self.kept:
            self.client.close_input()

    def read(self, size: int = -1, *, stderr: bool = False) -> bytes:
        """Return up to `size` bytes of a stream, once any are available.

        Args:
            size: -1 reads to the end.
            stderr: read standard error instead of standard output.

        Returns:
            b"" at the end.
        """
        output = self._stderr if stderr else self._stdout
        if size < 0:
            return b"".join(iter(lambda: self.client.read(output, 256 * 1024), b""))
        return self.client.read(output, size)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, or minus the number of the ending signal.

        Output is kept for the streams.

        Raises:
            TimeoutError: if the script has not ended after `timeout` seconds. It keeps running.
            SandboxLostError: if the sandbox is gone.
            ConnectionLostError: if the connection to the sandbox is lost; other commands can open a new one.
            SwerexException: if the shell above the script has ended without reporting an exit status.
        """
        try:
            self.wait_until(None if timeout is None else time.monotonic() + timeout)
        except DeadlineExceeded:
            msg = f"The script has not ended after {timeout:g} seconds"
            raise TimeoutError(msg) from None
        except BrokenPipeError:
            raise RuntimeClosedError("The runtime was closed while the command ran") from None
        code = self.code
        if code is not None:
            return code
        raise self._no_code()

    def wait_until(self, deadline: float | None) -> None:
        """Wait until all output has arrived; see `LoaderClient.pump`."""
        self.client.pump(lambda: self.done, deadline)

    def _no_code(self) -> SwerexException:
        if self.killed:
            return RuntimeClosedError("The command was ended")
        client = self.client
        with contextlib.suppress(subprocess.TimeoutExpired):
            client.process.wait(1)
        for pause in _NOTICE_SECONDS:
            time.sleep(pause)
            gone = lost(self._sandbox.backend)
            if gone is not None:
                return gone
        words = client.words()
        said = f": {words}" if words else ""
        began = b"B" in self._stdout.records or b"B" in self._stderr.records
        what = "while the command ran" if began else "before the command began, or as it did"
        code = client.process.returncode
        unsure = None if code is None or code < 0 else self._sandbox.backend.unsure(client.argv, code)
        if unsure is not None:
            return ConnectionLostError(
                f"{unsure} {what}, so its exit code is unknown, and it may still run. Other commands connect "
                f"again{said}"
            )
        return ResourceError(
            f"The shell in {self._sandbox.backend.name} has ended {what}, so there is no exit code: "
            f"its client ended with status {code}{said}"
        )

    def collect(self, input: bytes, timeout: float | None, limit: int) -> ScriptResult:
        """Write the input, read all output, and wait for the end; see `Sandbox.run`."""
        from swerex_c.engine.output import HeadTailBuffer

        kept = (HeadTailBuffer(limit), HeadTailBuffer(limit))
        for output, keeper in zip((self._stdout, self._stderr), kept, strict=True):
            output.drain(keeper.add)
        deadline = None if timeout is None else time.monotonic() + timeout
        try:
            if input:
                with contextlib.suppress(BrokenPipeError):
                    self.write(input, deadline)
            self.close_input()
            self.wait_until(deadline)
        except DeadlineExceeded:
            self.kill()
            msg = f"The script has not ended after {timeout:g} seconds, and was killed"
            raise CommandTimeoutError(msg, output=kept[0].content().decode(errors="backslashreplace")) from None
        except BrokenPipeError:
            pass
        if self.killed:
            msg = "The runtime was closed while the command ran"
            raise RuntimeClosedError(msg)
        code = self.wait(0)
        return ScriptResult(code, kept[0].content(), kept[1].content(), kept[0].dropped + kept[1].dropped)

    def kill(self) -> None:
        """End the script and everything that it started.

        Returns when that is done, after at most a few seconds.
        """
        with self._lock:
            if self.killed or self._closed or self.done:
                return
            self.killed = True
        try:
            with contextlib.suppress(SwerexException, TimeoutError):
                self._sandbox._end_marked(self.mark)
        finally:
            # Processes without the mark may hold the pipes open.
            self.client.give_up(time.monotonic() + 0.5)
            with contextlib.suppress(DeadlineExceeded, BrokenPipeError):
                self.wait_until(time.monotonic() + 1)

    def close(self) -> None:
        """Release the script, and end it if it still runs.

        If it has ended, background processes that it left keep running.
        """
        if not self.done:
            self.kill()
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._sandbox._release(self)

    def __enter__(self) -> RunningScript:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def in_killable_thread(function: Callable[[Callable[[RunningScript], object]], T]) -> T:
    """Call a blocking function in a thread; a cancellation kills its script.

    The cancellation is raised when the script and everything that it started has ended.

    Args:
        function: it has to pass the script to its argument before it gives the script any work.
    """
    scripts: list[RunningScript] = []
    cancelled = False

    def began(running: RunningScript) -> None:
        scripts.append(running)
        if cancelled:
            raise RuntimeClosedError("The call was cancelled")

    try:
        return await in_thread(function, began)
    except asyncio.CancelledError:
        cancelled = True
        for running in scripts:
            await in_thread(running.kill)
        raise
