"""Sessions of the commands `swerex-c exec` and `swerex-c shell`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import shlex
import signal
import stat
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from swerex_c.cli.exit import Exit, Result, fail
from swerex_c.exceptions import ConnectionLostError, InvalidInputError, SwerexException, UploadError
from swerex_c.interfaces import AbstractRuntime, DeploymentHook
from swerex_c.models import BashAction, CloseBashSessionRequest, Command, CreateBashSessionRequest, UploadRequest
from swerex_c.utils.threads import in_thread
from swerex_c.utils.visible import visible

if TYPE_CHECKING:
    from swerex_c.cli.targets import Target
    from swerex_c.runtime.local import LocalRuntime

__all__ = [
    "checked",
    "command_text",
    "ended_by_signals",
    "quiet_runtime",
    "run_command",
    "run_shell",
    "session_request",
]

_NO_INPUT = "/dev/null"

_REMOVE_SECONDS = 10.0
"""Seconds for the removal of an uploaded file."""

_HANG_UP_SECONDS = 5.0
"""Seconds for a shell to end after SIGHUP, before it is killed."""

_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that request the end of the process."""

Model = TypeVar("Model")


def command_text(command: list[str] | None, file: Path | None) -> str:
    """Return the command from the arguments, the file or standard input."""
    if command and file:
        fail("give a command or --file, not both", Exit.USAGE)
    if command:
        return command[0] if len(command) == 1 else shlex.join(command)
    if file is None and sys.stdin.isatty():
        fail("give a command, --file, or a command on stdin", Exit.USAGE)
    try:
        data = sys.stdin.buffer.read() if file is None or str(file) == "-" else file.read_bytes()
        return data.decode()
    except OSError as error:
        fail(f"{file}: {error.strerror}", Exit.NOT_FOUND)
    except UnicodeDecodeError as error:
        fail(f"the command is not UTF-8: {error}", Exit.USAGE)


def _own_input() -> str:
    """Return a path by which a process on this machine reads this process's input, unless that is a terminal."""
    if sys.stdin is None or sys.stdin.isatty():
        return _NO_INPUT
    descriptor = sys.stdin.fileno()
    mode = os.fstat(descriptor).st_mode
    readable = not stat.S_ISSOCK(mode) and os.access(f"/proc/self/fd/{descriptor}", os.R_OK)
    # A socket cannot be opened by its path, nor another user's pipe, and a file is read from its beginning then.
    if not readable or stat.S_ISREG(mode) and os.lseek(descriptor, 0, os.SEEK_CUR):
        descriptor, writing = os.pipe()
        threading.Thread(target=_copy_input, args=(writing,), daemon=True).start()
    return f"/proc/{os.getpid()}/fd/{descriptor}"


def _copy_input(target: int) -> None:
    """Copy this process's input to a descriptor as it comes, and close that."""
    with contextlib.suppress(BrokenPipeError):  # without a buffer: Python cannot end while a thread reads from one
        with open(0, "rb", buffering=0, closefd=False) as source, open(target, "wb") as file:
            while piece := source.read(1 << 16):
                file.write(piece)
                file.flush()


@contextlib.asynccontextmanager
async def _uploaded_input(runtime: AbstractRuntime) -> AsyncIterator[str]:
    """Upload this process's input when its end is reached, and yield the path; remove the file afterwards."""
    path = f"/tmp/swerex-c-input-{secrets.token_hex(8)}"
    with tempfile.NamedTemporaryFile() as file:
        try:
            try:
                await in_thread(_copy_input, os.dup(file.fileno()))
                await runtime.upload(UploadRequest(source_path=file.name, target_path=path))
            except OSError as error:
                raise UploadError(f"The input cannot be uploaded to {path}: {error}") from None
            yield path
        finally:
            with contextlib.suppress(SwerexException, OSError):
                await runtime.execute(Command(command=["rm", "-f", path], timeout=_REMOVE_SECONDS))


