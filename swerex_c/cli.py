"""The command `swerex-c`."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from swerex_c.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    SwapError,
    SwerexException,
)

if TYPE_CHECKING:
    from swerex_c.deployment._owners import Left
    from swerex_c.runtime.abstract import BashAction, BashObservation, CreateBashSessionRequest
    from swerex_c.runtime.local import LocalRuntime

__all__ = ["app", "main"]


class Exit(IntEnum):
    """What the command ends with when it is not a command's own exit code; as shells and timeout(1) have them."""

    FAILED = 1
    USAGE = 2
    TIMED_OUT = 124
    CANNOT_RUN = 126
    NOT_FOUND = 127
    BROKEN_PIPE = 141


Model = TypeVar("Model")

app = typer.Typer(
    name="swerex-c",
    help="Persistent bash sessions, and SWE-ReX's API on an engine written in C.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

SessionOption = Annotated[str, typer.Option("--session", "-s", help="Name of the session.")]
SourceOption = Annotated[
    list[Path] | None, typer.Option("--startup-source", help="File to source first; may be repeated.")
]
StartupTimeoutOption = Annotated[float, typer.Option(min=0, help="Seconds that starting up may take.")]
CwdOption = Annotated[str | None, typer.Option("--cwd", "-C", help="Directory to start in.")]
EnvOption = Annotated[list[str] | None, typer.Option("--env", "-e", help="NAME=VALUE to set; may be repeated.")]


def main() -> None:
    """Run the command with the process's arguments, and exit."""
    app()


def _print_version(asked: bool) -> None:
    if asked:
        from swerex_c import __version__ as api
        from swerex_c._version import __version__ as own

        print(f"swerex-c {own} (SWE-ReX API {api})")
        raise typer.Exit


@app.callback()
def _global_options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


# The swap


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="What to run.")],
) -> None:
    """Run a command with `swerex` replaced by this package, in it and in every Python that it starts."""
    from swerex_c.swap import run_environment

    environment = run_environment(dict(os.environ))
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    try:
        os.execvpe(command[0], command, environment)
    except FileNotFoundError:
        _fail(f"{command[0]}: command not found", Exit.NOT_FOUND)
    except OSError as error:
        _fail(f"{command[0]}: {error.strerror}", Exit.CANNOT_RUN)


@app.command()
def enable(
    user: Annotated[bool, typer.Option("--user", help="For this user only.")] = False,
) -> None:
    """Replace `swerex` by this package in every process of this environment, until `swerex-c disable`."""
    from swerex_c import swap

    try:
        print(f"swerex is swerex_c from now on in {sys.prefix}: {swap.enable(user=user)}")
    except SwapError as error:
        _fail(str(error), Exit.FAILED)


@app.command()
def disable() -> None:
    """Take `swerex-c enable` back."""
    from swerex_c import swap

    try:
        removed = swap.disable()
    except SwapError as error:
        _fail(str(error), Exit.FAILED)
    for path in removed:
        print(f"Removed {path}")
    if not removed:
        print(f"It was not enabled in {sys.prefix}")


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Tell what `import swerex` gives in this environment, and why."""
    from swerex_c import swap

    now = swap.status()
    if as_json:
        facts = {name: getattr(now, name) for name in now.__dataclass_fields__}
        print(json.dumps(facts | {"enabled": [str(path) for path in now.enabled]}))
        return
    for line in _status_lines(now):
        print(line)


def _status_lines(now: Any) -> list[str]:
    gives = "swerex_c" if now.active else now.original_path and f"the original, {now.original_path}" or "nothing"
    lines = [f"import swerex:  {gives}"]
    lines += [f"enabled by:     {path}" for path in now.enabled] or ["enabled:        no"]
    lines += [f"swerex-c run:   {'yes' if now.run else 'no'}"]
    lines += ["switched off:   SWEREX_C_SWAP is 0"] if now.switched_off else []
    lines += [f"original:       {now.original_version or 'not installed'}"]
    return lines


# Sessions


@app.command("exec", context_settings={"allow_interspersed_args": False})
def exec_(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", help="One argument is a command for bash; several are its words."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Run what is in this file, in the session itself; - is stdin.")
    ] = None,
    timeout: Annotated[float | None, typer.Option("--timeout", "-t", min=0, help="Seconds it may take.")] = None,
    no_output_timeout: Annotated[float | None, typer.Option(min=0, help="Seconds it may print nothing.")] = None,
    session: SessionOption = "default",
    startup_source: SourceOption = None,
    startup_timeout: StartupTimeoutOption = 10.0,
    cwd: CwdOption = None,
    env: EnvOption = None,
) -> None:
    """Run a command in a new session, print its output as it comes, and end with its exit code.

    Without a command and a file, the command is read from stdin. Ends with 124 after a timeout.
    """
    from swerex_c.runtime.abstract import BashAction

    text = _command_text(command, file)
    request = _session_request(session, startup_source, startup_timeout, cwd, env)
    action = _checked(
        BashAction,
        command=text,
        session=session,
        timeout=timeout,
        no_output_timeout=no_output_timeout,
        check="silent",
    )
    with _exit_on_errors():
        code = asyncio.run(_ended_by_signals(_exec(request, action)))
    raise typer.Exit(code)


@app.command()
def shell(
    session: SessionOption = "default",
    startup_source: SourceOption = None,
    startup_timeout: StartupTimeoutOption = 10.0,
    cwd: CwdOption = None,
    env: EnvOption = None,
) -> None:
    """Work in a new session by hand, as a person would in a terminal."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        _fail("shell needs a terminal: use exec for commands from a file or a pipe", Exit.USAGE)
    size = shutil.get_terminal_size()
    request = _session_request(session, startup_source, startup_timeout, cwd, env)
    request.rows, request.columns = size.lines, size.columns
    with _exit_on_errors():
        code = _shell(request)
    raise typer.Exit(code)


