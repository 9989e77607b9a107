"""Sessions, commands and files on this machine, in this process, over the C core.

`run_in_session` is the hot path. A command goes to the shell in the calling thread; if the event loop has nothing else
to do, that thread also waits for a moment by itself, so that a short command ends without any thread being woken. What
takes longer goes on in the core's own thread, and the loop is told when it is done.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

from swerex_c import _core
from swerex_c.exceptions import (
    CommandTimeoutError,
    InvalidInputError,
    NoExitCodeError,
    NonZeroExitCodeError,
    ResourceError,
    RuntimeClosedError,
    SessionBusyError,
    SessionDiedError,
    SessionDoesNotExistError,
    SessionExistsError,
    SessionLostSyncError,
    SessionNotInitializedError,
    SwerexException,
)
from swerex_c.runtime._base import AbstractRuntime
from swerex_c.runtime._syntax import check_bash_command as _check_bash_command
from swerex_c.runtime._syntax import encode, find_bash, judge
from swerex_c.runtime._syntax import split_bash_command as _split_bash_command
from swerex_c.runtime._wakeup import current_waker
from swerex_c.utils.log import get_logger

if TYPE_CHECKING:
    import logging
    from collections.abc import AsyncIterator

    from swerex_c.runtime import abstract
    from swerex_c.runtime.config import LocalRuntimeConfig

__all__ = ["BashSession", "LocalRuntime", "_check_bash_command", "_split_bash_command"]

OUTPUT_LIMIT = 256 * 1024 * 1024
"""Bytes of output that are kept of one command (half of them its beginning, half its end) and per stream of `execute`."""

_PROMPT = "SHELLPS1PREFIX"
"""The `expect_string` of an action that the shell's prompt finished: the constant that callers know."""

_DIRECT_MICROSECONDS = 150
"""How long the calling thread waits by itself for a short command. An event loop does not notice it."""

_LONGEST_ARGUMENT = 128 * 1024 - 1
"""Linux takes no single argument of a program beyond this (MAX_ARG_STRLEN)."""

_STARTUP = """\
[[ ! -r /etc/bash.bashrc ]] || . /etc/bash.bashrc
[[ ! -r ~/.bashrc ]] || . ~/.bashrc
"""
"""What an interactive bash reads by itself. It is started without them, so that the session is in control before they are
read and a startup file cannot get in its way."""


# ---- checks of what is asked for ------------------------------------------------------------------------------------


def _check_seconds(value: float | None, name: str) -> None:
    if value is not None and not value >= 0:
        msg = f"{name} has to be a number of seconds that is not negative, or None: {value!r}"
        raise InvalidInputError(msg)


def _matcher(patterns: list[str]) -> Any:
    """A matcher for `expect`, or None for no patterns."""
    if not patterns:
        return None
    from swerex_c.runtime._patterns import make_matcher

    return make_matcher(patterns)


def _resource_error(e: OSError | MemoryError, what: str) -> SwerexException:
    """The typed error for something that the machine did not give."""
    import errno

    number = e.errno if isinstance(e, OSError) else errno.ENOMEM
    reason = {
        errno.EMFILE: "this process has no file descriptors left (raise `ulimit -n`, or close sessions)",
        errno.ENFILE: "the system has no file descriptors left",
        errno.ENOSPC: "the system has no pseudo-terminals left (see /proc/sys/kernel/pty/max)",
        errno.EAGAIN: "the limit on processes is reached (see `ulimit -u`)",
        errno.ENOMEM: "out of memory",
    }.get(number or 0, str(e))
    call = f" ({e.strerror})" if isinstance(e, OSError) and e.strerror and reason != str(e) else ""
    return ResourceError(f"{what}: {reason}{call}", errno=number)


# ---- one session ----------------------------------------------------------------------------------------------------


class Session:
    """What runs in a runtime under a name."""

    async def start(self) -> Any:
        raise NotImplementedError

    async def run(self, action: Any) -> Any:
        raise NotImplementedError

    async def close(self) -> Any:
        raise NotImplementedError


