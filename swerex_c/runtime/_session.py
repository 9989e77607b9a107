"""A persistent bash over the core.

A command goes to the shell in the calling thread; if the event loop has nothing else to do, that thread also waits for
a moment by itself, so that a short command ends without any thread being woken. What takes longer goes on in the core's
own thread, and the loop is told when it is done.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import re
import secrets
import shlex
import time
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from swerex_c import _core
from swerex_c.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    InvalidInputError,
    NoExitCodeError,
    NonZeroExitCodeError,
    SessionDiedError,
    SessionNotInitializedError,
)
from swerex_c.runtime._answers import (
    Answer,
    cause,
    check_seconds,
    death,
    failure,
    finish,
    resource_error,
    shown,
    translate,
)
from swerex_c.runtime._patterns import WindowMatcher, make_matcher
from swerex_c.runtime._starts import starts
from swerex_c.runtime._syntax import encode, find_bash, judge
from swerex_c.runtime._wakeup import current_waker
from swerex_c.runtime._watch import Stream, Watch
from swerex_c.runtime.abstract import (
    Action,
    BashAction,
    BashInterruptAction,
    BashObservation,
    CloseBashSessionResponse,
    CloseSessionResponse,
    CreateBashSessionRequest,
    CreateBashSessionResponse,
    CreateSessionResponse,
    Observation,
)
from swerex_c.runtime.config import OUTPUT_LIMIT
from swerex_c.utils.log import get_logger

if TYPE_CHECKING:
    import logging
    from collections.abc import AsyncIterator, Coroutine, Iterator

    from swerex_c.runtime._warm import WarmShells

__all__ = ["CARRIED_BASH", "CARRIED_VARIABLES", "STARTUP_FILES", "BashSession", "Session", "translated"]

CARRIED_BASH = ("bash", "--noprofile", "--norc", "--noediting", "-i")
"""What the program that `BashSession._spawn` names has to start in its place."""

CARRIED_VARIABLES = ("PS0", "PS1", "PS2", "TERM")
"""The variables of that program's environment which have to reach the bash that it starts."""

_PROMPT = "SHELLPS1PREFIX"
"""The `expect_string` of an action that the shell's prompt finished: the constant that callers know."""

_DIRECT_MICROSECONDS = 150
"""How long the calling thread waits by itself for a short command. An event loop does not notice it."""

_DIRECT_CARRIED_MICROSECONDS = 1000
"""The same where a carrier is between: some times what most need for a short command, whose time varies there."""

_BEFORE_STARTUP_SECONDS = 0.35
"""The original waits so long for a new shell before `startup_timeout` begins, and callers' limits fit that."""

_DIRECT_START_MICROSECONDS = 500
"""The same while a shell that waited reads its startup files: to start one instead would take many times that."""

_TICK_MICROSECONDS = 4000
"""How much longer than that it may wait in vain, where the last commands were short and the loop has no timer to serve:
a timer that can wait for the kernel's next tick costs nothing, and another one as much as the command."""

_TRUSTED = 8
"""So many commands in a row have to have been short before that."""

_SHORT = 2e-6
"""Seconds for each microsecond of that: a command that ended in less while others were served is a short one again."""

_TAKEN_AT_ONCE = 256 << 10
"""Bytes of a stream for which the loop does nothing else."""

_KILLS = 3
"""So often what ignores interrupts is killed in another place, if that does not bring the prompt back."""

_KILL_SECONDS = 2.0
"""How long a shell in another place may take to its prompt when what ran in it was killed."""

_STARTUP = """\
[[ ! -r /etc/bash.bashrc ]] || . /etc/bash.bashrc
[[ ! -r ~/.bashrc ]] || . ~/.bashrc
"""
"""What an interactive bash reads by itself. It is started without them, so that the session is in control before they
are read and a startup file cannot get in its way."""


