"""Use a sandbox: run scripts, each in a fresh subshell over pipes, end what they started, explain a loss.

    sandbox = Sandbox(backend)
    await sandbox.open(60)
    result = await sandbox.run('printf %s "$1" | tr a-z A-Z', "words of any bytes", timeout=10)
    await sandbox.close()

All coroutines run in the event loop of `swerex_c.utils.background`, which has to run them for callers elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import weakref
from collections.abc import Sequence

from swerex_c.engine.output import HeadTailBuffer
from swerex_c.exceptions import (
    CommandTimeoutError,
    ConnectionLostError,
    ResourceError,
    RuntimeClosedError,
    SandboxLostError,
    SwerexException,
)
from swerex_c.sandbox import processes
from swerex_c.sandbox.backend import Backend
from swerex_c.sandbox.clients import CompletedCommand
from swerex_c.sandbox.loader import NO_INPUT, REUSABLE, Loader, encode_request
from swerex_c.sandbox.loader_pool import LoaderPool
from swerex_c.utils import background
from swerex_c.utils.finalizers import call_from_finalizer
from swerex_c.utils.visible import error_line

__all__ = ["RunningScript", "Sandbox"]

_logger = logging.getLogger("swerex_c.sandbox")

_ATTEMPTS = 8
"""Maximum number of shells to try for a script: more than are kept."""

_HOLD_SECONDS = 0.5
"""Seconds to wait for the end of a killed script: processes without its mark may hold its pipes."""

_STATUS_SECONDS = 6.0
"""Maximum seconds to learn the exit code of a client that has closed its streams, or to start another one."""

_SILENT_SECONDS = 10.0
"""Maximum seconds without a sign that the end of processes makes progress; a frozen sandbox gives none."""

_LIMIT = 1 << 20
"""Default number of bytes to keep of each stream of a script."""

_LONGEST_LINE = 32
"""Maximum number of bytes of a line in which a script says how it goes on: a format, or a time."""


class Sandbox:
    """Sandbox in use, reached through a backend. `mark` is the prefix of the marks of everything started in it."""

    def __init__(self, backend: Backend) -> None:
        """Create a sandbox that is not open."""
        self.backend = backend
        self.mark = backend.mark = processes.new_mark()
        self._shells = LoaderPool(backend, self.mark)
        self._running: set[RunningScript] = set()
        self.lost = self._shells.lost
        self._closed = False
        self._owner = os.getpid()

    async def open(self, timeout: float, *, shells: bool = True) -> None:
        """Open the backend, and start the first loader; see `SandboxRuntime.open`.

        Args:
            shells: False if bash is known to work: the first loader then starts when it is needed.
        """
        weakref.finalize(self, _drop, self._shells, self.backend, self._owner).atexit = False
        try:
            async with asyncio.timeout(timeout):
                await self.backend.open()
                if shells:
                    self._shells.put(await self._shells.take())
        except SwerexException:
            raise
        except TimeoutError:
            msg = f"No shell has started in {self.backend.name} within {timeout:.3g} seconds"
            raise TimeoutError(msg) from None
        except OSError as e:
            raise ResourceError(f"The {self.backend.name} cannot be reached: {e}", errno=e.errno) from None

    def check(self) -> None:
        """Raise an error if the sandbox was restarted, or in a forked child, which cannot end what it would start."""
        if self._owner != os.getpid():
            raise RuntimeClosedError("The runtime belongs to the process that this one was forked from: make another")
        self._shells.check_restarted()

    async def start(self, script: str, *words: str, kind: int = 0, limit: int = _LIMIT) -> RunningScript:
        """Start a bash script, to be used with `async with`. It has the sandbox's own environment and directory.

        Args:
            script: runs in a subshell: `$$` is the shell above it, which reports its end.
            words: the script's arguments `$1`, `$2`, ...; of any length, without NUL bytes.
            kind: flags of `swerex_c.sandbox.loader`. A `REUSABLE` script starts faster.
            limit: bytes kept of its standard error, and by `collect` of its standard output: half from the beginning,
                half from the end.

        Raises:
            SandboxLostError, NotSupportedError, ResourceError, RuntimeClosedError: if the script was not started.
        """
        self.check()
        if self._closed:
            raise RuntimeClosedError("The runtime was closed: make another one")
        return await self._start(script, words, kind, processes.new_mark(self.mark), limit)

    async def _start(
        self, script: str, words: Sequence[str], kind: int, mark: str, limit: int, *, ends: bool = True
    ) -> RunningScript:
        """Start a script whose `kill` ends everything with its mark, or nothing if `ends` is False."""
        encoded = [os.fsencode(word) for word in (mark, script, *words)]
        for _ in range(_ATTEMPTS):
            loader = await self._shells.take()
            possible = kind if loader.reusable else kind & ~REUSABLE
            running = RunningScript(self, loader, mark if ends else "", limit, kept=bool(possible & REUSABLE))
            self._running.add(running)  # from here on, closing the sandbox ends it
            try:
                await loader.write(encode_request(running.nonce, possible, encoded))
                return running
            except (ConnectionLostError, SandboxLostError):
                return running  # it may have begun: the end of its output shows that, and the backend has the reason
            except OSError:
                running.release()  # the loader has ended, and cannot have started it
            except BaseException:  # it may have been sent
                await running.end()
                raise
        raise ResourceError("The sandbox runs nothing: each of its shells ends before it gets a script")

    async def run(
        self, script: str, *words: str, timeout: float | None = None, limit: int = _LIMIT, input: bytes = b""
    ) -> CompletedCommand:
        """Run a script to its end.

        Args:
            timeout: seconds after which the script and everything it started are ended; None means no limit.

        Raises:
            CommandTimeoutError: if the script took too long; `output` has its output so far.
            what `start` and `RunningScript.wait` raise.
        """
        async with await self.start(script, *words, kind=0 if input else REUSABLE | NO_INPUT, limit=limit) as running:
            return await running.collect(input, timeout)

    async def end_marked(self, mark: str, late: float = 0) -> str | None:
        """End all processes with the mark, and wait up to `late` seconds for the first to appear.

        Returns:
            None if no process, or no sandbox, is left; else a sentence.
        """
        name = self.backend.name
        try:
            left = await self._end_marked(mark, late)
        except (SandboxLostError, RuntimeClosedError):
            return None
        except (SwerexException, IndexError, ValueError, TimeoutError, OSError) as e:
            if await self.lost() is not None:
                return None
            why = f"it has not answered for {_SILENT_SECONDS:g} seconds" if type(e) is TimeoutError else e
            return f"Cannot end the processes started in {name}: {why}"
        return f"{left} of the processes started in {name} could not be ended" if left else None

    async def _end_marked(self, mark: str, late: float) -> int:
        """End all processes with the mark; return how many are left. The mark of the script itself is that of loaders.

        Raises TimeoutError if the sandbox is frozen.
        """
        self.check()
        words = (mark, str(int(late)))
        async with asyncio.timeout(_SILENT_SECONDS):
            ending = await self._start(processes.END_MARKED, words, REUSABLE | NO_INPUT, self.mark, 1024, ends=False)
        async with ending:
            printed = piece = b"\n"
            while piece:
                async with asyncio.timeout(_SILENT_SECONDS):
                    piece = await ending.read(1024)
                printed = (printed + piece)[-1024:]
            await ending.wait()
        return int(printed.splitlines()[-1].split()[0])

    async def end_all(self) -> str | None:
        """End everything in the sandbox as `end_marked` does. The scripts that run raise `RuntimeClosedError`."""
        for running in self._running:
            running.killed = running.killed or running.code is None
        return await self.end_marked(self.mark)

    async def close(self) -> None:
        """End all running scripts and all loaders, and close the backend. May be called again."""
        if self._owner != os.getpid():  # the loaders belong to the parent of this forked process
            return
        self._closed = True
        await asyncio.gather(*(running.kill() for running in list(self._running)))
        await self._shells.close()
        await self.backend.close()


def _drop(shells: LoaderPool, backend: Backend, owner: int) -> None:
    """Close the loaders and the backend of a garbage-collected sandbox. The collector may run in any thread."""

    async def close() -> None:
        await shells.close()
        await backend.abandon()

    if owner == os.getpid() and not shells.closed:
        call_from_finalizer(lambda: background.run_blocking(close()))


class RunningScript:
    """One running script in the sandbox. Its streams contain only its own output.

    They end when the script itself ends: later output of children that it left is not included.
    """

    def __init__(self, sandbox: Sandbox, loader: Loader, mark: str, limit: int, *, kept: bool) -> None:
        self.loader = loader
        self.nonce = secrets.token_hex(16).encode()
        """Secret that lets a shell executed by the script use `swx_note` too; no other process there may get it."""
        self.mark = mark
        """Mark of everything that `kill` ends; empty if it ends nothing."""
        self.killed = False
        """True if `kill` was called."""
        self._kept = kept
        self._sandbox = sandbox
        self._released = False
        self._stdout, self._stderr = loader.renew(self.nonce)
        self._output, self._errors = HeadTailBuffer(limit), HeadTailBuffer(limit)
        self._stderr.drain(self._errors.add)

    @property
    def code(self) -> int | None:
        """Return the exit status, or minus the number of the ending signal; None if it is not yet known.

        It is known when it has come behind all output on both streams.
        """
        codes = [frames.records.get(b"E") for frames in (self._stdout, self._stderr)]
        return None if codes[0] is None or codes[1] is None else int(codes[0])

    @property
    def note(self) -> int | None:
        """Return the number that the script sent with `swx_note NUMBER`, or None.

        Programs that the script executes cannot forge it.
        """
        value = self._stdout.records.get(b"N")
        return None if value is None else int(value)

    @property
    def done(self) -> bool:
        """Return whether all output of the script has arrived."""
        return self._stdout.done and self._stderr.done

    async def write(self, data: bytes | memoryview) -> None:
        """Write all of `data` to standard input; see `Loader.write`."""
        await self.loader.write(data)

    async def close_input(self) -> None:
        """Close standard input, unless the script is `REUSABLE`: it knows the end of its input from its contents."""
        if not self._kept:
            with contextlib.suppress(Exception):  # what reads the output finds out that the connection broke
                await self.loader.process.end_input()

    async def read(self, size: int) -> bytes:
        """Return up to `size` bytes of standard output, once any are available; b"" at the end."""
        return await self.loader.read(self._stdout, size)

    async def first(self) -> None:
        """Wait for the first output, a note or the end."""
        await self.loader.until(lambda: self.note is not None or self._stdout.pieces or self.done)

    async def read_line(self) -> bytes:
        """Return a short line of standard output; it is incomplete if it is too long, or if the output ends."""
        line = b""
        while len(line) < _LONGEST_LINE and not line.endswith(b"\n") and (byte := await self.read(1)):
            line += byte
        return line

    def drop_output(self) -> None:
        """Drop the standard output that was not read, and all that follows."""
        self._stdout.drop()

    async def finish(self) -> tuple[int, bytes]:
        """Drop the rest of standard output; return the exit status as `wait` does, and what was kept of the errors."""
        self.drop_output()
        return await self.wait(), self._errors.content()

    async def wait(self) -> int:
        """Return the exit status, or minus the number of the ending signal. Output is kept for the streams.

        Raises:
            SandboxLostError: if the sandbox is gone.
            ConnectionLostError: if the connection to the sandbox is lost; other commands can open a new one.
            RuntimeClosedError: if the script was killed.
            SwerexException: if the loader has ended without reporting an exit status.
        """
        await self.loader.until(lambda: self.done)
        if self.killed:
            raise RuntimeClosedError("The runtime was closed while the command ran")
        code = self.code
        if code is None:
            raise await self._no_code()
        return code

    async def _no_code(self) -> SwerexException:
        loader, name, shells = self.loader, self._sandbox.backend.name, self._sandbox._shells
        why = loader.error
        try:
            async with asyncio.timeout(_STATUS_SECONDS):
                status: int | None = await loader.process.wait()
        except Exception as e:
            status = None
            why = why or (None if isinstance(e, TimeoutError) else e)
        if gone := await shells.lost_by_now():
            return gone
        try:
            async with asyncio.timeout(_STATUS_SECONDS):
                shells.put(await shells.take())  # a new loader notices that the sandbox was restarted
        except SandboxLostError as e:
            return e
        except (SwerexException, TimeoutError):
            pass
        said = f": {words}" if (words := loader.printed()) else ""
        began = b"B" in self._stdout.records or b"B" in self._stderr.records
        what = "while the command ran" if began else "before the command began, or as it did"
        if isinstance(why, ConnectionLostError):
            return ConnectionLostError(
                f"{why} {what}, so its exit code is unknown, and it may still run. Other commands connect again{said}"
            )
        how = f"its client ended with status {status}" if why is None else error_line(why)
        return ResourceError(f"The shell in {name} has ended {what}, so there is no exit code: {how}{said}")

    async def collect(self, input: bytes, timeout: float | None) -> CompletedCommand:
        """Write the input, read all output, and wait for the end; see `Sandbox.run`."""
        self._stdout.drain(self._output.add)
        try:
            async with asyncio.timeout(timeout):
                if input:
                    with contextlib.suppress(OSError, ConnectionLostError):  # the end of the script shows what it means
                        await self.write(input)
                await self.close_input()
                await self.loader.until(lambda: self.done)
        except TimeoutError:
            await self.kill()
            msg = f"The script has not ended after {timeout:g} seconds, and was killed"
            output = self._output.content().decode(errors="backslashreplace")
            raise CommandTimeoutError(msg, output=output) from None
        return CompletedCommand(await self.wait(), self._output.content(), self._errors.content())

    async def kill(self) -> None:
        """End the script and everything that it started. A warning is logged if the sandbox does not do that."""
        if self.killed or self._released or self.code is not None or not self.mark:
            return
        self.killed = True
        self._stdout.drop()
        if left := await self._sandbox.end_marked(self.mark):
            _logger.warning("%s", left)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_HOLD_SECONDS):
                await self.loader.until(lambda: self.done)
        self.loader.give_up()

    def release(self) -> None:
        """Give the loader back, or close it. Background processes that the script left keep running."""
        self._released = True
        self._sandbox._running.discard(self)
        if self._kept and self.code is not None and not self.killed:
            self.loader.recycle(self.nonce)
            self._sandbox._shells.put(self.loader)
        else:
            self._sandbox._shells.retire(self.loader)

    async def end(self) -> None:
        """Release the script, and kill it if it still runs."""
        try:
            if self.code is None:
                await asyncio.shield(asyncio.ensure_future(self.kill()))
        finally:
            self.release()

    async def __aenter__(self) -> RunningScript:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end()
