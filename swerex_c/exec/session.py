"""A persistent bash in another place, behind a client that carries its terminal."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swerex_c.exceptions import (
    CommandTimeoutError,
    NotSupportedError,
    PlaceLostError,
    ResourceError,
    RuntimeClosedError,
    SessionDiedError,
    SwerexException,
)
from swerex_c.exec.scripts import (
    BRAND,
    END_MARKED,
    END_SECONDS,
    FIND_SHELL,
    INTERRUPT_FOREGROUND,
    KILL_FOREGROUND,
    MARK,
    SHELL_READS,
    draw_mark,
)
from swerex_c.exec.shells import lost
from swerex_c.exec.threads import in_thread
from swerex_c.remote.direct import rest
from swerex_c.runtime._answers import finish
from swerex_c.runtime._session import CARRIED_BASH, CARRIED_VARIABLES, BashSession, translated
from swerex_c.runtime._wakeup import current_waker
from swerex_c.runtime.abstract import CloseBashSessionResponse
from swerex_c.runtime.config import OUTPUT_LIMIT

if TYPE_CHECKING:
    import logging

    from swerex_c import _core
    from swerex_c.exec.place import Place
    from swerex_c.runtime._answers import Answer
    from swerex_c.runtime._watch import Stream
    from swerex_c.runtime.abstract import (
        BashAction,
        BashInterruptAction,
        CreateBashSessionRequest,
        CreateBashSessionResponse,
    )

__all__ = ["ExecSession", "Look", "end_marked", "look"]

CLIENT_SECONDS = 60.0
"""How long a client may take until the shell behind it shows its first prompt."""

_LATE_SECONDS = 3
"""So long it is waited for a shell that a client was asked for, and that nobody wants any more, so that it is ended."""

_ASK_SECONDS = 20.0
"""How long a short script in the place may take. It does, where the place is frozen."""

_SIGNAL_SECONDS = 1.0
"""How long the way of a signal to what runs in the place may take."""

_DOUBT_SECONDS = 1.0
"""So long after a command was sent it is looked whether its shell is at its prompt all the same, for the first time."""

_DOUBT_AGAIN = 1.6, 30.0
"""Each time so much later than the time before, up to so many seconds."""

_LEARN_SECONDS, _LEARN_TRIES = 0.02, 100
"""How long after the first time it is tried again to see the shell at its prompt, then ever later, and how often."""

_GONE_SECONDS = 3.0
"""How long an engine may take to notice that a place has ended, when nothing can be run in it any more."""


@dataclass(frozen=True)
class Look:
    """A look into a place."""

    there: bool
    """Whether the shell was there that was looked for."""

    born: str = ""
    """What tells this run of the place from its next; empty if it cannot be told."""

    ahead: float | None = None
    """Seconds by which the place's clock is ahead of this machine's, at least; None if that cannot be told."""

    @classmethod
    def of(cls, there: bool, words: bytes) -> Look:
        """By what a script there has just printed: when its first process began, and what its clock shows, or `-`."""
        now = _clock()
        born, _, clock = words.decode(errors="replace").strip().partition(" ")
        ahead = float(clock) - now if re.fullmatch(r"[0-9]+\.[0-9]+", clock) else None
        return cls(there, "" if born == "-" else born, ahead)


def look(place: Place, mark: str) -> Look:
    """Whether the shell of this mark is in the place, and more. Blocks."""
    answer = place.run(FIND_SHELL, mark, timeout=_ASK_SECONDS)
    return Look.of(answer.code == 0, answer.stdout)


def _clock() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def end_marked(place: Place, mark: str, late: float = 0) -> str | None:
    """End all that carries the mark, if it comes within `late` seconds. Blocks, END_SECONDS and some more at most.

    Returns None when nothing is left, also when the place itself is gone; else a sentence about what is.
    """
    try:
        seconds = END_SECONDS + late + _ASK_SECONDS
        answer = place.run(END_MARKED, mark, str(END_SECONDS + int(late)), str(int(late)), timeout=seconds)
        left = answer.stdout.split()[0].decode()
    except (PlaceLostError, RuntimeClosedError):
        return None
    except (SwerexException, IndexError, TimeoutError, OSError) as e:
        gone = lost(place.backend)
        return None if gone is not None else f"What was started in {place.backend.name} could not be ended: {e}"
    return None if left == "0" else f"{left} of the processes started in {place.backend.name} could not be ended"


class ExecSession(BashSession):
    """A session whose shell is in a place. Everything that it starts there has its mark, and ends with it."""

    def __init__(
        self,
        place: Place,
        request: CreateBashSessionRequest,
        *,
        logger: logging.Logger | None = None,
        output_limit: int = OUTPUT_LIMIT,
        known: Look | None = None,
    ):
        """
        Args:
            place: open already; its mark is the beginning of this session's.
            known: what a look has shown of the place when it was opened.
        """
        super().__init__(request, logger=logger, output_limit=output_limit)
        self.place = place
        self.mark = draw_mark(place.mark)
        self._known = known or Look(False)
        self._patience = CLIENT_SECONDS
        self._ready = False
        self._started = False
        self._argv: list[str] = []
        self._prompt: bytes | None = None
        """What the shell's wait at its prompt looks like. Empty: the place does not tell. None: it is not known yet."""
        self._doubting = threading.Lock()
        self._judging = threading.Lock()
        self._verdict: list[SwerexException | None] = []

    # -- start

    def _spawn(self) -> tuple[list[bytes] | None, list[bytes], bytes | None]:
        backend = self.place.backend
        variables = backend.environment()
        for name in ("PS0", "PS1", "PS2"):
            variables.pop(name, None)
        variables |= {"TERM": "xterm", MARK: self.mark}
        argv = backend.terminal(CARRIED_BASH, (*CARRIED_VARIABLES, MARK))
        self._started = True
        self._argv = argv
        return [os.fsencode(word) for word in argv], [os.fsencode(f"{k}={v}") for k, v in variables.items()], None

    def _carried_script(self) -> bytes:
        return BRAND.encode() + super()._carried_script()

    def _check_started(self, operation: _core.Operation, argv: list[bytes] | None) -> None:
        self._ready = operation.typed
        super()._check_started(operation, argv)

    async def start(self) -> CreateBashSessionResponse:
        answer = await super().start()
        # Beside, so that nobody's first command waits for it.
        threading.Thread(target=self._learn, name="learn the prompt", daemon=True).start()
        return answer

    # -- ends that nobody hears

    async def _submit(self, action: BashAction, command: str, timeout: float | None, stream: Stream | None) -> Answer:
        """A shell whose prompts do not show any more (readonly, or standard error elsewhere) is seen from within."""
        work = super()._submit(action, command, timeout, stream)
        try:
            waits_for = work.send(None)
        except StopIteration as end:  # a short one: to set a timer and take it back would be a tenth of it
            answer: Answer = end.value
            return answer
        looks: list[asyncio.Future[None]] = []

        def begin() -> None:
            looks.append(asyncio.ensure_future(self._doubt()))

        later = asyncio.get_running_loop().call_later(_DOUBT_SECONDS, begin)
        try:
            return await rest(work, waits_for)
        finally:
            later.cancel()
            for look in looks:
                look.cancel()

    async def _doubt(self) -> None:
        """While somebody waits for the end of a command: have the core ask the shell if it is at its prompt."""
        pause = _DOUBT_SECONDS
        while (core := self._core) is not None:
            if self._doubting.acquire(blocking=False):
                try:
                    facts = core.facts()
                    # Only then: a shell that has not read its command yet is at its prompt, too.
                    if self._prompt and facts["doubtful"]:
                        seen = await in_thread(self._shell_reads)
                        if seen == self._prompt and self._core is core:
                            core.doubt(facts["commands"])
                finally:
                    self._doubting.release()
            await asyncio.sleep(pause)
            pause = min(pause * _DOUBT_AGAIN[0], _DOUBT_AGAIN[1])

    def _learn(self) -> None:
        """Find out what the shell's wait at its prompt looks like: while it is idle, before the look and after it."""
        pause = _LEARN_SECONDS
        for _ in range(_LEARN_TRIES):
            core = self._core
            if core is None or (before := core.facts())["dead"] or before["closed"]:
                return
            if before["idle"]:
                seen = self._shell_reads()
                after = core.facts()
                if after["idle"] and after["commands"] == before["commands"]:
                    self._prompt = seen
                    return
            time.sleep(pause)
            pause = min(2 * pause, 1.0)

    def _shell_reads(self) -> bytes:
        """What the shell waits for; empty if it does not, or if that cannot be learned. Blocks."""
        try:
            answer = self.place.run(SHELL_READS, self.mark, timeout=_ASK_SECONDS)
        except (SwerexException, TimeoutError, OSError):
            return b""
        return answer.stdout if answer.code == 0 else b""

    # -- what has become of it

    async def _died(self, answer: Answer) -> None:
        """Raise what is true when the client has ended: the place is lost, or the client was. Else the shell has."""
        error = await in_thread(self._judge, answer)
        if error is not None:
            raise error

    def _judge(self, answer: Answer) -> SwerexException | None:
        """The same for each who asks. Blocks."""
        with self._judging:
            if not self._verdict:
                self._verdict.append(self._investigate(answer))
            known = self._verdict[0]
        if known is None or not isinstance(known, SessionDiedError):
            return None if known is None else type(known)(str(known))
        return SessionDiedError(str(known), exit_code=known.exit_code, signal=known.signal)

    def _investigate(self, answer: Answer) -> SwerexException | None:
        backend = self.place.backend
        gone = lost(backend)
        if gone is None and answer.end == "lost":
            return None
        if gone is None and not answer.typed and not self._ready:
            return self._no_shell(answer)
        if gone is None and self._is_seen_from_here():
            return None
        if gone is None:
            there, gone = self._look_again()
            if gone is None and there:
                end_marked(self.place, self.mark)
        if gone is not None:
            return gone
        unsure = None if answer.signal or there else backend.unsure(self._argv, answer.code)
        if unsure is not None:
            return SessionDiedError(
                f"{unsure}, and the session's shell has ended with it, or by itself: the exit code of what ran there "
                "is not known. Close the session and create another one"
            )
        if answer.signal:
            how = f"was ended by signal {answer.signal}"
        elif there:
            how = f"ended with status {answer.code}"
        else:
            return None
        msg = (
            f"The client that carried the terminal of the session's shell {how}, and with it the session in "
            f"{backend.name}. What ran there was ended. Close the session and create another one"
        )
        return SessionDiedError(msg)

    def _look_again(self) -> tuple[bool, SwerexException | None]:
        """Whether the shell is still there; else why there is no place to look into.

        When a container ends, its processes do first, and for a moment its engine knows nothing of that.
        """
        place = self.place
        until = time.monotonic() + _GONE_SECONDS
        while True:
            try:
                seen = look(place, self.mark)
            except (PlaceLostError, RuntimeClosedError) as e:
                return False, e
            except (SwerexException, TimeoutError, OSError) as e:
                gone = lost(place.backend)
                if gone is not None or time.monotonic() > until:
                    msg = f"It cannot be learned what became of the session's shell in {place.backend.name}: {e}"
                    return False, gone or SessionDiedError(msg)
                time.sleep(0.1)
                continue
            if self._known.born and seen.born and seen.born != self._known.born:
                return False, PlaceLostError(f"The {place.backend.name} was restarted, and what ran there has ended")
            return seen.there, lost(place.backend)

    def _no_shell(self, answer: Answer) -> SwerexException:
        """Why a client has ended before its shell was there, in a place that is."""
        name, words = self.place.backend.name, " ".join(answer.output.split())
        said = f" ({words})" if words else ""
        if answer.code in (126, 127):
            return NotSupportedError(f"There is no bash in {name}, which sessions need{said}")
        how = f"was ended by signal {answer.signal}" if answer.signal else f"ended with status {answer.code}"
        return ResourceError(f"No shell could be started in {name}; the client {how}{said}")

    # -- ending things

    async def _interrupt(self, action: BashInterruptAction, matcher: _core.Matcher | None) -> _core.Operation:
        """SIGINT for what runs in the foreground. It is sent inside; ^C is typed where that cannot be."""
        waker = current_waker()
        future = waker.create_future()
        step, tries = min(action.timeout, 3600.0), action.n_retry
        core = self.core
        with translated():
            waiting = core.interrupt(step, tries, matcher, waker.core, future, True)
        try:
            inside = True
            for _ in range(tries):
                if inside and not waiting.done:
                    inside = await self._interrupt_inside()
                if inside:
                    await asyncio.wait({future}, timeout=step)
                elif not waiting.done:
                    await self._type_interrupt(step)
                if waiting.done:
                    return waiting
            waiting.cancel()
            if waiting.end != "cancelled":
                return waiting
        except BaseException:
            waiting.cancel()
            raise
        return await self._type_interrupt(0)

    async def _type_interrupt(self, step: float) -> _core.Operation:
        """One ^C and `step` seconds; without any seconds only the answer of one that was in vain."""
        waker = current_waker()
        future = waker.create_future()
        core = self.core
        with translated():
            operation = core.interrupt(step, 1 if step else 0, None, waker.core, future)
        await finish(operation, future)
        return operation

    async def _interrupt_inside(self) -> bool:
        """False: it is the shell itself that has to be interrupted, or nothing can be said to the place just now.

        A signal that comes late could hit the next command: after this returns none is sent.
        """
        ahead = 0.0 if self._is_seen_from_here() else self._known.ahead
        if ahead is None:
            return False
        until = int((_clock() + _SIGNAL_SECONDS + ahead) * 100)
        sending = asyncio.ensure_future(in_thread(self._signal, INTERRUPT_FOREGROUND, str(until)))
        try:
            return await asyncio.wait_for(asyncio.shield(sending), _SIGNAL_SECONDS + 0.1)
        except (TimeoutError, SwerexException, OSError):
            sending.cancel()
            return False

    async def _kill_foreground(self) -> bool:
        try:
            return await in_thread(self._signal, KILL_FOREGROUND)
        except CommandTimeoutError:
            return False

    def _is_seen_from_here(self) -> bool:
        """Whether what runs there are processes of this machine, in a view of one client."""
        return not self.place.backend.outlives and not self.place.backend.shares_processes

    def _signal(self, script: str, *words: str) -> bool:
        """Have a script signal what runs in the foreground. Blocks."""
        if not self._is_seen_from_here():
            return self.place.run(script, self.mark, *words, timeout=_ASK_SECONDS).code == 0
        from swerex_c.exec.ask import ask
        from swerex_c.runtime._syntax import find_bash

        argv = [find_bash(), "--noprofile", "--norc", "-c", script, "bash", self.mark, *words]
        try:
            return ask(argv, environment={}, timeout=_ASK_SECONDS).code == 0
        except (TimeoutError, OSError):
            return False

    async def close(self) -> CloseBashSessionResponse:
        """End the shell and everything that it started in the place. Returns when it is gone.

        What cannot be ended in some seconds is left, and the log says so. A place that is lost is no error.
        """
        await self._end(inside=True)
        return CloseBashSessionResponse()

    async def _end(self, *, inside: bool) -> None:
        """inside: also what is in the place; else only here, where the caller ends all that the runtime started."""
        started, self._started = self._started, False
        inside = started and self.place.backend.outlives and (inside or not self._ready)
        inside = inside and not any(isinstance(known, PlaceLostError) for known in self._verdict)
        if inside and not self._ready and self._core is not None and not self._core.facts()["dead"]:
            # Its client has asked for a shell, or is about to. Without the client nobody would know when it comes.
            await in_thread(end_marked, self.place, self.mark, _LATE_SECONDS)
        await super().close()
        if inside:
            left = await in_thread(end_marked, self.place, self.mark)
            if left is not None:
                self.logger.warning("%s", left)

    async def close_here(self) -> None:
        """End the client alone, and a shell that is not ready yet. The caller ends what else is in the place."""
        await self._end(inside=False)