_NO_LOGOUT = "[[ ! -v TMOUT ]] || builtin unset -v TMOUT 2>&- || builtin :"
"""Behind the startup files: a shell that nobody says anything to for some minutes has to be there afterwards."""

_NO_TRACE = b"builtin history -d -1 2>/dev/null || builtin :"
"""Behind files that a session has sourced for us: the command that did it is none of the user's."""

STARTUP_FILES = (_STARTUP + _NO_LOGOUT + "\n").encode()
"""The startup script of a session without `startup_source`."""


class Session(ABC):
    """What runs in a runtime under a name."""

    @abstractmethod
    async def start(self) -> CreateSessionResponse:
        """Make it ready for actions."""

    @abstractmethod
    async def run(self, action: Action) -> Observation:
        """Do one thing in it."""

    @abstractmethod
    async def close(self) -> CloseSessionResponse:
        """End it."""


class BashSession(Session):
    """A persistent bash on a terminal of its own.

    Calls are served in the order in which they come; an interrupt overtakes. They may come from any event loop and any
    thread.

    For a shell in another place (a container, another machine) a subclass overrides `_spawn` and, to end what ignores
    an interrupt, `_kill_foreground`; see there. Working directory, variables and startup files are then those of that
    place. Closing ends the shell if it is idle, and in any case the program that carries its terminal; processes that
    are left in the place are the subclass's to end.
    """

    def __init__(
        self,
        request: CreateBashSessionRequest,
        *,
        logger: logging.Logger | None = None,
        output_limit: int = OUTPUT_LIMIT,
        warm: WarmShells | None = None,
    ):
        """`warm`: where a shell may be that waits to become this session."""
        self.request = request
        self._warm = warm
        self.logger = logger or get_logger("rex-session")
        self._core: _core.Session | None = None
        self._output_limit = output_limit
        self._skip_direct = 0
        self._skip_next = 0
        self._short_ones = 0
        self._checked: dict[str, bool] = {}
        self._direct_microseconds = _DIRECT_MICROSECONDS
        self._missing = ""
        self._patience: float | None = None

    @property
    def core(self) -> _core.Session:
        if self._core is None:
            msg = "shell not initialized"
            raise SessionNotInitializedError(msg)
        return self._core

    @property
    def pid(self) -> int:
        """The shell's process id."""
        return self.core.facts()["pid"]

    # -- start and end

    def _spawn(self) -> tuple[list[bytes] | None, list[bytes], bytes | None]:
        """What is executed: its argv (None: bash itself), its whole environment (`b"NAME=value"`), and its directory.

        With an argv it is a program that carries the terminal of a bash elsewhere, such as `docker exec -it`. It has to
        start `CARRIED_BASH` and to hand it `CARRIED_VARIABLES` from its own environment, where the core puts PS0, PS1
        and PS2; TERM is for the override to set. The environment and the directory are those of the program on this
        machine: the request's `env`, `cwd` and startup files are seen to by the startup script, inside.
        """
        cwd = self.request.cwd
        return None, self._environment(), None if cwd is None else os.fsencode(cwd)

    async def _kill_foreground(self) -> bool:
        """End what runs in the foreground by other means than its terminal, because it ignores interrupts.

        Only asked for with an argv; else the core does it. False: there is no way.
        """
        return False

    async def _died(self, answer: Answer) -> None:
        """Called with an answer that says that the shell has ended. May raise a truer error than would be made of it.

        Behind a program that carries the terminal it is that program that has ended, with an exit code of its own
        perhaps. `answer.typed` tells whether the command had reached the shell.
        """

    def _environment(self) -> list[bytes]:
        variables = {**os.environ, **(self.request.env or {})}
        for name in ("PS0", "PS1", "PS2"):
            variables.pop(name, None)
        try:
            return [os.fsencode(name) + b"=" + os.fsencode(value) for name, value in variables.items()]
        except UnicodeEncodeError as e:
            msg = f"The environment of a session has to be text that can be encoded: {e}"
            raise InvalidInputError(msg) from None

    def _startup_script(self, files: str = _STARTUP, end: str = "\n") -> bytes:
        lines = [files]
        for name in self.request.startup_source:
            path = os.path.expanduser(name)
            # A shell itself does not mind when its own startup file is not there, and callers name it everywhere.
            if not os.path.exists(path) and os.path.basename(path) != ".bashrc":
                msg = f"The startup file {name!r} does not exist"
                raise InvalidInputError(msg)
            if os.path.exists(path):
                lines.append(f". {shlex.quote(path)}{end}")
        script = encode("".join([*lines, _NO_LOGOUT, end]))
        if any(len(line) > 4000 for line in script.splitlines()):
            msg = "The path of a startup file is too long"
            raise InvalidInputError(msg)
        return script

    def _carried_script(self) -> bytes:
        """The startup script for a bash in another place, where nothing can be looked at beforehand."""
        request = self.request
        variables = {k: v for k, v in (request.env or {}).items() if k not in ("PS0", "PS1", "PS2")}
        self._missing = secrets.token_hex(16)
        fail = f"{{ builtin echo {self._missing}%d; builtin exit 1; }}"
        lines = []
        if variables:
            lines.append("builtin export " + " ".join(f"{k}={shlex.quote(v)}" for k, v in variables.items()))
        if request.cwd is not None:
            lines.append(f"builtin cd -- {shlex.quote(request.cwd)} 2>/dev/null || {fail % 0}; builtin unset OLDPWD")
        script = b"".join(_core.quote("eval", encode(line)) for line in lines) + encode(_STARTUP)
        for number, name in enumerate(request.startup_source, 1):
            file = _expandable(name)
            # A missing .bashrc does not matter: see _startup_script.
            otherwise = ":" if os.path.basename(name) == ".bashrc" else fail % number
            line = f"if [[ -e {file} ]]; then . {file}; else {otherwise}; fi"
            script += _core.quote("eval", encode(line)) if len(line) > 900 else encode(line + "\n")
        return script + encode(_NO_LOGOUT + "\n")

    def _check_request(self, carried: bool) -> None:
        request = self.request
        check_seconds(request.startup_timeout, "startup_timeout")
        if not carried and request.cwd is not None and not os.path.isdir(request.cwd):
            msg = f"The directory {request.cwd!r} that the session should start in does not exist"
            raise InvalidInputError(msg)
        for name, value in (request.env or {}).items():
            if not name or "=" in name or "\0" in name or "\0" in value:
                msg = f"{name!r} cannot be the name of an environment variable, or its value holds a NUL byte"
                raise InvalidInputError(msg)

    async def start(self) -> CreateBashSessionResponse:
        """Start the shell and read the startup files. On failure nothing is left of it."""
        if self._warm is not None and (answer := await self._start_warm(self._warm)) is not None:
            return answer
        argv, environment, directory = self._spawn()
        self._check_request(argv is not None)
        script = self._startup_script() if argv is None else self._carried_script()
        request = self.request
        if argv is not None:
            self._direct_microseconds = _DIRECT_CARRIED_MICROSECONDS
        file = b"bash" if argv is not None else os.fsencode(find_bash())
        limit = self._output_limit

        def begin() -> None:
            self._core = _core.Session(file, environment, directory, request.rows, request.columns, limit, argv=argv)

        with starts.used():
            try:
                await starts.start(begin)
            except asyncio.CancelledError:
                await asyncio.shield(self.close())  # it may have begun
                raise
            except (OSError, MemoryError) as e:
                raise resource_error(e, "A session cannot be started") from e
            except ValueError as e:
                raise InvalidInputError(f"A session cannot be started: {e}") from None
            operation = await self._begin(script, argv, request.startup_timeout)
        return CreateBashSessionResponse(output=operation.output)

    async def _start_warm(self, warm: WarmShells) -> CreateBashSessionResponse | None:
        """The same with a shell that waits. None: there is none, and nothing was done."""
        request = self.request
        self._check_request(False)
        script, rest = self._startup_script(), self._startup_script("", "; ")
        shell = warm.take(request)
        if shell is None:
            return None
        self._core = shell.core
        before, timeout = shell.output, request.startup_timeout
        try:
            if before is None:
                script = shell.resume() + script
            elif not request.startup_source:
                return CreateBashSessionResponse(output=before)
            else:
                script = rest + _NO_TRACE
                timeout -= shell.seconds
            operation = await self._begin(script, None, timeout, _DIRECT_START_MICROSECONDS, started=before is not None)
        finally:
            asyncio.get_running_loop().call_soon(warm.refill)  # its thread would want the interpreter now
        if operation.begun:
            return CreateBashSessionResponse(output=(before or "") + operation.output)
        await asyncio.shield(self.close())
        return None

    async def _begin(
        self, script: bytes, argv: list[bytes] | None, timeout: float, direct: int = 0, *, started: bool = False
    ) -> _core.Operation:
        """Have the shell that was started read its startup files, from its first prompt on.

        Args:
            timeout: seconds that these may take.
            direct: for one that is there already, microseconds for which the calling thread may wait by itself. If that
                one has ended before it was asked for anything, this is an operation that has not `begun`.
            started: it has read startup files before: the script is a command.
        """
        try:
            waker = current_waker()
            future = waker.create_future()
            core = self.core
            warm = direct > 0
            if waker.ready or waker.pending:
                direct = 0
            with translated():
                limit = timeout + _BEFORE_STARTUP_SECONDS
                if started:
                    command = script.decode("utf-8", "surrogateescape")
                    operation = core.run(command, 1, limit, None, None, waker.core, future, None, direct)
                else:
                    operation = core.start(script, limit, waker.core, future, self._patience, direct)
            await finish(operation, future)
            if warm and operation.end == "died" and not operation.begun:
                return operation
            if operation.end in ("died", "lost") and not (self._missing and self._missing in operation.output):
                await self._died(operation)
            self._check_started(operation, argv)
        except BaseException:
            await asyncio.shield(self.close())
            raise
        return operation

    def _check_started(self, operation: _core.Operation, argv: list[bytes] | None) -> None:
        end = operation.end
        if end == "done":
            return
        if argv is not None:
            self._check_carrier(operation, os.fsdecode(argv[0]))
        if end == "timeout":
            msg = f"timeout after {self.request.startup_timeout} seconds while reading the startup files"
            raise CommandTimeoutError(msg, output=operation.output)
        if end == "died":
            how = cause(operation)
            msg = f"The shell ended while it read its startup files. {how} It printed: {operation.output!r}"
            raise SessionDiedError(msg, **death(operation))
        raise failure(operation, "<startup files>")

    def _check_carrier(self, operation: _core.Operation, program: str) -> None:
        end, output = operation.end, operation.output
        if end == "died" and not operation.typed:
            msg = f"No shell could be started by {program!r}. {cause(operation)} It printed: {output.strip()!r}"
            raise SessionDiedError(msg, **death(operation))
        if end == "died" and self._missing in output:
            number = int(output.partition(self._missing)[2].split()[0])
            what = f"The directory {self.request.cwd!r} that the session should start in"
            if number:
                what = f"The startup file {self.request.startup_source[number - 1]!r}"
            raise InvalidInputError(what + " does not exist")
        if end == "lost" or (end == "timeout" and not operation.typed):
            msg = f"{program!r} showed no shell's prompt. It printed: {output.strip()!r}"
            raise CommandTimeoutError(msg, output=output)

    async def close(self) -> CloseBashSessionResponse:
        """End the shell and everything it started, whatever that has become. Returns when all of it is gone."""
        core, self._core = self._core, None
        if core is not None:
            waker = current_waker()
            future = waker.create_future()
            with translated():
                operation = core.close(waker.core, future)
            while not operation.done:
                try:
                    await asyncio.shield(future)
                except asyncio.CancelledError:
                    # The core ends the session all the same.
                    raise
        return CloseBashSessionResponse()

    def interact(self, input_fd: int = 0, output_fd: int = 1) -> int:
        """Attach a person: read lines from `input_fd`, show on `output_fd`, until the end of input or of the shell.

        Blocks. While a command runs, every key goes to it as it is. Returns the exit code of the last command.
        """
        from swerex_c.runtime._attach import attach

        return attach(self.core, input_fd, output_fd)

    # -- running

    def run(self, action: Action) -> Coroutine[Any, Any, BashObservation]:
        """Run a command, send a line to a program, or interrupt what runs; see `AbstractRuntime.run_in_session`."""
        if type(action) is not BashAction and action.action_type == "bash_interrupt":
            return self.interrupt(action)
        values = action.__dict__ if type(action) is BashAction else _values(action)
        if values["is_interactive_command"] or values["is_interactive_quit"]:
            return self._run_interactive(action, None)
        return self._run_normal(action, None)

    async def stream(self, action: BashAction) -> AsyncIterator[str | BashObservation]:
        """Run an action and yield its output as text while it comes; at last the observation."""
        stream = Stream()
        run = self._run_interactive if action.is_interactive_command or action.is_interactive_quit else self._run_normal
        task = asyncio.ensure_future(run(action, stream))
        task.add_done_callback(lambda _: stream.news.set())
        decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        strip = _core.Strip()
        try:
            first: set[asyncio.Future[Any]] = {stream.source, task}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            source = stream.source.result() if stream.source.done() else None
            while source is not None:
                finished = task.done()
                stream.news.clear()
                taken = 0
                while data := source.take():
                    if text := decoder.decode(strip.feed(data)):
                        yield text
                    taken += len(data)
                    if taken >= _TAKEN_AT_ONCE:  # who reads may wait for nothing, and the loop has more to do
                        taken = 0
                        await asyncio.sleep(0)
                if finished:
                    break
                await stream.news.wait()
            if rest := decoder.decode(strip.finish(), True):
                yield rest
            yield await task
        finally:
            if not task.done():
                task.cancel()

    async def interrupt(self, action: BashInterruptAction) -> BashObservation:
        """End what runs: SIGINT up to `n_retry` times, `timeout` seconds apart, then the foreground is killed."""
        check_seconds(action.timeout, "timeout")
        if action.n_retry < 0:
            msg = f"n_retry has to be a number that is not negative: {action.n_retry!r}"
            raise InvalidInputError(msg)
        matcher, watch = self._matcher(action.expect, None)
        answer = await (self._interrupt(action, matcher) if watch is None else self._interrupt_watched(action, watch))
        kills = _KILLS
        while answer.end == "timeout" and kills and await self._kill_foreground():
            answer = await self._wait_idle(_KILL_SECONDS)
            kills -= 1
            if answer.end == "timeout" and kills:  # it was one of many, in a loop
                again = BashInterruptAction(timeout=_KILL_SECONDS / 10, n_retry=1)
                answer = await self._interrupt(again, None)
        if answer.end == "died":
            await self._died(answer)
        if answer.end in ("done", "matched"):
            expect_string = action.expect[answer.hit] if answer.end == "matched" else _PROMPT
            return BashObservation(output=answer.output.strip(), exit_code=0, expect_string=expect_string)
        if answer.end == "timeout":
            msg = "Failed to interrupt session: the running command ignores SIGINT and could not be killed"
            raise CommandTimeoutError(msg, output=answer.output)
        raise failure(answer, "<interrupt>")

    async def _wait_idle(self, seconds: float) -> Answer:
        """Wait until nothing runs. The answer has the output of what runs for nobody."""
        waker = current_waker()
        future = waker.create_future()
        core = self.core
        with translated():
            operation = core.line(b"", seconds, None, None, waker.core, future, None)
        await finish(operation, future)
        return operation

    async def _interrupt(self, action: BashInterruptAction, matcher: _core.Matcher | None) -> _core.Operation:
        waker = current_waker()
        future = waker.create_future()
        core = self.core
        with translated():
            operation = core.interrupt(min(action.timeout, 3600.0), action.n_retry, matcher, waker.core, future)
        await finish(operation, future)
        return operation

    async def _interrupt_watched(self, action: BashInterruptAction, watch: Watch) -> Answer:
        """An interrupt has no output of its own to look at. Something that waits for what runs now has."""
        waker = current_waker()
        future = waker.create_future()
        core = self.core
        with translated():
            waiting = core.line(b"", None, None, None, waker.core, future, watch.news)
        look = asyncio.ensure_future(watch.finish(waiting, future))
        end = asyncio.ensure_future(self._interrupt(action, None))
        try:
            await asyncio.wait({look, end}, return_when=asyncio.FIRST_COMPLETED)
            if end.done() and end.result().end != "done":
                return end.result()
            return await look
        finally:
            for task in (look, end):
                task.cancel()
            await asyncio.gather(look, end, return_exceptions=True)

    async def _run_normal(self, action: BashAction, stream: Stream | None) -> BashObservation:
        values = action.__dict__ if type(action) is BashAction else _values(action)
        timeout = values["timeout"]
        command = values["command"]
        operation = await self._submit(action, command, timeout, stream)
        if operation.__class__ is _core.Operation and operation.long:  # to make its text would hold the loop up
            waker = current_waker()
            made = waker.create_future()
            if operation.make(waker.core, made):
                await made
        end = operation.end
        if end == "done":
            code: int | None = operation.code
            output = operation.output
            dropped = operation.dropped
            check = values["check"]
            if check == "raise" and code != 0:
                raise _non_zero(action, code, output)
            return _observation(output, None if check == "ignore" else code, _PROMPT, "", dropped)
        if end == "matched":
            return await self._after_match(action, operation)
        if end == "died":
            await self._died(operation)
        if end == "died" and operation.typed:
            code = operation.code
            if action.check == "raise" and code != 0:
                raise _non_zero(action, code, operation.output)
            reason = f"The command ended the session's shell. {cause(operation)}"
            code = None if action.check == "ignore" else code
            return _observation(operation.output, code, "", reason, operation.dropped)
        raise failure(operation, command, timeout, action.no_output_timeout)

    def _matcher(self, expect: list[str], stream: Stream | None) -> tuple[_core.Matcher | None, Watch | None]:
        """What looks for the patterns: the core, or, if they are more than it can do, a watch here."""
        if not expect:
            return None, None
        matcher = make_matcher(expect)
        if isinstance(matcher, WindowMatcher):
            return None, Watch(matcher, self._output_limit, stream)
        return matcher, None

    async def _submit(self, action: BashAction, command: str, timeout: float | None, stream: Stream | None) -> Answer:
        values = action.__dict__ if type(action) is BashAction else _values(action)
        quiet = values["no_output_timeout"]
        if timeout is not None or quiet is not None:
            check_seconds(timeout, "timeout")
            check_seconds(quiet, "no_output_timeout")
        matcher = watch = news = None
        if stream is not None:
            news = stream.news
        if values["expect"]:
            matcher, watch = self._matcher(values["expect"], stream)
            if watch is not None:
                news = watch.news
        waker = current_waker()
        direct = slack = 0
        if not waker.ready and not waker.pending and news is None:  # nothing else is to be done, or waited for
            if self._skip_next:
                self._skip_next -= 1
            else:
                direct = self._direct_microseconds
                if self._short_ones >= _TRUSTED and waker.has_time(2e-6 * _TICK_MICROSECONDS):
                    slack = _TICK_MICROSECONDS
        core = self._core or self.core
        checked = self._checked.get(command, -1) if self._checked else -1
        try:
            operation = core.run(command, checked, timeout, quiet, matcher, waker.core, None, news, direct, slack)
        except (ValueError, OSError, MemoryError, RuntimeError) as e:
            raise translate(e) from e
        if watch is None and operation.done and not operation.held:
            if direct:
                self._skip_direct = 0
                self._short_ones += 1
            if stream is not None:
                stream.source.set_result(operation)
            return operation
        # Only now, because a short command needs none. Nothing is lost: this thread asks the waker, and later.
        operation.future = future = waker.create_future()
        if operation.held:
            if not await self._release(operation, command):
                checked = await self._ask_bash(command, b"-O", b"extglob")
                future = waker.create_future()
                with translated():
                    operation = core.run(command, checked, timeout, quiet, matcher, waker.core, future, news, 0)
        if stream is not None:
            stream.source.set_result(watch or operation)
        if watch is not None:
            return await watch.finish(operation, future)
        if operation.done:
            if direct:
                self._skip_direct = 0
            return operation
        self._short_ones = 0
        if direct:  # it was not a short one: the next ones may not be either
            self._skip_direct = self._skip_next = min(2 * self._skip_direct + 1, 63)
        start = time.perf_counter()
        waker.pending += 1
        try:
            await future
        except BaseException:
            operation.cancel()
            raise
        finally:
            waker.pending -= 1
        if time.perf_counter() - start < _SHORT * self._direct_microseconds:
            self._skip_direct = self._skip_next = 0
        return operation

    async def _release(self, operation: _core.Operation, command: str) -> bool:
        """Let a command begin that keeps its place in the queue meanwhile, when bash has accepted it.

        False: it has given up its place, because the session's shell takes patterns like !(a) for syntax (it has
        extglob switched on, which only the shell itself knows), and the command has to be judged by that.
        """
        try:
            accepted = await self._ask_bash(command)
            with translated():
                operation.release(accepted)
        except BashIncorrectSyntaxError:
            operation.cancel()
            if "(" not in command or not await self._has_extglob():
                raise
            return False
        except BaseException:
            operation.cancel()
            raise
        return True

    async def _ask_bash(self, command: str, *options: bytes) -> int:
        """1: bash accepts the command; 0: it does, but the text's end ends a here-document."""
        text = encode(command)
        if b"extglob" in text and b"shopt" in text:
            options = (b"-O", b"extglob")  # it is on when the lines that need it are read
        bash = os.fsencode(find_bash())
        accepted = await _bash_n(command, [bash, *options, b"-n"], text)
        if len(command) <= 4096 and not options:
            if len(self._checked) >= 256:
                self._checked.pop(next(iter(self._checked)))
            self._checked[command] = accepted
        return int(accepted)

    async def _has_extglob(self) -> bool:
        question = "( s=$?; case :$BASHOPTS: in *:extglob:*) builtin echo on;; esac; exit $s )"
        waker = current_waker()
        future = waker.create_future()
        core = self.core
        with translated():
            operation = core.run(question, 1, 5.0, None, None, waker.core, future, None, 0)
        await finish(operation, future)
        return operation.end == "done" and operation.output.strip() == "on"

    async def _after_match(self, action: BashAction, operation: Answer) -> BashObservation:
        """A pattern of a normal command was seen. Give it a moment to end, because then it has an exit code."""
        output = operation.output
        expect_string = action.expect[operation.hit]
        if action.check == "ignore":
            return _observation(output, None, expect_string, "", operation.dropped)
        waker = current_waker()
        future = waker.create_future()
        core = self.core
        with translated():
            rest = core.line(b"", 1.0 if action.check == "raise" else 0.2, None, None, waker.core, future, None)
        await finish(rest, future)
        if rest.end == "done":
            output += rest.output
            if action.check == "raise" and rest.code != 0:
                raise _non_zero(action, rest.code, output)
            return _observation(output, rest.code, expect_string, "", operation.dropped)
        if action.check == "raise":
            what = shown(action.command)
            msg = f"The command {what} printed {expect_string!r} and still runs, so it has no exit code"
            raise NoExitCodeError(msg)
        return _observation(output, None, expect_string, "", operation.dropped)

    async def _run_interactive(self, action: BashAction, stream: Stream | None) -> BashObservation:
        check_seconds(action.timeout, "timeout")
        check_seconds(action.no_output_timeout, "no_output_timeout")
        line = encode(action.command) + b"\n"
        matcher, watch = self._matcher(action.expect, stream)
        news = watch.news if watch is not None else stream.news if stream is not None else None
        waker = current_waker()
        future = waker.create_future()
        core = self.core
        with translated():
            operation = core.line(line, action.timeout, action.no_output_timeout, matcher, waker.core, future, news)
        if stream is not None:
            stream.source.set_result(watch or operation)
        answer: Answer = operation
        if watch is None:
            await finish(operation, future)
        else:
            answer = await watch.finish(operation, future)
        end = answer.end
        output = answer.output
        if not action.is_interactive_quit:
            output = output.lstrip().removeprefix(action.command).strip()
        if end in ("done", "matched"):
            expect_string = action.expect[answer.hit] if end == "matched" else _PROMPT
            return _observation(output, 0, expect_string, "", answer.dropped)
        if end == "died":
            await self._died(answer)
        if end == "died" and answer.typed:
            reason = f"The command ended the session's shell. {cause(answer)}"
            return _observation(output, answer.code, "", reason, answer.dropped)
        raise failure(answer, action.command, action.timeout, action.no_output_timeout)


