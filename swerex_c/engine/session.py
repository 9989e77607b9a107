"""A persistent bash session over the core.

The calling thread writes a command to the shell. If the event loop would sleep otherwise, that thread also waits for a
few milliseconds, or until something would wake the loop, so that a short command ends without waking another thread. A
longer command goes on in the core's own thread, which notifies the event loop when the command has ended.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import re
import secrets
import threading
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from swerex_c import _core
from swerex_c.engine import spawner
from swerex_c.engine.completions import current_completions, end_shell
from swerex_c.engine.execute import as_bytes, encode_variables, find_program
from swerex_c.engine.foreground import reader_of_terminal
from swerex_c.engine.outcomes import (
    death_details,
    death_reason,
    failure,
    finish,
    retrieve_exception,
    shorten,
    start_error,
    translated,
    validate_seconds,
)
from swerex_c.engine.output import OutputStream
from swerex_c.engine.patterns import make_matcher
from swerex_c.engine.prompt_hook import add_probe, remove_probe
from swerex_c.engine.search import Search, finish_search, patterns_of
from swerex_c.engine.startup_files import READ_BY_BASH, SET_BY_CORE, check_request, environment, startup_script
from swerex_c.engine.syntax import check_result, encode, english_environment, find_bash
from swerex_c.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    InvalidInputError,
    NoExitCodeError,
    NonZeroExitCodeError,
    RuntimeClosedError,
    SessionDiedError,
    SessionNotInitializedError,
)
from swerex_c.models import (
    OUTPUT_LIMIT,
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
    attempt_seconds,
    startup_seconds,
)
from swerex_c.utils.log import get_logger
from swerex_c.utils.wait import settle

if TYPE_CHECKING:
    import logging
    from collections.abc import AsyncIterator, Callable, Coroutine, Iterator

    from swerex_c.engine.prestarted import PrestartedShells

__all__ = ["TRANSPORT_BASH", "TRANSPORT_VARIABLES", "BashSession", "Session"]

TRANSPORT_BASH = ("bash", "--noprofile", "--norc", "--noediting", "-i")
"""Command line of the bash that the program named by `BashSession._spawn` has to start."""

TRANSPORT_VARIABLES = (*SET_BY_CORE, "TERM")
"""Environment variables that this program has to pass on to the bash that it starts."""

_PROMPT = "SHELLPS1PREFIX"
"""The `expect_string` of an action that ended at the shell's prompt: the constant that callers know from SWE-ReX."""

_BEFORE_STARTUP_SECONDS = 0.35
"""Seconds that SWE-ReX waits for a new shell before `startup_timeout` begins; the limits of callers fit that."""

_TAKEN_AT_ONCE = 256 << 10
"""Bytes of a stream to process before the event loop gets a turn."""

_SHOWN = 200
"""Maximum characters of the startup files' output in an error."""

_GRACE = {"raise": 1000, "silent": 200, "ignore": 0}
"""Milliseconds to wait after a match for the command's end and its exit code, by `check`."""

_READS = re.compile(r"\b(read|mapfile|readarray|select)\b")
"""Builtins and syntax with which the shell itself reads."""

_KILLS = 3
"""Maximum number of kills in a sandbox of a command that ignores interrupts, until the prompt is back."""

_KILL_SECONDS = 2.0
"""Seconds for a shell in a sandbox to return to its prompt after its foreground was killed."""


class Session(ABC):
    """A named session of a runtime."""

    @abstractmethod
    async def start(self) -> CreateSessionResponse:
        """Start the session and make it ready for actions."""

    @abstractmethod
    async def run(self, action: Action) -> Observation:
        """Run an action in the session."""

    @abstractmethod
    async def close(self) -> CloseSessionResponse:
        """End the session."""