def _command_text(command: list[str] | None, file: Path | None) -> str:
    """The command from whichever place it is given in."""
    if command and file:
        _fail("give a command or --file, not both", Exit.USAGE)
    if command:
        return command[0] if len(command) == 1 else shlex.join(command)
    if file is None and sys.stdin.isatty():
        _fail("give a command, --file, or a command on stdin", Exit.USAGE)
    try:
        data = sys.stdin.buffer.read() if file is None or str(file) == "-" else file.read_bytes()
        return data.decode()
    except OSError as error:
        _fail(f"{file}: {error.strerror}", Exit.NOT_FOUND)
    except UnicodeDecodeError as error:
        _fail(f"the command is not UTF-8: {error}", Exit.USAGE)


def _session_request(
    session: str, sources: list[Path] | None, startup_timeout: float, cwd: str | None, env: list[str] | None
) -> CreateBashSessionRequest:
    from swerex_c.runtime.abstract import CreateBashSessionRequest

    variables = dict(_assignment(text) for text in env or [])
    return _checked(
        CreateBashSessionRequest,
        session=session,
        startup_source=[str(path) for path in sources or []],
        startup_timeout=startup_timeout,
        cwd=cwd,
        env=variables or None,
    )


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        _fail(f"--env takes NAME=VALUE, not {text!r}", Exit.USAGE)
    return name, value


def _checked(model: type[Model], **fields: Any) -> Model:
    """A model made from what the user typed."""
    try:
        return model(**fields)
    except ValueError as error:
        _fail(str(error), Exit.USAGE)


@contextlib.asynccontextmanager
async def _session(request: CreateBashSessionRequest) -> AsyncIterator[LocalRuntime]:
    """A runtime with one session, whose startup output has been printed."""
    runtime = _quiet_runtime()
    try:
        response = await runtime.create_session(request)
        _print_piece(response.output)
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


async def _ended_by_signals(work: Coroutine[Any, Any, int]) -> int:
    """Do some work, but stop it in good order, with its sessions closed, when the process is told to end."""
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
    received: list[int] = []

    def end(number: int) -> None:
        received.append(number)
        task.cancel()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, end, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            raise
        return 128 + received[0]


async def _exec(request: CreateBashSessionRequest, action: BashAction) -> int:
    async with _session(request) as runtime:
        observation: BashObservation | None = None
        async for item in runtime.stream_in_session(action):
            if isinstance(item, str):
                _print_piece(item)
            else:
                observation = item
    if observation is None:
        _fail("the session ended without an answer", Exit.FAILED)
    if observation.failure_reason:
        print(f"swerex-c: {observation.failure_reason}", file=sys.stderr)
    return Exit.FAILED if observation.exit_code is None else observation.exit_code


def _shell(request: CreateBashSessionRequest) -> int:
    """Outside of an event loop, which would take ^C away from the prompt."""

    def end(number: int, _frame: Any) -> NoReturn:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    runtime = _quiet_runtime()
    try:
        _print_piece(asyncio.run(runtime.create_session(request)).output)
        attached: Any = runtime.sessions[request.session]
        code: int = attached.interact(0, 1)
        return code
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        asyncio.run(runtime.close())


def _print_piece(text: str) -> None:
    sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
    sys.stdout.buffer.flush()


@contextlib.contextmanager
def _exit_on_errors() -> Iterator[None]:
    """Turn what can go wrong in a session into a line on stderr and an exit code."""
    try:
        yield
    except BashIncorrectSyntaxError as error:
        said = str(error.extra_info.get("bash_stderr") or error).rstrip()
        _fail(said, Exit.USAGE)
    except CommandTimeoutError as error:
        _fail(str(error), Exit.TIMED_OUT)
    except BrokenPipeError:
        # Python would complain about the rest of the buffer when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(Exit.BROKEN_PIPE) from None
    except SwerexException as error:
        _fail(str(error), Exit.FAILED)


def _fail(message: str, code: int) -> NoReturn:
    print(f"swerex-c: {message}", file=sys.stderr)
    raise typer.Exit(code)


