"""A persistent bash over the core.

A command goes to the shell in the calling thread; if the event loop has nothing else to do, that thread also waits for a
moment by itself, so that a short command ends without any thread being woken. What takes longer goes on in the core's
own thread, and the loop is told when it is done.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from typing import TYPE_CHECKING, Any

from swerex_c import _core
from swerex_c.exceptions import (
    CommandTimeoutError,
    InvalidInputError,
    NoExitCodeError,
    SessionDiedError,
    SessionNotInitializedError,
    SwerexException,
)
from swerex_c.runtime._answers import (
    _cause,
    _check_seconds,
    _death,
    _failure,
    _finish,
    _non_zero,
    _observation,
    _resource_error,
    _translate,
    abstract_module,
)
from swerex_c.runtime._syntax import encode, find_bash, judge
from swerex_c.runtime._wakeup import current_waker
from swerex_c.utils.log import get_logger

if TYPE_CHECKING:
    import logging
    from collections.abc import AsyncIterator

    from swerex_c.runtime import abstract

OUTPUT_LIMIT = 256 * 1024 * 1024
"""Bytes of output that are kept of one command (half of them its beginning, half its end) and per stream of `execute`."""

_PROMPT = "SHELLPS1PREFIX"
"""The `expect_string` of an action that the shell's prompt finished: the constant that callers know."""

_DIRECT_MICROSECONDS = 150
"""How long the calling thread waits by itself for a short command. An event loop does not notice it."""

_STARTUP = """\
[[ ! -r /etc/bash.bashrc ]] || . /etc/bash.bashrc
[[ ! -r ~/.bashrc ]] || . ~/.bashrc
"""
"""What an interactive bash reads by itself. It is started without them, so that the session is in control before they are
read and a startup file cannot get in its way."""


def _matcher(patterns: list[str]) -> Any:
    """A matcher for `expect`, or None for no patterns."""
    if not patterns:
        return None
    from swerex_c.runtime._patterns import make_matcher

    return make_matcher(patterns)


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


async def _bash_n(command: str, argv: list[bytes], text: bytes) -> bool:
    waker = current_waker()
    future = waker.create_future()
    try:
        process = _core.Process(argv[0], argv, None, None, text, False, None, 1 << 20, waker.core, future)
    except (OSError, MemoryError) as e:
        raise _resource_error(e, "bash cannot be asked whether it accepts the command") from e
    await _finish(process, future)
    return judge(command, process.returncode, process.stdout, process.stderr)