class BashSession(Session):
    """A persistent bash with its own terminal.

    Calls are served in the order of their arrival, except that an interrupt overtakes others. They may come from any
    event loop and any thread.

    For a shell in a sandbox (a container, another machine), a subclass overrides `_spawn` and, to end commands that
    ignore an interrupt, `_kill_foreground`. Working directory, variables and startup files are then those of the
    sandbox. Closing ends the shell if it is idle, and in any case the client that carries its terminal. The subclass
    has to end processes that are left in the sandbox.
    """

    def __init__(
        self,
        request: CreateBashSessionRequest,
        *,
        logger: logging.Logger | None = None,
        output_limit: int = OUTPUT_LIMIT,
        prestarted: PrestartedShells | None = None,
    ):
        """`prestarted`: waiting shells, one of which may become the shell of this session."""
        self.request = request
        self._prestarted = prestarted
        self.logger = logger or get_logger("rex-session")
        self._core: _core.Session | None = None
        self._starting = threading.Lock()
        """Held while a shell is created. Never held during an await."""
        self._closed = False
        self._output_limit = output_limit
        self._token = secrets.token_hex(16)
        """Text that begins what the startup script prints for this object."""
        self._held = ""  # why the last interrupt failed, if the core does not report it
        self._patience: float | None = None
        self._is_local = True

    @property
    def core(self) -> _core.Session:
        if self._core is None:
            raise SessionNotInitializedError("shell not initialized")
        return self._core

    # -- start and end

    def _spawn(self) -> tuple[list[bytes] | None, list[bytes], bytes | None]:
        """Return the argv to execute (None: bash itself), its whole environment (`b"NAME=value"`) and its directory.

        An argv names a client that carries the terminal of a bash in a sandbox, such as `docker exec -it`. It has
        to start `TRANSPORT_BASH` and to pass on `TRANSPORT_VARIABLES` from its environment. The core sets `SET_BY_CORE`
        there; the override has to set TERM. The environment and the directory apply to the program on this machine:
        the startup script handles the request's `env`, `cwd` and startup files inside the sandbox.
        """
        cwd = self.request.cwd
        return None, environment(self.request), None if cwd is None else as_bytes(cwd)

    async def _kill_foreground(self) -> bool:
        """Kill the foreground command without using its terminal, because it ignores interrupts.

        Called only with an argv; otherwise the core does it. Returns False if there is no way to do it.
        """
        return False

    def _while_pending(self) -> contextlib.AbstractContextManager[object]:
        """Return a context in which a caller waits for a command that did not end at once."""
        return contextlib.nullcontext()

    async def _died(self, answer: _core.Operation) -> None:
        """Handle an operation that reports the end of the shell.

        May raise a more accurate error than the default. In a sandbox, the client has ended, perhaps with its own exit
        code. `answer.typed` tells whether the command had reached the shell.
        """

    def _startup_script(self) -> bytes:
        return startup_script(self.request, self._token, in_sandbox=not self._is_local)

    async def start(self) -> CreateBashSessionResponse:
        """Start the shell and read the startup files. A failed start leaves nothing behind."""
        request = self.request
        argv, variables, directory = self._spawn()
        self._is_local = argv is None
        check_request(request, in_sandbox=not self._is_local)
        if self._prestarted is not None and (shell := self._prestarted.take(request)) is not None:
            with self._unless_closed():
                self._core = shell.core
            return CreateBashSessionResponse(output=shell.operation.output)
        script = add_probe(self._startup_script(), self._token)

        def begin() -> None:
            size = request.rows, request.columns
            with translated("A session cannot be started"), self._unless_closed():
                program = os.fsencode(find_bash()) if argv is None else find_program(argv[0], os.environ)
                self._core = _core.Session(program, variables, directory, *size, self._output_limit, argv=argv)

        limit = startup_seconds(request) + _BEFORE_STARTUP_SECONDS
        with spawner.used():
            try:
                await spawner.start(begin)
                operation = await self._complete(
                    lambda core, *notify: core.start(script, limit, *notify, self._patience)
                )
                output = await self._startup_output(operation, argv)
            except BaseException:
                if self._core is not None:
                    await settle(self.close())
                raise
        return CreateBashSessionResponse(output=output)

    async def _startup_output(self, operation: _core.Operation, argv: list[bytes] | None) -> str:
        """Return the output of the startup files, or raise the error of a shell that has not read them."""
        end = operation.end
        output = remove_probe(operation.output, self._token, self.logger)
        if missing := output.partition(f"{self._token}: ")[2].partition("\n")[0].strip():
            raise InvalidInputError(missing)
        if end == "done":
            return output
        program = find_bash() if argv is None else os.fsdecode(argv[0])
        if end in ("died", "lost"):
            await self._died(operation)
        if end == "died" and not operation.typed:
            msg = f"{program!r} started no shell. {death_reason(operation)} It printed: {output.strip()!r}"
            raise SessionDiedError(msg, **death_details(operation))
        if end == "died":
            how, files = death_reason(operation), ", ".join([*READ_BY_BASH, *self.request.startup_source])
            msg = f"The shell ended while it read its startup files ({files}). {how} Its last output was "
            msg += repr(output[-_SHOWN:])
            raise SessionDiedError(msg, **death_details(operation))
        if end == "lost" or (end == "timeout" and not operation.typed):
            msg = f"{program!r} showed no shell's prompt. It printed: {output.strip()!r}"
            raise CommandTimeoutError(msg, output=output)
        if end == "timeout":
            printed = f"their last output was {output[-_SHOWN:]!r}" if output else "they printed nothing"
            msg = f"timeout after {startup_seconds(self.request)} seconds while reading the startup files ({printed})"
            raise CommandTimeoutError(f"{msg}: mend them, or set a longer `startup_timeout`", output=output)
        raise failure(operation, "<startup files>")

    async def close(self) -> CloseBashSessionResponse:
        """End the shell and everything it started, in any state.

        Returns when all of it is gone. A start in progress fails: no shell is created afterwards.
        """
        await self._forbid_start()
        core, self._core = self._core, None
        if core is not None:
            await end_shell(core)
        return CloseBashSessionResponse()

    @contextlib.contextmanager
    def _unless_closed(self) -> Iterator[None]:
        """Return a context in which a shell may be created.

        Raises:
            RuntimeClosedError: if the session was closed.
        """
        with self._starting:
            if self._closed:
                raise RuntimeClosedError("The session was closed while it was starting")
            yield

    async def _forbid_start(self) -> None:
        """Forbid the creation of a shell, and wait for another thread that is creating one."""
        self._closed = True
        while self._starting.locked():
            await asyncio.sleep(0.001)

    # -- running

    def run(self, action: Action) -> Coroutine[Any, Any, BashObservation]:
        """Run a command, send a line to a program, or interrupt; see `AbstractRuntime.run_in_session`."""
        if type(action) is not BashAction:
            if action.action_type == "bash_interrupt":
                return self.interrupt(action)
            action = _plain(action)
        return self._run(action, None)

    def _run(self, action: BashAction, stream: OutputStream | None) -> Coroutine[Any, Any, BashObservation]:
        values = action.__dict__
        if values["is_interactive_command"] or values["is_interactive_quit"]:
            return self._run_interactive(action, stream)
        return self._run_normal(values, stream)

    async def stream(self, action: BashAction) -> AsyncIterator[str | BashObservation]:
        """Run an action and yield its output as it arrives, then the observation."""
        stream = OutputStream()
        task = asyncio.ensure_future(self._run(_plain(action), stream))
        task.add_done_callback(lambda _: stream.news.set())
        task.add_done_callback(retrieve_exception)
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
                    if taken >= _TAKEN_AT_ONCE:  # the reader may never wait, and the loop has other work
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
                await asyncio.wait([task])  # until it has withdrawn a command that is still queued

    async def interrupt(self, action: BashInterruptAction) -> BashObservation:
        """End the running command by SIGINT, else by killing the foreground.

        SIGINT is sent up to `n_retry` times, `attempt_seconds` apart.
        """
        validate_seconds(action.timeout, "timeout")
        if action.n_retry < 0:
            raise InvalidInputError(f"n_retry must not be negative: {action.n_retry!r}")
        matcher = make_matcher(action.expect) if action.expect else None
        for _ in range(2):  # cancelled calls withdraw their queued commands first, or the next of these would begin
            await asyncio.sleep(0)
        answer = await self._interrupt(action, matcher)
        kills = _KILLS
        while answer.end == "timeout" and kills and await self._kill_foreground():
            answer = await self._complete(
                lambda core, *notify: core.line(b"", _KILL_SECONDS, None, None, *notify, None)
            )
            kills -= 1
            if answer.end == "timeout" and kills:  # the killed command was one of several in a loop
                again = BashInterruptAction(timeout=_KILL_SECONDS / 10, n_retry=1)
                answer = await self._interrupt(again, None)
        if answer.end == "died":
            await self._died(answer)
        if answer.end in ("done", "matched"):
            expect_string = action.expect[answer.hit] if answer.end == "matched" else _PROMPT
            return BashObservation(output=answer.output.strip(), exit_code=0, expect_string=expect_string)
        if answer.end == "timeout":
            why = answer.error or self._held or "the running command ignores SIGINT and could not be killed"
            raise CommandTimeoutError(f"Failed to interrupt session: {why}", output=answer.output)
        raise failure(answer, "<interrupt>")

    async def _interrupt(self, action: BashInterruptAction, matcher: _core.Matcher | Search | None) -> _core.Operation:
        seconds, tries, patterns = attempt_seconds(action), action.n_retry, patterns_of(matcher)
        return await self._complete(lambda core, *notify: core.interrupt(seconds, tries, patterns, *notify), matcher)

    async def _complete(
        self,
        begin: Callable[..., _core.Operation],
        matcher: _core.Matcher | Search | None = None,
        stream: OutputStream | None = None,
    ) -> _core.Operation:
        """Begin an operation of the core, and return it when it has ended.

        Args:
            begin: function that begins the operation. Its arguments are the core's session, and the queue and the
                future that the core notifies of the end.
            matcher: matcher or search for the operation's output.
            stream: reader of the operation's output.
        """
        queue = current_completions().core
        future = asyncio.get_running_loop().create_future()
        core = self.core
        with translated():
            operation = begin(core, queue, future)
        if stream is not None:
            stream.source.set_result(operation)
        await finish_search(matcher, operation, finish(operation, future))
        return operation

    async def _run_normal(self, values: dict[str, Any], stream: OutputStream | None) -> BashObservation:
        """Run a command, the fields of whose action are `values`.

        If the loop has no other work, the calling thread first waits a moment for the command's end.
        """
        command, timeout, quiet = values["command"], values["timeout"], values["no_output_timeout"]
        if timeout is not None or quiet is not None:
            validate_seconds(timeout, "timeout")
            validate_seconds(quiet, "no_output_timeout")
        matcher = patterns = None
        grace = 0
        news = stream.news if stream is not None else None
        if values["expect"]:
            matcher = make_matcher(values["expect"])
            patterns = patterns_of(matcher, news)
            grace = _GRACE[values["check"]]
        followed = stream is not None or isinstance(matcher, Search)
        completions = current_completions()
        core = self._core or self.core
        try:
            operation = core.run(
                command, -1, timeout, quiet, patterns, completions.core, None, news,
                0 if followed else completions.inline_wait(), completions.wake_fd, grace,
            )  # fmt: skip
        except (ValueError, OSError, MemoryError, RuntimeError) as e:
            raise start_error(e) from e
        if followed or not operation.done or operation.held:
            await self._follow(operation, matcher, values, stream)
        end = operation.end
        if end == "done":
            return _checked(values, operation, _PROMPT)
        if end == "matched":
            return _after_match(values, operation)
        if reason := await self._end_of_shell(operation, operation.begun):
            return _checked(values, operation, "", reason)
        waits = end in ("timeout", "quiet") and operation.typed and self._awaits_input(command)
        raise failure(operation, command, timeout, quiet, waits)

    async def _end_of_shell(self, operation: _core.Operation, has_run: bool) -> str:
        """Return the reason if a command that `has_run` ended the shell with a known exit code, else nothing."""
        if operation.end == "died":
            await self._died(operation)
            if has_run and operation.code >= 0:
                return f"The command ended the session's shell. {death_reason(operation)}"
        return ""

    def _awaits_input(self, command: str) -> bool:
        """Check whether the running command is known to wait for input from its terminal."""
        if not self._is_local or (core := self._core) is None:
            return False
        shell = core.facts()["pid"]
        reader = reader_of_terminal(shell)
        if reader == shell and not _READS.search(command):
            return False  # it may be at its prompt, and the core does not know yet
        return reader is not None and not core.facts()["idle"]

    async def _follow(
        self,
        operation: _core.Operation,
        matcher: _core.Matcher | Search | None,
        values: dict[str, Any],
        stream: OutputStream | None,
    ) -> None:
        """Wait for a command that did not end at once, or whose output is streamed or searched."""
        # Created only now, as a short command needs no future. No wake-up is lost: this thread reads the queue, later.
        future = asyncio.get_running_loop().create_future()
        operation.set_future(future)
        if operation.held:
            await self._release(operation, values["command"], values["timeout"])
        if stream is not None:
            stream.source.set_result(operation)
        completions = current_completions()
        completions.pending += 1
        try:
            with self._while_pending():
                await finish_search(matcher, operation, finish(operation, future))
        finally:
            completions.pending -= 1

    async def _release(self, operation: _core.Operation, command: str, timeout: float | None) -> None:
        """Release a command that is held in the queue, once bash has accepted it."""
        try:
            try:
                accepted = await self._ask_bash(command)
            except BashIncorrectSyntaxError:
                if "(" not in command:
                    raise
                accepted = await self._ask_bash(command, b"-O", b"extglob")  # patterns like !(a) are syntax only then
                if not await self._has_extglob(timeout) and not operation.done:
                    raise
            with translated():
                operation.release(accepted)
        except BaseException:
            operation.cancel()
            raise

    async def _ask_bash(self, command: str, *options: bytes) -> int:
        """Return 1 if bash accepts the command, 0 if it does but the end of the text terminates a here-document."""
        text = encode(command)
        if b"extglob" in text and b"shopt" in text:
            options = (b"-O", b"extglob")  # the command switches it on before the lines that need it
        queue = current_completions().core
        future = asyncio.get_running_loop().create_future()
        argv, env = [b"bash", *options, b"-n"], encode_variables({}, english_environment())
        with translated("Cannot check the syntax of the command with bash"):
            process = _core.Process(
                os.fsencode(find_bash()), argv, env, None, text, False, None, 1 << 20, queue, future
            )
        await finish(process, future)
        return int(check_result(command, process.returncode, process.stdout, process.stderr))

    async def _has_extglob(self, timeout: float | None) -> bool:
        """Ask the shell whether `extglob` is on, ahead of the held command. An interrupt is kept for that command."""
        question = "( s=$?; case :$BASHOPTS: in *:extglob:*) builtin echo on;; esac; exit $s )"
        operation = await self._complete(
            lambda core, *notify: core.run(question, 1, timeout, None, None, *notify, None, 0, -1, 0, True)
        )
        return operation.end == "done" and operation.output.strip() == "on"

    async def _run_interactive(self, action: BashAction, stream: OutputStream | None) -> BashObservation:
        validate_seconds(action.timeout, "timeout")
        validate_seconds(action.no_output_timeout, "no_output_timeout")
        line = encode(action.command) + b"\n"
        matcher = make_matcher(action.expect) if action.expect else None
        news = stream.news if stream is not None else None
        patterns = patterns_of(matcher, news)
        limits = action.timeout, action.no_output_timeout
        operation = await self._complete(
            lambda core, *notify: core.line(line, *limits, patterns, *notify, news), matcher, stream
        )
        end = operation.end
        output = operation.output
        if not action.is_interactive_quit:
            output = output.lstrip().removeprefix(action.command).strip()
        if end in ("done", "matched"):
            expect_string = action.expect[operation.hit] if end == "matched" else _PROMPT
            return _observation(output, 0, expect_string, "", operation.dropped)
        if reason := await self._end_of_shell(operation, operation.typed):
            return _observation(output, operation.code, "", reason, operation.dropped)
        raise failure(operation, action.command, *limits)