def session_request(
    sources: list[Path] | None, startup_timeout: float | None, cwd: str | None, env: list[str] | None
) -> CreateBashSessionRequest:
    variables = {}
    for text in env or []:
        name, equals, variables[name] = text.partition("=")
        if not (name and equals):
            fail(f"--env takes NAME=VALUE, not {text!r}", Exit.USAGE)
    return checked(
        CreateBashSessionRequest,
        startup_source=[str(path) for path in sources or []],
        **({} if startup_timeout is None else {"startup_timeout": startup_timeout}),
        cwd=cwd,
        env=variables or None,
    )


def checked(model: type[Model], **fields: Any) -> Model:
    """Create a model from the user's options; exit if they are not valid."""
    try:
        return model(**fields)
    except ValueError as error:
        fail(str(error), Exit.USAGE)


class _Steps(DeploymentHook):
    """Show a person why the start takes time."""

    def on_custom_step(self, message: str) -> None:
        if sys.stderr.isatty():
            print(f"swerex-c: {message}", file=sys.stderr)


@contextlib.asynccontextmanager
async def _opened(target: Target | None) -> AsyncIterator[AbstractRuntime]:
    """Yield a runtime on this machine or in the target, and stop the deployment afterwards."""
    if target is None:
        async with quiet_runtime() as local:
            yield local
        return
    from swerex_c.providers.remote.config import RemoteDeploymentConfig

    logging.disable(logging.INFO)
    if isinstance(target.config, RemoteDeploymentConfig):
        from swerex_c.runtime.remote import RemoteRuntime

        # Not its deployment: stopping that would end the sessions of all clients of the server.
        remote = RemoteRuntime(**target.config.model_dump(exclude={"type"}))
        alive = await remote.is_alive()  # a request would try again for a while
        if not alive:
            raise ConnectionLostError(alive.message.splitlines()[-1])
        yield remote
        return
    deployment = target.config.get_deployment()
    deployment.add_hook(_Steps())
    async with deployment:
        yield deployment.runtime


async def _close_session(runtime: AbstractRuntime, session: str) -> None:
    with contextlib.suppress(SwerexException, OSError):  # an earlier error is the one to report
        await runtime.close_session(CloseBashSessionRequest(session=session))


def quiet_runtime() -> LocalRuntime:
    """Return a runtime that logs nothing."""
    from swerex_c.runtime.local import LocalRuntime

    quiet = logging.getLogger("swerex-c")
    quiet.addHandler(logging.NullHandler())
    quiet.propagate = False
    return LocalRuntime(logger=quiet)


def ended_by_signals(work: Coroutine[Any, Any, int]) -> int:
    """Run `work` in an event loop, cancel it on a signal, and return the exit code.

    Handlers of the loop would end with the loop, and a late signal would interrupt the exit. So these are handlers of
    the process, and the signals are ignored after the work, when the exit code is known."""
    received: list[int] = []

    async def main() -> int:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)

        def end(number: int, _frame: Any) -> None:
            received.append(number)
            if len(received) == 1:  # another one would interrupt the removal of a container
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(task.cancel)

        for number in _ENDING:
            signal.signal(number, end)
        return await task

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        if not received:
            raise
        return 128 + received[0]
    finally:
        for number in _ENDING:
            signal.signal(number, signal.SIG_IGN)