# The server


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
def serve(context: typer.Context) -> None:
    """Serve this machine's sessions to clients: the options of `swerex-remote`, but only on 127.0.0.1 unless told
    otherwise, and with a new key unless one is given. `swerex-c serve --help` shows them."""
    from swerex_c.remote import serve_cli

    serve_cli.main(context.args, program="swerex-c serve", host="127.0.0.1", make_key=True)


# The machine


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Show what this machine has and lacks. Ends with 0 if sessions can run."""
    from swerex_c import _doctor

    findings = _doctor.examine()
    if as_json:
        print(json.dumps(_doctor.as_data(findings), indent=2))
    else:
        _doctor.print_table(findings)
    raise typer.Exit(0 if _doctor.sessions_can_run(findings) else Exit.FAILED)


# Containers


class ContainerRuntime(StrEnum):
    """The commands that run containers."""

    docker = "docker"
    podman = "podman"


class Cloud(StrEnum):
    """What else may hold places of ours than this machine's engines."""

    daytona = "daytona"
    kubernetes = "kubernetes"
    modal = "modal"


@app.command()
def prune(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show them.")] = False,
    container_runtime: Annotated[
        ContainerRuntime, typer.Option(help="The command that runs containers.")
    ] = ContainerRuntime.docker,
    cloud: Annotated[
        Cloud | None, typer.Option(help="Look there instead: for pods of the current context, or for sandboxes.")
    ] = None,
    namespace: Annotated[str | None, typer.Option(help="Of Kubernetes; that of the context if not given.")] = None,
) -> None:
    """Remove what deployments left whose process died without stopping them: containers, pods, sandboxes.

    What belongs to processes that live, to other machines and to other programs is left alone.
    """
    try:
        found = _left_in(cloud, container_runtime.value, namespace, dry_run)
    except (SwerexException, TimeoutError, ImportError) as error:
        _fail(str(error) or "There was no answer in time", Exit.FAILED)
    for one in found:
        if one.error is not None:
            print(f"swerex-c: {one.name} could not be removed: {one.error}", file=sys.stderr)
            continue
        done = "ended, and kept" if one.keep else "removed"
        print(f"{'Would be ' if dry_run else ''}{done}: {one.name} ({one.about}, of the dead {one.owner})")
    if not found:
        what = {None: "container", Cloud.kubernetes: "pod"}.get(cloud, "sandbox")
        print(f"No {what} of {cloud or container_runtime.value} is left of a dead process")
    raise typer.Exit(Exit.FAILED if any(one.error is not None for one in found) else 0)


def _left_in(cloud: Cloud | None, engine: str, namespace: str | None, dry_run: bool) -> list[Left]:
    if cloud is None:
        from swerex_c.deployment import _engine, _prune

        return _prune.prune(_engine.Engine(engine), dry_run=dry_run)
    if cloud is Cloud.kubernetes:
        from swerex_c.deployment import _kube_prune

        return _kube_prune.prune(namespace=namespace, dry_run=dry_run)
    if cloud is Cloud.modal:
        from swerex_c.deployment import _modal_tags

        return _modal_tags.prune(dry_run=dry_run)
    from swerex_c.deployment import _daytona_labels

    return _daytona_labels.prune(dry_run=dry_run)


# The benchmark


@app.command()
def bench(
    seconds: Annotated[
        float | None, typer.Option(min=1, help="What it may take; 60 unless given. It is kept.", show_default=False)
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="15 seconds, rough.")] = False,
    only: Annotated[list[str] | None, typer.Option("--only", metavar="ROW", help="May be repeated.")] = None,
    as_json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write everything there too; - is stdout, alone.")
    ] = None,
    original_python: Annotated[
        Path | None, typer.Option(help="A Python that has SWE-ReX, if this one has not.", metavar="PATH")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Measure a server as well, such as http://127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Of that server.")] = None,
    auth_token: Annotated[
        str | None, typer.Option(envvar="SWEREX_AUTH_TOKEN", help="The key of that server.", show_default=False)
    ] = None,
    image: Annotated[str | None, typer.Option(help="Measure a container of this image as well.")] = None,
    container_runtime: Annotated[
        ContainerRuntime, typer.Option(help="The command that runs containers.")
    ] = ContainerRuntime.docker,
    deployment: Annotated[
        str | None, typer.Option(metavar="JSON", help="Measure this deployment as well, such as an ssh host.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the order of the turns.")] = 1,
) -> None:
    """Measure sessions on this machine, beside what limits them, in about a minute.

    Every answer is checked: a wrong one has no time, and makes this end with 1. The time that a container or a server
    takes to start and to end is not counted among the seconds. Rows: builtin, program, create, output-1, output-64,
    fleet-16, fleet-64, interrupt, execute.
    """
    from swerex_c.bench import command
    from swerex_c.exceptions import InvalidInputError

    try:
        place = command.place_of(host, port, auth_token, image, container_runtime.value, deployment)
        wanted = command.Wanted(seconds or (15.0 if quick else 60.0), only or [], as_json, original_python, place, seed)
        code = command.run(wanted)
    except InvalidInputError as error:
        _fail(str(error), Exit.USAGE)
    raise typer.Exit(code)
