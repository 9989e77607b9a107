"""Persistent bash session in a sandbox; a client forwards its terminal."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
import os
import re
import threading
import time
from collections.abc import Iterator
from typing import Any

from swerex_c import _core, models
from swerex_c.engine.completions import current_completions
from swerex_c.engine.outcomes import retrieve_exception, translated
from swerex_c.engine.output import OutputStream
from swerex_c.engine.search import Search, finish_search, patterns_of
from swerex_c.engine.session import TRANSPORT_BASH, TRANSPORT_VARIABLES, BashSession
from swerex_c.engine.startup_files import SET_BY_CORE
from swerex_c.exceptions import RuntimeClosedError, SandboxLostError, SessionDiedError, SwerexException
from swerex_c.sandbox import processes
from swerex_c.sandbox.loader import REUSABLE
from swerex_c.sandbox.loader_pool import no_shell
from swerex_c.sandbox.sandbox import Sandbox
from swerex_c.utils import background

__all__ = ["SandboxSession"]

CLIENT_SECONDS = 60.0
"""Maximum seconds from the start of a client to the first prompt of its shell."""

_LATE_SECONDS = 3
"""Seconds to wait for the shell of a session that was closed while its client was starting, in order to end it."""

_ASK_SECONDS = 20.0
"""Maximum seconds for a short script in the sandbox. A frozen sandbox uses all of them."""

_SIGNAL_SECONDS = 1.0
"""Maximum seconds for a signal to reach the program that runs in the sandbox."""

_CHECK_SECONDS = 1.0
"""Seconds from sending a command to the first check whether its shell is at its prompt although no prompt was seen."""

_ARRIVAL_SECONDS = 1.6
"""Seconds for which the core assumes a line is still on its way to the shell, if no mark tells that it was read."""

_CHECK_AGAIN = 1.6, 30.0
"""Growth factor of the pause between these checks, and its maximum in seconds."""

_LEARN_PAUSES = 0, 0.05, 0.3, 2, 10
"""Seconds before each try to observe the shell at its prompt, between commands."""

_SHELL_READS, _AT_PROMPT = 5, 6
"""Exit codes of `KILL_FOREGROUND` for a shell that reads by itself, and for one at its prompt."""

_END_OF_INPUT = b"\x04"
"""Key that ends the input that the shell reads."""

_HELD_BY_SHELL = (
    "the shell itself runs the command, and ignores or traps SIGINT, or repeats it without end. Close the session and "
    "create another one"
)

_GONE_SECONDS = 3.0
"""Maximum seconds for an engine to notice that a sandbox has ended, when nothing can run in it any more."""


class SandboxSession(BashSession):
    """Session whose shell runs in a sandbox. Everything that it starts there has its mark, and ends with it."""

    def __init__(
        self,
        sandbox: Sandbox,
        request: models.CreateBashSessionRequest,
        *,
        logger: logging.Logger | None = None,
        output_limit: int = models.OUTPUT_LIMIT,
    ):
        """Create a session without starting it, in an open sandbox."""
        super().__init__(request, logger=logger, output_limit=output_limit)
        self.sandbox = sandbox
        self.mark = processes.new_mark(sandbox.mark)
        self._patience = CLIENT_SECONDS
        self._ready = False
        self._started = False
        self._argv: list[str] = []
        self._prompt: bytes | None = None
        """SHELL_READS output at the prompt; a process ID alone also fits other waits. None: not known yet."""
        self._checking = threading.Lock()
        self._finding_cause = asyncio.Lock()  # of the private event loop
        self._end_cause: list[SwerexException | None] = []  # one entry once known; None: the shell itself has ended

    # -- start

    def _spawn(self) -> tuple[list[bytes] | None, list[bytes], bytes | None]:
        backend = self.sandbox.backend
        variables = backend.environment()
        for name in SET_BY_CORE:
            variables.pop(name, None)
        variables |= {"TERM": "xterm", processes.MARK: self.mark}
        with translated("A session cannot be started"):
            self._argv = backend.terminal(TRANSPORT_BASH, (*TRANSPORT_VARIABLES, processes.MARK))
        self._started = True
        return [os.fsencode(word) for word in self._argv], [os.fsencode(f"{k}={v}") for k, v in variables.items()], None

    def _startup_script(self) -> bytes:
        # The client may set the terminal's size much later.
        size = f"builtin command -p stty rows {self.request.rows} cols {self.request.columns} 2>&- || builtin :\n"
        return processes.TAG_LIMITS.encode() + size.encode() + super()._startup_script()

    async def _startup_output(self, operation: _core.Operation, argv: list[bytes] | None) -> str:
        self._ready = operation.typed
        return await super()._startup_output(operation, argv)

    async def start(self) -> models.CreateBashSessionResponse:
        answer = await super().start()
        background.spawn(self._learn_early())  # the first command does not wait for it
        return answer

    # -- commands that end without a visible prompt

    async def _run_normal(self, values: dict[str, Any], stream: OutputStream | None) -> models.BashObservation:
        """Run a command. If it may hide the prompts, first learn how the shell waits at them."""
        if self._prompt is None:
            with translated():
                flags = _core.scan(values["command"])[1]
            if flags & (_core.SCAN_PROMPT | _core.SCAN_EXEC):
                await background.run(self._learn())
        return await super()._run_normal(values, stream)

    @contextlib.contextmanager
    def _while_pending(self) -> Iterator[None]:
        """Check inside the sandbox for a shell whose prompts are hidden (readonly, or standard error redirected)."""
        checks: list[asyncio.Task[None]] = []

        def begin() -> None:
            checks.append(asyncio.ensure_future(self._check_prompt()))
            checks[0].add_done_callback(retrieve_exception)

        later = asyncio.get_running_loop().call_later(_CHECK_SECONDS, begin)
        try:
            yield
        finally:
            later.cancel()
            for check in checks:
                check.cancel()

    async def _check_prompt(self) -> None:
        """Have the core ask the shell whether it is at its prompt, while a caller waits for the end of a command."""
        pause = _CHECK_SECONDS
        while (core := self._core) is not None:
            if self._checking.acquire(blocking=False):
                try:
                    facts = core.facts()
                    # Only if doubtful: a shell that has not read its command yet is at its prompt, too.
                    sure = self._prompt and b" " in self._prompt  # else only if the shell itself does not read or wait
                    if self._prompt and facts["doubtful"] and (sure or facts["hides"]):
                        asking = asyncio.ensure_future(background.run(self._shell_reads()))
                        seen = await asyncio.shield(asking)  # it is short: no need to end it with the command
                        replaced = seen.endswith(b" replaced\n")
                        at_prompt = (seen == self._prompt or replaced) and self._core is core
                        if at_prompt and core.resync(facts["commands"]) and replaced:
                            self._prompt = None
                            background.spawn(self._learn_early())
                finally:
                    self._checking.release()
            await asyncio.sleep(pause)
            pause = min(pause * _CHECK_AGAIN[0], _CHECK_AGAIN[1])

    async def _learn_early(self) -> None:
        """Learn how the shell waits at its prompt, for commands that hide it although nothing in them says so."""
        for pause in _LEARN_PAUSES:
            await asyncio.sleep(pause)
            if self._prompt is not None or self._closed:
                return
            await self._learn()

    async def _learn(self) -> None:
        """Learn how the shell waits at its prompt, if it is idle before it is observed and afterwards."""
        core = self._core
        if core is None or not (before := core.facts())["idle"]:
            return
        seen = await self._shell_reads()
        after = core.facts()
        if after["idle"] and after["commands"] == before["commands"]:
            self._prompt = seen

    async def _shell_reads(self) -> bytes:
        """Return the read in which the shell waits; empty if there is none, or if that is unknown."""
        try:
            answer = await self.sandbox.run(processes.SHELL_READS, self.mark, timeout=_ASK_SECONDS)
        except (SwerexException, TimeoutError, OSError):
            return b""
        return answer.stdout if answer.code == 0 else b""

    # -- cause of the end

    async def _died(self, answer: _core.Operation) -> None:
        """Raise the cause if the sandbox or the client was lost. Otherwise return: the shell itself has ended."""
        if error := await background.run(self._find_cause(answer)):
            raise error

    async def _find_cause(self, answer: _core.Operation) -> SwerexException | None:
        """Return the cause of the end, the same one for each caller."""
        async with self._finding_cause:
            if not self._end_cause:
                self._end_cause.append(await self._determine_cause(answer))
            return copy.copy(self._end_cause[0])

    async def _determine_cause(self, answer: _core.Operation) -> SwerexException | None:
        backend = self.sandbox.backend
        if gone := await self.sandbox.lost():
            return gone
        if answer.end == "lost":
            return None
        if not answer.typed and not self._ready:
            status = None if answer.code < 0 else -answer.signal or answer.code
            return no_shell(backend, status, answer.output)
        there = await self._shell_exists()
        if isinstance(there, SwerexException):
            return there
        if there:
            await self.sandbox.end_marked(self.mark)
        elif not answer.signal:
            unsure = await backend.unsure(self._argv, answer.code, answer.output)
            if unsure is None:
                return None
            return SessionDiedError(
                f"{unsure}, and the session's shell has ended, so the exit code of its command is unknown. Close the "
                "session and create another one"
            )
        if answer.signal:
            how = f"was ended by signal {answer.signal}"
        else:
            how = "ended" if answer.code < 0 else f"ended with status {answer.code}"
        return SessionDiedError(
            f"The client that relayed the session's terminal {how}, so the session in {backend.name} has ended with "
            "everything that it ran. Close the session and create another one"
        )

    async def _shell_exists(self) -> bool | SwerexException:
        """Return whether the shell still exists, or the error if the sandbox is lost.

        When a container ends, its processes end first, and for a moment its engine does not know.
        """
        until = time.monotonic() + _GONE_SECONDS
        while True:
            try:
                found = await self.sandbox.run(processes.FIND_SHELL, self.mark, timeout=_ASK_SECONDS)
                return await self.sandbox.lost() or found.code == 0
            except (SandboxLostError, RuntimeClosedError) as e:
                return e
            except (SwerexException, TimeoutError, OSError) as e:
                if gone := await self.sandbox.lost():
                    return gone
                if time.monotonic() > until:
                    name = self.sandbox.backend.name
                    return SessionDiedError(f"Cannot determine whether the session's shell in {name} still runs: {e}")
            await asyncio.sleep(0.1)

    # -- interrupting and ending

    async def _interrupt(
        self, action: models.BashInterruptAction, matcher: _core.Matcher | Search | None
    ) -> _core.Operation:
        """Send SIGINT to the foreground processes from inside the sandbox; if that is impossible, type ^C."""
        completions = current_completions()
        future = asyncio.get_running_loop().create_future()
        step, tries = models.attempt_seconds(action), action.n_retry
        with translated():
            waiting = self.core.interrupt(step, tries, patterns_of(matcher), completions.core, future, True)

        async def interrupt() -> None:
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
                        return
            finally:
                waiting.cancel()

        await finish_search(matcher, waiting, interrupt())
        return waiting if waiting.end != "cancelled" else await self._type_interrupt(0)

    async def _type_interrupt(self, step: float) -> _core.Operation:
        """Type one ^C and wait `step` seconds; with 0 type nothing and return the result of a failed interrupt."""
        return await self._complete(lambda core, *notify: core.interrupt(step, 1 if step else 0, None, *notify))

    async def _interrupt_inside(self) -> bool:
        """Send SIGINT inside the sandbox; return False if the shell itself needs it or the sandbox does not answer.

        A late signal could hit the next command: none is sent after this returns.
        """
        until = time.monotonic() + _SIGNAL_SECONDS
        sending = asyncio.ensure_future(background.run(self._signal(processes.INTERRUPT_FOREGROUND, until)))
        try:
            return await asyncio.wait_for(asyncio.shield(sending), _SIGNAL_SECONDS + 0.1) == 0
        except (TimeoutError, SwerexException, OSError):
            return False
        except asyncio.CancelledError:
            await asyncio.wait([sending], timeout=_SIGNAL_SECONDS)
            raise
        finally:
            sending.add_done_callback(retrieve_exception)

    async def _kill_foreground(self, *, again: bool = True) -> bool:
        """Kill the foreground processes or those the shell waits for; end the input that the shell itself reads."""
        self._held = ""
        core = self.core
        facts = core.facts()
        prompt = (self._prompt or b"").decode(errors="replace").strip()
        try:
            code = await background.run(self._signal(processes.KILL_FOREGROUND, facts["commenced"] / 1e9, prompt))
        except TimeoutError:
            return False
        if code == _AT_PROMPT:  # the interrupt has ended the command, but no prompt was seen
            if core.resync(facts["commands"]) or not again:
                return True
            await asyncio.sleep(_ARRIVAL_SECONDS)
            return await self._kill_foreground(again=False)
        if code in (1, _SHELL_READS):
            self._held = _HELD_BY_SHELL
        return core.type(_END_OF_INPUT) if code == _SHELL_READS else code == 0

    async def _signal(self, script: str, moment: float, *words: str) -> int:
        """Run a script that signals the foreground processes, and return its exit code.

        Args:
            moment: a time of this machine's monotonic clock. The script gets it in hundredths of a second of the
                sandbox's clock, at the earliest and at the latest, because its clock is read while the script starts.
        """
        asked = time.monotonic()
        async with asyncio.timeout(_ASK_SECONDS):
            async with await self.sandbox.start(script, self.mark, *words, kind=REUSABLE) as running:
                clock = await running.read_line()
                known = re.fullmatch(rb"[0-9]+\.[0-9]+\n", clock)
                bounds = (time.monotonic(), asked - 0.01) if known else ()  # the clock shows hundredths of a second
                there = (b"%d" % ((moment + float(clock) - bound) * 100) for bound in bounds)
                return (await running.collect(b" ".join(there) + b"\n", None)).code

    async def close(self, *, inside: bool = True) -> models.CloseBashSessionResponse:
        """End the shell and everything that it started in the sandbox.

        Returns when all of it is gone. Processes that cannot be ended in a few seconds are left, and a warning is
        logged. A lost sandbox is no error.

        Args:
            inside: False if the caller ends all processes of the runtime in the sandbox. Only the client, and a shell
                that is not ready yet, are ended here.
        """
        await self._forbid_start()
        started, self._started = self._started, False
        is_lost = any(isinstance(cause, SandboxLostError) for cause in self._end_cause)
        inside = started and not is_lost and (inside or not self._ready)
        if inside and not self._ready and self._core is not None and not self._core.facts()["dead"]:
            # The client has requested a shell, or is about to. Once it is closed, the shell's start would go unnoticed.
            await background.run(self.sandbox.end_marked(self.mark, _LATE_SECONDS))
        answer = await super().close()
        if inside:
            if left := await background.run(self.sandbox.end_marked(self.mark)):
                self.logger.warning("%s", left)
        return answer