def _plain(action: BashAction) -> BashAction:
    """Return an action of another class as a `BashAction`, whose `__dict__` has the fields.

    Access to the `__dict__` costs a tenth of access to a model's attributes.
    """
    if type(action) is BashAction:
        return action
    return BashAction.model_construct(**{name: getattr(action, name) for name in BashAction.model_fields})


_OBSERVED = frozenset({"output", "exit_code", "failure_reason", "expect_string", "output_dropped"})


def _observation(output: str, code: int | None, expect_string: str, reason: str, dropped: int) -> BashObservation:
    """Return a `BashObservation` of valid values, as `model_construct` does but in a tenth of the time."""
    values = {
        "output": output,
        "exit_code": code,
        "failure_reason": reason,
        "expect_string": expect_string,
        "session_type": "bash",
        "output_dropped": dropped,
    }
    return _core.model(BashObservation, values, _OBSERVED)


def _checked(
    action: dict[str, Any], operation: _core.Operation, expect_string: str, reason: str = ""
) -> BashObservation:
    """Return the observation of a command whose exit code is known.

    Args:
        action: the fields of the action.

    Raises:
        NonZeroExitCodeError: if `check` is "raise" and the exit code is not 0.
    """
    code, output, check = operation.code, operation.output, action["check"]
    if check == "raise" and code != 0:
        msg = f"Command {shorten(action['command'])} failed with exit code {code}. Here is the output:\n{output!r}"
        raise NonZeroExitCodeError(f"{action['error_msg']}: {msg}" if action["error_msg"] else msg)
    return _observation(output, None if check == "ignore" else code, expect_string, reason, operation.dropped)


def _after_match(action: dict[str, Any], operation: _core.Operation) -> BashObservation:
    """Return the observation after a match, with the exit code if the command ended within the grace period.

    Output after the match is not part of the observation, whether or not the command has ended.
    """
    expect_string = action["expect"][operation.hit]
    if operation.ended:
        return _checked(action, operation, expect_string)
    if action["check"] == "raise":
        what = f"The command {shorten(action['command'])} printed {expect_string!r}"
        raise NoExitCodeError(f"{what} and still runs, so it has no exit code")
    return _observation(operation.output, None, expect_string, "", operation.dropped)
