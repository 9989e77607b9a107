"""Sessions of the commands `swerex-c exec` and `swerex-c shell`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import shutil
import signal
import stat
import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn, TypeVar

import typer

from swerex_c.cli.exit import Exit, drop_output, fail
from swerex_c.exceptions import BashIncorrectSyntaxError, CommandTimeoutError, SwerexException
from swerex_c.utils.visible import visible

if TYPE_CHECKING:
    from swerex_c.models import BashAction, BashObservation, CreateBashSessionRequest
    from swerex_c.runtime.local import LocalRuntime

__all__ = [
    "checked",
    "command_text",
    "ended_by_signals",
    "exit_on_errors",
    "print_piece",
    "run_command",
    "run_shell",
    "session_request",
    "with_input",
]

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


def with_input(text: str) -> str:
    """Return a command that runs `text` in a subshell with this process's input."""
    source = "/dev/null"
    if sys.stdin is not None and not sys.stdin.isatty():
        descriptor = sys.stdin.fileno()
        if stat.S_ISSOCK(os.fstat(descriptor).st_mode):  # a socket cannot be opened by its path
            descriptor = _piped(sys.stdin.buffer)
        source = f"/proc/{os.getpid()}/fd/{descriptor}"
    return f"( eval {shlex.quote(text)} ) <{source}"


def _piped(source: BinaryIO) -> int:
    """Start a thread that copies `source` into a pipe; return the read end."""
    reading, writing = os.pipe()

    def copy() -> None:
        with open(writing, "wb") as target, contextlib.suppress(OSError):
            shutil.copyfileobj(source, target)

    threading.Thread(target=copy, daemon=True).start()
    return reading


def session_request(
    sources: list[Path] | None, startup_timeout: float | None, cwd: str | None, env: list[str] | None
) -> CreateBashSessionRequest:
    from swerex_c.models import CreateBashSessionRequest

    variables = dict(_assignment(text) for text in env or [])
    return checked(
        CreateBashSessionRequest,
        startup_source=[str(path) for path in sources or []],
        **({} if startup_timeout is None else {"startup_timeout": startup_timeout}),
        cwd=cwd,
        env=variables or None,
    )


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        fail(f"--env takes NAME=VALUE, not {text!r}", Exit.USAGE)
    return name, value


def checked(model: type[Model], **fields: Any) -> Model:
    """Create a model from the user's options; exit if they are not valid."""
    try:
        return model(**fields)
    except ValueError as error:
        fail(str(error), Exit.USAGE)


@contextlib.asynccontextmanager
async def _session(request: CreateBashSessionRequest) -> AsyncIterator[LocalRuntime]:
    """Yield a runtime with one session, after printing the session's startup output."""
    runtime = _quiet_runtime()
    try:
        response = await runtime.create_session(request)
        print_piece(response.output)
        yield runtime
    finally:
        await runtime.close()


def _quiet_runtime() -> LocalRuntime:
    import logging

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


async def run_command(request: CreateBashSessionRequest, action: BashAction) -> int:
    """Run a command in a new session, print its output, and return its exit code."""
    async with _session(request) as runtime:
        observation: BashObservation | None = None
        async for item in runtime.stream_in_session(action):
            if isinstance(item, str):
                print_piece(item)
            else:
                observation = item
    if observation is None:
        fail("the session ended before the command", Exit.FAILED)
    if observation.failure_reason:
        print(f"swerex-c: {visible(observation.failure_reason)}", file=sys.stderr)
    return Exit.FAILED if observation.exit_code is None else observation.exit_code


def run_shell(request: CreateBashSessionRequest) -> int:
    """Run an interactive session outside of an event loop, which would catch ^C."""

    def end(number: int, _frame: Any) -> NoReturn:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    runtime = _quiet_runtime()
    try:
        print_piece(asyncio.run(runtime.create_session(request)).output)
        attached: Any = runtime.sessions[request.session]
        code: int = attached.interact(0, 1)
        return code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        asyncio.run(runtime.close())


def print_piece(text: str) -> None:
    """Print output unchanged to a file or a pipe, and with visible control characters to a terminal."""
    if sys.stdout.isatty():
        text = visible(text)
    rest = memoryview(text.encode("utf-8", "surrogateescape"))
    while rest:  # without a buffer (PYTHONUNBUFFERED), a write may be short: if its reader leaves, for example
        rest = rest[sys.stdout.buffer.write(rest) :]
    sys.stdout.buffer.flush()


@contextlib.contextmanager
def exit_on_errors() -> Iterator[None]:
    """Convert the errors of a session to a line on standard error and an exit code."""
    try:
        yield
    except BashIncorrectSyntaxError as error:
        said = str(error.extra_info.get("bash_stderr") or error).rstrip()
        fail(said, Exit.USAGE)
    except CommandTimeoutError as error:
        fail(str(error), Exit.TIMED_OUT)
    except BrokenPipeError:  # typer would make it 1
        drop_output()
        raise typer.Exit(Exit.BROKEN_PIPE) from None
    except SwerexException as error:
        fail(str(error), Exit.FAILED)