def _expandable(name: str) -> str:
    """The name of a file, quoted for bash but for a `~` or `~user` at its beginning."""
    home, slash, rest = name.partition("/")
    if not re.fullmatch(r"~[\w.-]*", home, re.ASCII):
        return shlex.quote(name)
    return home + slash + (shlex.quote(rest) if rest else "")


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """What the core raises at the start of an operation becomes one of our own."""
    try:
        yield
    except (ValueError, OSError, MemoryError, RuntimeError) as e:
        raise translate(e) from e


async def _bash_n(command: str, argv: list[bytes], text: bytes) -> bool:
    waker = current_waker()
    future = waker.create_future()
    try:
        process = _core.Process(argv[0], argv, None, None, text, False, None, 1 << 20, waker.core, future)
    except (OSError, MemoryError) as e:
        raise resource_error(e, "bash cannot be asked whether it accepts the command") from e
    await finish(process, future)
    return judge(command, process.returncode, process.stdout, process.stderr)


def _values(action: BashAction) -> dict[str, Any]:
    """The fields by name of what may be another class than `BashAction`.

    Of that one `__dict__` has them, each for a tenth of what an attribute of a model costs.
    """
    return {name: getattr(action, name) for name in BashAction.model_fields}


_OBSERVED = frozenset({"output", "exit_code", "failure_reason", "expect_string", "output_dropped"})


def _observation(output: str, code: int | None, expect_string: str, reason: str, dropped: int) -> BashObservation:
    """`BashObservation(...)` of values known to be right: what `model_construct` does, in a tenth of its time."""
    values = {
        "output": output,
        "exit_code": code,
        "failure_reason": reason,
        "expect_string": expect_string,
        "session_type": "bash",
        "output_dropped": dropped,
    }
    return _core.model(BashObservation, values, _OBSERVED)


def _non_zero(action: BashAction, code: int | None, output: str) -> NonZeroExitCodeError:
    msg = f"Command {shown(action.command)} failed with exit code {code}. Here is the output:\n{output!r}"
    if action.error_msg:
        msg = f"{action.error_msg}: {msg}"
    return NonZeroExitCodeError(msg)