class BashSession(Session):
    """A persistent bash on a terminal of its own.

    Calls are served in the order in which they come; an interrupt overtakes. They may come from any event loop and any
    thread.
    """

    def __init__(
        self,
        request: abstract.CreateBashSessionRequest,
        *,
        logger: logging.Logger | None = None,
        output_limit: int = OUTPUT_LIMIT,
    ):
        self.request = request
        self.logger = logger or get_logger("rex-session")
        self._core: Any = None
        self._output_limit = output_limit
        self._skip_direct = 0
        self._skip_next = 0
        self._checked: dict[str, bool] = {}

    @property
    def core(self) -> Any:
        if self._core is None:
            msg = "shell not initialized"
            raise SessionNotInitializedError(msg)
        return self._core

    @property
    def pid(self) -> int:
        """The shell's process id."""
        pid: int = self.core.facts()["pid"]
        return pid

    # -- start and end

    def _environment(self) -> list[bytes]:
        variables = {**os.environ, **(self.request.env or {})}
        for name in ("PS0", "PS1", "PS2"):
            variables.pop(name, None)
        try:
            return [os.fsencode(name) + b"=" + os.fsencode(value) for name, value in variables.items()]
        except UnicodeEncodeError as e:
            msg = f"The environment of a session has to be text that can be encoded: {e}"
            raise InvalidInputError(msg) from None

    def _startup_script(self) -> bytes:
        lines = [_STARTUP]
        for name in self.request.startup_source:
            path = os.path.expanduser(name)
            # A shell itself does not mind when its own startup file is not there, and callers name it everywhere.
            if not os.path.exists(path) and os.path.basename(path) != ".bashrc":
                msg = f"The startup file {name!r} does not exist"
                raise InvalidInputError(msg)
            if os.path.exists(path):
                lines.append(f". {shlex.quote(path)}\n")
        script = encode("".join(lines))
        if any(len(line) > 4000 for line in script.splitlines()):
            msg = "The path of a startup file is too long"
            raise InvalidInputError(msg)
        return script

    def _check_request(self) -> None:
        request = self.request
        _check_seconds(request.startup_timeout, "startup_timeout")
        if request.cwd is not None and not os.path.isdir(request.cwd):
            msg = f"The directory {request.cwd!r} that the session should start in does not exist"
            raise InvalidInputError(msg)
        for name, value in (request.env or {}).items():
            if not name or "=" in name or "\0" in name or "\0" in value:
                msg = f"{name!r} cannot be the name of an environment variable, or its value holds a NUL byte"
                raise InvalidInputError(msg)

    async def start(self) -> abstract.CreateBashSessionResponse:
        """Start the shell and read the startup files. On failure nothing is left of it."""
        self._check_request()
        script = self._startup_script()
        request = self.request
        try:
            self._core = _core.Session(
                os.fsencode(find_bash()),
                self._environment(),
                os.fsencode(request.cwd) if request.cwd is not None else None,
                request.rows,
                request.columns,
                self._output_limit,
            )
        except (OSError, MemoryError) as e:
            raise _resource_error(e, "A session cannot be started") from e
        try:
            waker = current_waker()
            future = waker.create_future()
            operation = self.core.start(script, request.startup_timeout, waker.core, future)
            await _finish(operation, future)
            self._check_started(operation)
        except BaseException:
            await asyncio.shield(self.close())
            raise
        return abstract_module().CreateBashSessionResponse(output=operation.output)

    def _check_started(self, operation: Any) -> None:
        end = operation.end
        if end == "done":
            return
        if end == "timeout":
            msg = f"timeout after {self.request.startup_timeout} seconds while reading the startup files"
            raise CommandTimeoutError(msg, output=operation.output)
        if end == "died":
            msg = f"The shell ended while it read its startup files. {_cause(operation.code)} It printed: {operation.output!r}"
            raise SessionDiedError(msg, **_death(operation.code))
        raise _failure(operation, "<startup files>")

    async def close(self) -> abstract.CloseBashSessionResponse:
        """End the shell and everything it started, whatever that has become. Returns when all of it is gone."""
        core, self._core = self._core, None
        if core is not None:
            waker = current_waker()
            future = waker.create_future()
            operation = core.close(waker.core, future)
            while not operation.done:
                try:
                    await asyncio.shield(future)
                except asyncio.CancelledError:
                    # The core ends the session all the same.
                    raise
        return abstract_module().CloseBashSessionResponse()

    def interact(self, input_fd: int = 0, output_fd: int = 1) -> int:
        """Attach a person: read lines from `input_fd`, show on `output_fd`, until the end of input or of the shell.

        Blocks. While a command runs, every key goes to it as it is. Returns the exit code of the last command.
        """
        from swerex_c.runtime._attach import attach

        return attach(self.core, input_fd, output_fd)

    # -- running

    async def run(self, action: Any) -> abstract.BashObservation:
        """Run a command, send a line to a program, or interrupt what runs; see `AbstractRuntime.run_in_session`."""
        if action.action_type == "bash_interrupt":
            return await self.interrupt(action)
        if action.is_interactive_command or action.is_interactive_quit:
            return await self._run_interactive(action, None)
        return await self._run_normal(action, None)

    async def stream(self, action: Any) -> AsyncIterator[Any]:
        """Run an action and yield its output as text while it comes; at last the observation."""
        import codecs

        news = asyncio.Event()
        started: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        run = self._run_interactive if action.is_interactive_command or action.is_interactive_quit else self._run_normal
        task = asyncio.ensure_future(run(action, (news, started)))
        decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        strip = _core.Strip()
        try:
            await asyncio.wait({started, task}, return_when=asyncio.FIRST_COMPLETED)
            operation = started.result() if started.done() else None
            while operation is not None:
                finished = task.done()
                data = operation.take()
                while data:
                    text = decoder.decode(strip.feed(data))
                    if text:
                        yield text
                    data = operation.take()
                if finished:
                    break
                waiting = asyncio.ensure_future(news.wait())
                await asyncio.wait({waiting, task}, return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                news.clear()
            rest = decoder.decode(strip.finish(), True)
            if rest:
                yield rest
            yield await task
        finally:
            if not task.done():
                task.cancel()

    async def interrupt(self, action: abstract.BashInterruptAction) -> abstract.BashObservation:
        """End what runs: SIGINT up to `n_retry` times, `timeout` seconds apart, then the foreground processes are killed."""
        _check_seconds(action.timeout, "timeout")
        if action.n_retry < 0:
            msg = f"n_retry has to be a number that is not negative: {action.n_retry!r}"
            raise InvalidInputError(msg)
        waker = current_waker()
        future = waker.create_future()
        operation = self.core.interrupt(
            min(action.timeout, 3600.0), action.n_retry, _matcher(action.expect), waker.core, future
        )
        await _finish(operation, future)
        if operation.end in ("done", "matched"):
            expect_string = action.expect[operation.hit] if operation.end == "matched" else _PROMPT
            return abstract_module().BashObservation(
                output=operation.output.strip(), exit_code=0, expect_string=expect_string
            )
        if operation.end == "timeout":
            msg = "Failed to interrupt session: the running command ignores SIGINT and could not be killed"
            raise CommandTimeoutError(msg, output=operation.output)
        raise _failure(operation, "<interrupt>")

    async def _run_normal(self, action: Any, stream: Any) -> abstract.BashObservation:
        timeout = action.timeout
        command = action.command
        operation = await self._submit(action, command, timeout, stream)
        end = operation.end
        if end == "done":
            code: int | None = operation.code
            output = operation.output
            dropped = operation.dropped
            if action.check == "raise" and code != 0:
                raise _non_zero(action, code, output)
            return _observation(output, None if action.check == "ignore" else code, _PROMPT, "", dropped)
        if end == "matched":
            return await self._after_match(action, operation)
        if end == "died" and operation.typed:
            code = operation.code
            if action.check == "raise" and code != 0:
                raise _non_zero(action, code, operation.output)
            reason = f"The command ended the session's shell. {_cause(operation.code)}"
            code = None if action.check == "ignore" else code
            return _observation(operation.output, code, "", reason, operation.dropped)
        raise _failure(operation, command, timeout, action.no_output_timeout)

    async def _submit(self, action: Any, command: str, timeout: float | None, stream: Any) -> Any:
        if timeout is not None or action.no_output_timeout is not None:
            _check_seconds(timeout, "timeout")
            _check_seconds(action.no_output_timeout, "no_output_timeout")
        matcher = _matcher(action.expect) if action.expect else None
        if matcher is not None and not isinstance(matcher, _core.Matcher):
            matcher = None
        waker = current_waker()
        future = waker.create_future()
        direct = 0
        if not waker.ready and stream is None:
            if self._skip_next:
                self._skip_next -= 1
            else:
                direct = _DIRECT_MICROSECONDS
        news = stream[0] if stream else None
        core = self._core or self.core
        checked = self._checked.get(command, -1) if self._checked else -1
        try:
            operation = core.run(
                command, checked, timeout, action.no_output_timeout, matcher, waker.core, future, news, direct
            )
            if operation is None:
                checked = await self._ask_bash(command)
                operation = core.run(
                    command, checked, timeout, action.no_output_timeout, matcher, waker.core, future, news, 0
                )
        except (ValueError, OSError, MemoryError, RuntimeError) as e:
            raise _translate(e) from e
        if stream:
            stream[1].set_result(operation)
        if operation.done:
            if direct:
                self._skip_direct = 0
            return operation
        if direct:  # it was not a short one: the next ones may not be either
            self._skip_direct = self._skip_next = min(2 * self._skip_direct + 1, 63)
        try:
            await future
        except asyncio.CancelledError:
            operation.cancel()
            raise
        return operation

    async def _ask_bash(self, command: str) -> int:
        """1: bash accepts the command; 0: it does, but the text's end ends a here-document."""
        text = encode(command)
        bash = os.fsencode(find_bash())
        try:
            accepted = await _bash_n(command, [bash, b"-n"], text)
        except SwerexException:
            # Patterns like !(a) are syntax in a shell that has extglob switched on.
            if b"(" not in text or not await self._has_extglob():
                raise
            accepted = await _bash_n(command, [bash, b"-O", b"extglob", b"-n"], text)
        if len(command) <= 4096:
            if len(self._checked) >= 256:
                self._checked.pop(next(iter(self._checked)))
            self._checked[command] = accepted
        return int(accepted)

    async def _has_extglob(self) -> bool:
        question = "( s=$?; case :$BASHOPTS: in *:extglob:*) builtin echo on;; esac; exit $s )"
        waker = current_waker()
        future = waker.create_future()
        operation = self.core.run(question, 1, 5.0, None, None, waker.core, future, None, 0)
        await _finish(operation, future)
        return operation.end == "done" and operation.output.strip() == "on"

    async def _after_match(self, action: Any, operation: Any) -> abstract.BashObservation:
        """A pattern of a normal command was seen. Give it a moment to end, because then it has an exit code."""
        output = operation.output
        expect_string = action.expect[operation.hit]
        if action.check == "ignore":
            return _observation(output, None, expect_string, "", operation.dropped)
        waker = current_waker()
        future = waker.create_future()
        rest = self.core.line(b"", 1.0, None, None, waker.core, future, None)
        await _finish(rest, future)
        if rest.end == "done":
            output += rest.output
            if action.check == "raise" and rest.code != 0:
                raise _non_zero(action, rest.code, output)
            return _observation(output, rest.code, expect_string, "", operation.dropped)
        if action.check == "raise":
            msg = f"The command {action.command!r} printed {expect_string!r} and still runs, so it has no exit code"
            raise NoExitCodeError(msg)
        return _observation(output, None, expect_string, "", operation.dropped)

    async def _run_interactive(self, action: Any, stream: Any) -> abstract.BashObservation:
        _check_seconds(action.timeout, "timeout")
        _check_seconds(action.no_output_timeout, "no_output_timeout")
        line = encode(action.command) + b"\n"
        matcher = _matcher(action.expect)
        waker = current_waker()
        future = waker.create_future()
        news = stream[0] if stream else None
        try:
            operation = self.core.line(
                line, action.timeout, action.no_output_timeout, matcher, waker.core, future, news
            )
        except (ValueError, OSError, MemoryError, RuntimeError) as e:
            raise _translate(e) from e
        if stream:
            stream[1].set_result(operation)
        await _finish(operation, future)
        end = operation.end
        output = operation.output
        if not action.is_interactive_quit:
            output = output.lstrip().removeprefix(action.command).strip()
        if end in ("done", "matched"):
            expect_string = action.expect[operation.hit] if end == "matched" else _PROMPT
            return _observation(output, 0, expect_string, "", operation.dropped)
        if end == "died" and operation.typed:
            reason = f"The command ended the session's shell. {_cause(operation.code)}"
            return _observation(output, operation.code, "", reason, operation.dropped)
        raise _failure(operation, action.command, action.timeout, action.no_output_timeout)


# ---- from the core's answers to observations and exceptions ---------------------------------------------------------


async def _finish(operation: Any, future: asyncio.Future[None]) -> None:
    """Wait for an operation; if the waiting is cancelled, so is the operation."""
    if not operation.done:
        try:
            await future
        except asyncio.CancelledError:
            operation.cancel()
            raise


async def _bash_n(command: str, argv: list[bytes], text: bytes) -> bool:
    waker = current_waker()
    future = waker.create_future()
    try:
        process = _core.Process(argv[0], argv, None, None, text, False, None, 1 << 20, waker.core, future)
    except (OSError, MemoryError) as e:
        raise _resource_error(e, "bash cannot be asked whether it accepts the command") from e
    await _finish(process, future)
    return judge(command, process.returncode, process.stdout, process.stderr)


_abstract: Any = None


def abstract_module() -> Any:
    """The models; they are imported when they are first used, because pydantic is not quick to import."""
    global _abstract
    if _abstract is None:
        from swerex_c.runtime import abstract

        _abstract = abstract
    return _abstract


def _observation(output: str, code: int | None, expect_string: str, reason: str, dropped: int) -> Any:
    return (_abstract or abstract_module()).BashObservation(
        output=output, exit_code=code, failure_reason=reason, expect_string=expect_string, output_dropped=dropped
    )


def _non_zero(action: Any, code: int | None, output: str) -> NonZeroExitCodeError:
    msg = f"Command {action.command!r} failed with exit code {code}. Here is the output:\n{output!r}"
    if action.error_msg:
        msg = f"{action.error_msg}: {msg}"
    return NonZeroExitCodeError(msg)


def _cause(code: int) -> str:
    return f"It was ended by signal {code - 128}." if code > 128 else f"It exited with status {code}."


def _death(code: int) -> dict[str, int]:
    return {"signal": code - 128} if code > 128 else {"exit_code": code}


def _failure(
    operation: Any, command: str, timeout: float | None = None, quiet: float | None = None
) -> SwerexException | OSError:
    """The exception for an operation that did not come to its end."""
    end = operation.end
    if end == "timeout":
        msg = f"timeout after {timeout} seconds while running command {command!r}"
        if not operation.typed:
            msg += " (it was not sent, because an earlier command of the session still runs: interrupt that one)"
            return SessionBusyError(msg)
        return CommandTimeoutError(msg, output=operation.output)
    if end == "quiet":
        msg = f"no output for {quiet} seconds while running command {command!r}"
        return CommandTimeoutError(msg, output=operation.output)
    if end == "died":
        msg = f"The session's shell has ended. {_cause(operation.code)} Close the session and create another one"
        return SessionDiedError(msg, **_death(operation.code))
    if end == "lost":
        msg = (
            f"It cannot be proved what the shell of this session is doing, so command {command!r} has no true answer. "
            "Close the session and create another one"
        )
        return SessionLostSyncError(msg)
    if end == "closed":
        return RuntimeClosedError("The session was closed")
    if end == "memory":
        return ResourceError(f"Out of memory while running command {command!r}")
    if end == "system":
        return InvalidInputError(f"{operation.error}: {command!r}")
    return SwerexException(f"The command {command!r} was cancelled")


def _translate(e: Exception) -> SwerexException:
    """What the core raises at the start of an operation, as one of our own."""
    if isinstance(e, SwerexException):
        return e
    if isinstance(e, ValueError):
        return InvalidInputError(str(e))
    if isinstance(e, OSError | MemoryError):
        return _resource_error(e, "The command cannot be run")
    return SessionDiedError(str(e)) if "fork" in str(e) else SwerexException(str(e))


# ---- the runtime ----------------------------------------------------------------------------------------------------


class LocalRuntime(AbstractRuntime):
    """Runs everything on this machine, in this process.

    Sessions do not stall each other, nor the event loop. Closing the runtime ends all of them and what they started.
    """

    def __init__(self, *, logger: logging.Logger | None = None, **kwargs: Any):
        """See `LocalRuntimeConfig` for the keyword arguments."""
        from swerex_c.runtime.config import LocalRuntimeConfig

        self._config = LocalRuntimeConfig(**kwargs)
        self._sessions: dict[str, Session] = {}
        self._processes: set[Any] = set()
        self._closed = False
        self.logger = logger or get_logger("rex-runtime")

    @classmethod
    def from_config(cls, config: LocalRuntimeConfig) -> Self:
        return cls(**config.model_dump())

    @property
    def sessions(self) -> dict[str, Session]:
        """The sessions by name."""
        return self._sessions

    def _check_open(self) -> None:
        if self._closed:
            msg = "The runtime was closed: make another one"
            raise RuntimeClosedError(msg)

    def _session(self, name: str) -> Session:
        session = self._sessions.get(name)
        if session is None:
            self._check_open()
            msg = f"session {name!r} does not exist"
            raise SessionDoesNotExistError(msg)
        return session

    async def is_alive(self, *, timeout: float | None = None) -> abstract.IsAliveResponse:
        """Whether the runtime takes requests. Answers at once."""
        if self._closed:
            return abstract_module().IsAliveResponse(is_alive=False, message="The runtime was closed")
        return abstract_module().IsAliveResponse(is_alive=True)

    async def create_session(self, request: abstract.CreateSessionRequest) -> abstract.CreateSessionResponse:
        """Start a session and read its startup files.

        Raises:
            SessionExistsError: if there is one of this name.
            InvalidInputError: if the request cannot be granted as it is; nothing was started.
            CommandTimeoutError: if the startup files take longer than `startup_timeout`.
            ResourceError: if the machine lacks bash, terminals, descriptors, processes or memory.
        """
        self._check_open()
        if not isinstance(request, abstract_module().CreateBashSessionRequest):
            msg = f"unknown session type: {request!r}"
            raise InvalidInputError(msg)
        if request.session in self._sessions:
            msg = f"session {request.session} already exists"
            raise SessionExistsError(msg)
        session = BashSession(request, logger=self.logger, output_limit=self._config.output_limit)
        self._sessions[request.session] = session
        try:
            return await session.start()
        except BaseException:
            if self._sessions.get(request.session) is session:
                del self._sessions[request.session]
            raise

    async def run_in_session(self, action: abstract.Action) -> abstract.Observation:
        """Run a command in its session; see `AbstractRuntime.run_in_session`."""
        session = self._sessions.get(action.session)
        if session is None:
            session = self._session(action.session)
        return await session.run(action)

    def stream_in_session(self, action: abstract.Action) -> AsyncIterator[str | abstract.BashObservation]:
        """Run a command and yield its output as it comes; at last its observation."""
        session = self._session(action.session)
        if not isinstance(session, BashSession) or action.action_type != "bash":
            msg = "Only a BashAction in a bash session has output to stream"
            raise InvalidInputError(msg)
        return session.stream(action)

    async def close_session(self, request: abstract.CloseSessionRequest) -> abstract.CloseSessionResponse:
        """End a session with everything it started."""
        session = self._session(request.session)
        del self._sessions[request.session]
        response: abstract.CloseSessionResponse = await session.close()
        return response

    async def execute(self, command: abstract.Command) -> abstract.CommandResponse:
        """Run a command outside of all sessions, with its standard input at the end.

        It is finished when the program itself has ended, whatever it left behind in the background.

        Raises:
            CommandTimeoutError: if it takes too long; it was ended with everything it started, and its output so far is
                in `output`.
            NonZeroExitCodeError: if `check` is set and its exit code is not 0.
            FileNotFoundError, PermissionError, NotADirectoryError: if the program or its directory cannot be used.
        """
        self._check_open()
        _check_seconds(command.timeout, "timeout")
        process, future, keep = self._start_process(command)
        self._processes.add(process)
        try:
            await _finish(process, future)
        finally:
            self._processes.discard(process)
            if keep is not None:
                os.close(keep)
        return _command_response(command, process)

    def _start_process(self, command: abstract.Command) -> tuple[Any, asyncio.Future[None], int | None]:
        argv, keep = _argv(command)
        try:
            environment = None if command.env is None else [_fs(k) + b"=" + _fs(v) for k, v in command.env.items()]
            file = _search(argv[0], command.env)
            _check_directory(command.cwd)
            waker = current_waker()
            future = waker.create_future()
            process = _core.Process(
                file,
                argv,
                environment,
                None if command.cwd is None else os.fsencode(command.cwd),
                b"",
                command.merge_output_streams,
                command.timeout,
                self._config.output_limit,
                waker.core,
                future,
            )
        except BaseException as e:
            if keep is not None:
                os.close(keep)
            if isinstance(e, OSError):
                raise _exec_error(e, argv[0]) from None
            if isinstance(e, MemoryError):
                raise _resource_error(e, "The command cannot be run") from e
            if isinstance(e, ValueError) and not isinstance(e, SwerexException):
                raise InvalidInputError(f"The command cannot be run: {e}") from e
            raise
        return process, future, keep

    async def read_file(self, request: abstract.ReadFileRequest) -> abstract.ReadFileResponse:
        """Read a text file. A relative path is relative to this process."""
        from swerex_c.runtime.files import read_text

        self._check_open()
        content = await asyncio.to_thread(read_text, request.path, request.encoding, request.errors)
        return abstract_module().ReadFileResponse(content=content)

    async def write_file(self, request: abstract.WriteFileRequest) -> abstract.WriteFileResponse:
        """Write a text file, and the directories above it. It is replaced whole or not at all."""
        from swerex_c.runtime.files import write_text

        self._check_open()
        await asyncio.to_thread(write_text, request.path, request.content)
        return abstract_module().WriteFileResponse()

    async def upload(self, request: abstract.UploadRequest) -> abstract.UploadResponse:
        """Copy a file or a tree, with its modes and symbolic links; onto an existing directory it is merged."""
        from swerex_c.runtime.files import upload

        self._check_open()
        await asyncio.to_thread(upload, request.source_path, request.target_path)
        return abstract_module().UploadResponse()

    async def close(self) -> abstract.CloseResponse:
        """End all sessions and commands, with everything they started. May be called again."""
        self._closed = True
        sessions = list(self._sessions.values())
        self._sessions.clear()
        for process in list(self._processes):
            process.cancel()
        if sessions:
            results = await asyncio.gather(*(session.close() for session in sessions), return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    raise result
        return abstract_module().CloseResponse()


# ---- execute --------------------------------------------------------------------------------------------------------


def _fs(text: str) -> bytes:
    try:
        return os.fsencode(text)
    except UnicodeEncodeError as e:
        msg = f"{text!r} cannot be given to a program: {e}"
        raise InvalidInputError(msg) from None


def _argv(command: abstract.Command) -> tuple[list[bytes], int | None]:
    """The arguments of a command, and a descriptor to keep open while it runs (None: there is none)."""
    words = [command.command] if isinstance(command.command, str) else list(command.command)
    if not words:
        msg = "The command is empty"
        raise InvalidInputError(msg)
    argv = [_fs(word) for word in words]
    if any(b"\0" in word for word in argv):
        msg = "A command cannot contain a NUL byte"
        raise InvalidInputError(msg)
    if not command.shell:
        return argv, None
    keep = None
    if len(argv[0]) > _LONGEST_ARGUMENT:  # the kernel would refuse it as an argument; the shell can read it
        keep = os.memfd_create("swx-command")
        with os.fdopen(os.dup(keep), "wb") as file:
            file.write(argv[0])
        argv[0] = b". /proc/%d/fd/%d" % (os.getpid(), keep)
    return [b"/bin/sh", b"-c", *argv], keep


def _search(program: bytes, env: dict[str, str] | None) -> bytes:
    """Where a program is. With an environment of its own, the PATH in there counts, as for `subprocess`."""
    if env is None or b"/" in program:
        return program
    found = shutil.which(os.fsdecode(program), path=env.get("PATH", os.defpath))
    if found is None:
        import errno

        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fsdecode(program))
    return os.fsencode(found)


def _check_directory(path: str | None) -> None:
    if path is not None:
        if "\0" in path:
            msg = "A path cannot contain a NUL byte"
            raise InvalidInputError(msg)
        if not os.path.isdir(path):
            import errno

            number = errno.ENOTDIR if os.path.exists(path) else errno.ENOENT
            raise OSError(number, os.strerror(number), path)


def _exec_error(e: OSError, program: bytes) -> Exception:
    """An error about the program or its directory stays the OSError that callers catch; others are about the machine."""
    import errno

    about_files = (errno.ENOENT, errno.EACCES, errno.ENOTDIR, errno.ENOEXEC, errno.EISDIR, errno.ELOOP, errno.EPERM)
    if e.errno in about_files:
        return OSError(e.errno, os.strerror(e.errno), e.filename or os.fsdecode(program))
    if e.errno == errno.E2BIG:
        return InvalidInputError("The command and its environment are too long for this system (E2BIG)")
    return _resource_error(e, "The command cannot be run")


def _command_response(command: abstract.Command, process: Any) -> abstract.CommandResponse:
    stdout = process.stdout.decode(errors="backslashreplace")
    stderr = process.stderr.decode(errors="backslashreplace")
    end = process.end
    if end == "timeout":
        msg = f"Timeout ({command.timeout}s) exceeded while running command"
        raise CommandTimeoutError(msg, output=stdout)
    if end == "cancelled":
        msg = "The runtime was closed while the command ran"
        raise RuntimeClosedError(msg)
    if end == "memory":
        msg = "Out of memory while running the command"
        raise ResourceError(msg)
    code = process.returncode
    if command.check and code != 0:
        msg = (
            f"Command {command.command!r} failed with exit code {code}. Stdout:\n{stdout!r}\nStderr:\n{stderr!r}"
        )
        if command.error_msg:
            msg = f"{command.error_msg}: {msg}"
        raise NonZeroExitCodeError(msg)
    return abstract_module().CommandResponse(stdout=stdout, stderr=stderr, exit_code=code)