async def run_command(
    request: CreateBashSessionRequest,
    action: BashAction,
    result: Result,
    target: Target | None,
    *,
    with_input: bool,
    as_json: bool,
) -> int:
    """Run a command in a new session, print its output, and return its exit code.

    Args:
        result: set to the result as far as the command comes.
        target: where the session runs; None means this machine.
        with_input: give this process's input to the command; in a target, when the end of the input is reached.
        as_json: print nothing.
    """
    request.session = action.session = f"swerex-c-exec-{secrets.token_hex(8)}"  # a server may have others
    show = (lambda _: None) if as_json else print_piece
    pieces: list[str] = []
    async with contextlib.AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(_opened(target))
        response = await runtime.create_session(request)
        stack.push_async_callback(_close_session, runtime, request.session)
        show(response.output)
        source = _NO_INPUT
        if with_input and target is None:
            source = _own_input()
        elif with_input:
            source = await stack.enter_async_context(_uploaded_input(runtime))
        action.command = f"( eval {shlex.quote(action.command)} ) <{source}"
        began = time.perf_counter()
        try:
            async for item in runtime.stream_in_session(action):
                if isinstance(item, str):
                    show(item)
                    pieces += [item] if as_json else []
                else:
                    result.exit_code, result.failure_reason = item.exit_code, item.failure_reason
        finally:
            result.seconds = round(time.perf_counter() - began, 6)
            result.output = "".join(pieces)
    if result.failure_reason and not as_json:
        print(f"swerex-c: {visible(result.failure_reason)}", file=sys.stderr)
    return Exit.FAILED if result.exit_code is None else result.exit_code


async def run_shell(target: Target | None, request: CreateBashSessionRequest) -> int:
    """Run an interactive bash, which takes over this terminal, and return its exit code.

    Args:
        target: where the bash runs, by a client of the target's backend; None means this machine.
    """
    from swerex_c.engine.startup_files import check_request, startup_script
    from swerex_c.engine.syntax import find_bash
    from swerex_c.runtime.sandbox import SandboxRuntime
    from swerex_c.sandbox.processes import MARK, new_mark

    bash = _interactive_bash(startup_script(request, "swerex-c", in_sandbox=target is not None))
    if target is None:
        check_request(request, in_sandbox=False)
        bash[0] = find_bash()
        return await _run_on_terminal(bash, {**os.environ, **(request.env or {})}, request.cwd)
    async with _opened(target) as runtime:
        if not isinstance(runtime, SandboxRuntime):
            fail(f"{target.name} has no terminal to open a shell in: use `swerex-c exec`", Exit.USAGE)
        sandbox = runtime.sandbox
        argv = sandbox.backend.terminal(bash, ("TERM", MARK))
        return await _run_on_terminal(
            argv, {"TERM": "xterm", **sandbox.backend.environment(), MARK: new_mark(sandbox.mark)}
        )


def _interactive_bash(script: bytes) -> list[str]:
    start = 'exec bash --rcfile <(builtin printf "%s" "$1") -i'
    return ["bash", "-c", start, "bash", script.decode("utf-8", "surrogateescape")]


async def _run_on_terminal(argv: list[str], variables: dict[str, str], directory: str | None = None) -> int:
    """Run a program on this terminal, whose modes are restored afterwards, and return its exit code."""
    modes = termios.tcgetattr(0)
    try:
        process = subprocess.Popen(argv, env=variables, cwd=directory)
    except OSError as error:  # a directory that this user may not enter
        raise InvalidInputError(f"The shell cannot be started: {error}") from None
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # a bash that was killed has left the terminal to its own group
    try:
        code = await in_thread(process.wait)
    finally:
        _hang_up(process)
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(0, termios.TCSADRAIN, modes)
    return code if code >= 0 else 128 - code


def _hang_up(process: subprocess.Popen[bytes]) -> None:
    """End a shell with its jobs, to which bash passes the signal on."""
    deadline = time.monotonic() + _HANG_UP_SECONDS
    while process.poll() is None:
        # Again and again: one that comes right before bash waits for a key is handled after the next key.
        process.send_signal(signal.SIGHUP if time.monotonic() < deadline else signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)


def print_piece(text: str) -> None:
    """Print output unchanged to a file or a pipe, and with visible control characters to a terminal."""
    if sys.stdout.isatty():
        text = visible(text)
    rest = memoryview(text.encode("utf-8", "surrogateescape"))
    while rest:  # an unbuffered write (PYTHONUNBUFFERED) may be short, for example if the reader leaves
        rest = rest[sys.stdout.buffer.write(rest) :]
    sys.stdout.buffer.flush()
