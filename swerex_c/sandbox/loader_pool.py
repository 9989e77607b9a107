"""Keep the idle loaders of one sandbox: take one, or start one.

With most engines a loader takes about 100 ms to start, and a ready one a few ms to use. An idle loader costs memory (a
client of docker 25 MB), so a few are kept, and after some minutes only one.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets

from swerex_c.exceptions import NotSupportedError, ResourceError, RuntimeClosedError, SandboxLostError, SwerexException
from swerex_c.sandbox.backend import Backend
from swerex_c.sandbox.loader import Loader
from swerex_c.sandbox.processes import MARK
from swerex_c.utils.visible import error_line

__all__ = ["LoaderPool", "check_version", "no_shell"]

MOST_KEPT = 4
"""Maximum number of idle loaders."""

IDLE_SECONDS = 180.0
"""Seconds without use after which idle loaders but one are ended."""

STARTS_AT_ONCE = 8
"""Maximum number of loaders to start at the same time; more would only compete for the processors."""

START_SECONDS = 60.0
"""Maximum seconds for the start of a loader."""

_ASK_SECONDS = 10.0

_NOTICE_SECONDS = (0, 0.5, 1)
"""Pauses in seconds before each check whether the sandbox has ended: an engine may notice only when all streams end."""

_NO_BASH = (126, 127)
"""Exit codes of a client whose sandbox has no bash."""

_OLDEST_BASH = (4, 4)


class LoaderPool:
    """The loaders of a sandbox. Used in the private event loop.

    It has no reference to the `Sandbox`, so that an unused sandbox can be cleaned up.
    """

    def __init__(self, backend: Backend, mark: str) -> None:
        """Create an empty pool of loaders with this mark, with which those of their scripts begin."""
        self._born, self._restarted = "", False
        self._backend, self._mark = backend, mark
        self._idle: list[Loader] = []
        self._all: set[Loader] = set()  # those that are not closing
        self._starts = asyncio.Semaphore(STARTS_AT_ONCE)
        self._closing: set[asyncio.Task[None]] = set()
        self.closed = False
        self._trimming: asyncio.TimerHandle | None = None

    async def take(self) -> Loader:
        """Return a loader that waits for its script. Give it back with `put` or `retire`."""
        self._trim_later()
        while True:
            loader = await self._take_idle()
            if loader is None:
                async with self._starts:
                    self._check_open()
                    loader = None if self._idle else await self._start()
            if loader is not None:
                return loader

    async def _take_idle(self) -> Loader | None:
        while self._idle:
            loader = next((it for it in self._idle if it.settled), self._idle[0])
            self._idle.remove(loader)
            try:
                usable = await loader.usable()
            except asyncio.CancelledError:
                self.put(loader)
                raise
            if usable and not self.closed:
                return loader
            self.retire(loader)
        return None

    def _check_open(self) -> None:
        if self.closed:
            raise RuntimeClosedError("The runtime was closed: make another one")

    def put(self, loader: Loader) -> None:
        """Put back a loader that can take a script now or soon."""
        if self.closed or len(self._idle) >= MOST_KEPT:
            self.retire(loader)
        else:
            self._idle.append(loader)
            self._trim_later()

    def retire(self, loader: Loader) -> None:
        """Close a loader in the background. Processes that its script left in the sandbox keep running."""
        if loader in self._all:
            self._all.remove(loader)
            closing = asyncio.create_task(loader.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)

    async def _start(self) -> Loader:
        backend, token = self._backend, secrets.token_hex(16)
        try:
            process = await backend.exec(Loader.argv(token), {MARK: self._mark})
        except SwerexException as e:
            raise (await self.lost() or e) from None
        except OSError as e:
            msg = f"The program that reaches {backend.name} cannot be started: {e}"
            raise ResourceError(msg, errno=e.errno) from None
        except Exception as e:
            raise (await self.lost() or no_shell(backend, None, str(e))) from None
        loader = Loader(process, token)
        self._all.add(loader)
        try:
            async with asyncio.timeout(START_SECONDS):
                version = await loader.greet()
            if version is None:
                raise await self._why_ended(loader)
            check_version(version, backend.name)
            self._check_open()
            self._born = self._born or loader.born
            self._restarted = self._restarted or bool(loader.born) and loader.born != self._born
            self.check_restarted()
        except BaseException as e:
            self.retire(loader)
            self._check_open()
            if isinstance(e, TimeoutError) and not isinstance(e, SwerexException):
                msg = f"No shell has started in {backend.name} within {START_SECONDS:g} seconds"
                raise await self.lost() or ResourceError(msg) from None
            raise
        return loader

    async def _why_ended(self, loader: Loader) -> SwerexException:
        """Return why a loader has ended before it sent a greeting."""
        status: int | None = None
        with contextlib.suppress(TimeoutError, SwerexException):
            async with asyncio.timeout(1):
                status = await loader.process.wait()
        # If bash was there before, the sandbox may be about to end, or to be started again.
        if gone := await (self.lost_by_now() if self._born or status not in _NO_BASH else self.lost()):
            return gone
        if isinstance(loader.error, SwerexException):
            return loader.error
        printed = loader.printed() or str(loader.error or "")
        return no_shell(self._backend, status, printed, had_bash=bool(self._born))

    def check_restarted(self) -> None:
        """Raise SandboxLostError if a loader has noticed that the sandbox was restarted."""
        if self._restarted:
            raise SandboxLostError(f"The {self._backend.name} was restarted, and everything that ran there has ended")

    async def lost(self, timeout: float = _ASK_SECONDS) -> SwerexException | None:
        """Return the error for a sandbox that is lost, or whose state is unknown after `timeout` seconds, or None."""
        name = self._backend.name
        try:
            self.check_restarted()
            async with asyncio.timeout(timeout):
                reason = await self._backend.why_lost()
        except SwerexException as e:  # also one that is a TimeoutError, which is returned unchanged
            return e
        except TimeoutError as e:
            said = f": {e}" if str(e) else f" (after {timeout:g} seconds)"
            return SandboxLostError(f"Cannot determine in time whether {name} still exists{said}")
        except Exception as e:
            return SandboxLostError(f"Cannot determine whether {name} still exists: {error_line(e)}")
        return None if reason is None else SandboxLostError(reason)

    async def lost_by_now(self) -> SwerexException | None:
        """Return the result of `lost` for a client that has ended: an engine may notice a little later why."""
        for pause in _NOTICE_SECONDS:
            await asyncio.sleep(pause)
            if gone := await self.lost():
                return gone
        return None

    def _trim_later(self) -> None:
        """Schedule the end of idle loaders."""
        if self._trimming is not None:
            self._trimming.cancel()
        self._trimming = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._trim)

    def _trim(self) -> None:
        while len(self._idle) > 1:
            self.retire(self._idle.pop())

    async def close(self) -> None:
        """End all loaders. Calls that wait for one get `RuntimeClosedError`. May be called again."""
        self.closed = True
        if self._trimming is not None:
            self._trimming.cancel()
        self._idle.clear()
        for loader in list(self._all):
            self.retire(loader)
        if self._closing:
            await asyncio.wait(self._closing)


def check_version(version: tuple[int, int], sandbox: str) -> None:
    """Raise NotSupportedError if a sandbox's bash of this version is too old."""
    if version < _OLDEST_BASH:
        raise NotSupportedError("The bash in {} is {}.{}; 4.4 or later is needed".format(sandbox, *version))


def no_shell(backend: Backend, status: int | None, printed: str, *, had_bash: bool = False) -> SwerexException:
    """Return the error for a program that ended before its shell was ready.

    Args:
        status: its exit code, or minus the number of the signal that ended it; None if it is not known.
        printed: its output.
        had_bash: whether a bash has run in the sandbox before.
    """
    words = " ".join(printed.split())
    said = f" ({words})" if words else ""
    if status in _NO_BASH and not had_bash:
        return NotSupportedError(f"There is no bash in {backend.name}, which commands need: install bash there{said}")
    if status is None:
        how = "closed its output"
    else:
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
    return ResourceError(f"No shell could be started in {backend.name}; its client {how}{said}")
