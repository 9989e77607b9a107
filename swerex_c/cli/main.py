"""The command line of `swerex-c`, with all of its subcommands."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from swerex_c.cli.exit import Exit, Result, exit_on_errors, exit_on_lost_output, fail, open_closed_streams
from swerex_c.exceptions import BashIncorrectSyntaxError, InvalidInputError
from swerex_c.utils.child_signal import restore_child_signal
from swerex_c.utils.load import load_class
from swerex_c.utils.visible import visible

if TYPE_CHECKING:
    from swerex_c.cli.targets import Target

__all__ = ["app", "main"]

app = typer.Typer(
    name="swerex-c",
    help="Persistent bash sessions: SWE-ReX's API on an engine written in C.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

SourceOption = Annotated[
    list[Path] | None, typer.Option("--startup-source", metavar="FILE", help="Startup file to source; may be repeated.")
]
CwdOption = Annotated[
    str | None, typer.Option("--cwd", "-C", metavar="DIRECTORY", help="Directory in which the session starts.")
]
EnvOption = Annotated[
    list[str] | None,
    typer.Option("--env", "-e", metavar="NAME=VALUE", help="Variable of the session; may be repeated."),
]
ImageOption = Annotated[
    str | None, typer.Option("--image", metavar="IMAGE", help="Run in a new container of this image.")
]
HostOption = Annotated[
    str | None,
    typer.Option(
        "--host",
        metavar="HOST",
        help="Run on this host: USER@NAME for ssh, or a server's URL (its key is in SWEREX_AUTH_TOKEN).",
    ),
]
DeploymentOption = Annotated[
    str | None,
    typer.Option("--deployment", metavar="JSON", help='Run in this deployment, such as {"type": "modal"}.'),
]


class ContainerRuntime(StrEnum):
    """Commands that run containers."""

    docker = "docker"
    podman = "podman"


EngineOption = Annotated[ContainerRuntime, typer.Option("--container-runtime", help="Command of the container engine.")]


def main() -> None:
    """Run `swerex-c` with the arguments of the process, and exit."""
    restore_child_signal()
    open_closed_streams()
    with exit_on_lost_output():
        app(prog_name="swerex-c")


def _print_version(asked: bool) -> None:
    if asked:
        from swerex_c._version import API_VERSION as api
        from swerex_c._version import __version__ as own

        print(f"swerex-c {own} (SWE-ReX API {api})")
        raise typer.Exit


@app.callback()
def _global_options(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


# The swap


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", hidden=True)],
) -> None:
    """Run a command with `swerex` replaced by this package.

    The replacement holds in COMMAND and in every Python that it starts. The exit code is that of COMMAND, 127 if it was
    not found, and 126 if it cannot be run.
    """
    from swerex_c.swap import run_environment

    environment = run_environment(dict(os.environ))
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    try:
        os.execvpe(command[0], command, environment)
    except FileNotFoundError:
        fail(f"{command[0]}: command not found", Exit.NOT_FOUND)
    except OSError as error:
        fail(f"{command[0]}: {error.strerror}", Exit.CANNOT_RUN)


@app.command()
def enable(
    user: Annotated[bool, typer.Option("--user", help="Enable it for this user only.")] = False,
) -> None:
    """Replace `swerex` by this package, until `swerex-c disable`.

    The replacement holds in every process of this Python environment.
    """
    from swerex_c import swap

    with exit_on_errors():
        print(f"`import swerex` now gives swerex_c in {sys.prefix}: {swap.enable(user=user)}")


@app.command()
def disable() -> None:
    """Undo `swerex-c enable`."""
    from swerex_c import swap

    with exit_on_errors():
        removed = swap.disable()
    for path in removed:
        print(f"Removed {path}")
    if not removed:
        print(f"It was not enabled in {sys.prefix}")


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show which package `import swerex` gives here, and why."""
    from swerex_c import swap

    now = swap.status()
    if as_json:
        print(json.dumps(dataclasses.asdict(now), default=str))
        return
    original = f"the original, {now.original_path}" if now.original_path else "nothing"
    lines = [f"import swerex:  {'swerex_c' if now.active else original}"]
    lines += [f"enabled by:     {path}" for path in now.enabled] or ["enabled:        no"]
    lines += [f"swerex-c run:   {'yes' if now.run else 'no'}"]
    lines += ["switched off:   SWEREX_C_SWAP is 0"] if now.switched_off else []
    lines += [f"original:       {now.original_version or 'not installed'}"]
    print(*lines, sep="\n")


# Sessions


@app.command("exec", context_settings={"allow_interspersed_args": False})
def exec_(
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="COMMAND", hidden=True),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="File with the command to run; - is stdin.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", "-t", min=0, metavar="SECONDS", help="Time limit.")
    ] = None,
    no_output_timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Limit of the time without output.")
    ] = None,
    startup_source: SourceOption = None,
    startup_timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Time limit of the startup files (default: 10).")
    ] = None,
    cwd: CwdOption = None,
    env: EnvOption = None,
    image: ImageOption = None,
    container_runtime: EngineOption = ContainerRuntime.docker,
    host: HostOption = None,
    deployment: DeploymentOption = None,
    stdin: Annotated[
        bool, typer.Option("--stdin", help="Upload stdin for the command in a container or on a host.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON when the command ends.")] = False,
) -> None:
    """Run a command in a new session, and exit with its exit code.

    COMMAND is a bash command as one argument, or the words of one as several. Without it and without --file, the
    command is read from stdin. Otherwise the command reads stdin, unless that is a terminal: then the input of the
    command is empty. In a container or on a host it is empty, too, unless --stdin is given: then the command starts
    when all of the input is there. Output is printed as it comes.

    The exit code is that of the command. It is 1 if no session can run it, 2 if it is no bash command, 124 after a
    timeout, 127 without the file of --file, 128 + N after signal N, and 141 if the reader of the output has gone.
    """
    from swerex_c.cli import sessions
    from swerex_c.engine.syntax import check_bash_command
    from swerex_c.models import BashAction

    target = _target(host, image, deployment, container_runtime)
    text = sessions.command_text(command, file)
    is_from_stdin = not command and (file is None or str(file) == "-")
    if stdin and is_from_stdin:
        fail("--stdin needs a COMMAND or a --file other than -: stdin has the command", Exit.USAGE)
    request = sessions.session_request(startup_source, startup_timeout, cwd, env)
    action = sessions.checked(
        BashAction, command=text, timeout=timeout, no_output_timeout=no_output_timeout, check="silent"
    )
    has_input = stdin or target is None and not is_from_stdin
    result = Result()
    try:
        with exit_on_errors(result if as_json else None):
            try:
                check_bash_command(text)
            except BashIncorrectSyntaxError:  # unless the text, or a startup file, switches patterns like !(a) on
                if "(" not in text:
                    raise
                check_bash_command(text, "-O", "extglob")
            run = sessions.run_command(request, action, result, target, with_input=has_input, as_json=as_json)
            code = sessions.ended_by_signals(run)
            if result.exit_code is None and code > 128:
                result.error = f"swerex-c was ended by signal {code - 128}"
    finally:
        if as_json:
            print(json.dumps(vars(result)))
    raise typer.Exit(code)


def _target(
    host: str | None, image: str | None, deployment: str | None, container_runtime: ContainerRuntime
) -> Target | None:
    if host is image is deployment is None:
        return None
    from swerex_c.cli.targets import find_target

    try:
        return find_target(host, image, deployment, container_runtime=container_runtime.value)
    except InvalidInputError as error:
        fail(str(error), Exit.USAGE)


@app.command()
def shell(
    startup_source: SourceOption = None,
    cwd: CwdOption = None,
    env: EnvOption = None,
    image: ImageOption = None,
    container_runtime: EngineOption = ContainerRuntime.docker,
    host: HostOption = None,
    deployment: DeploymentOption = None,
) -> None:
    """Open an interactive bash in this terminal, as a session starts it.

    A container is removed when it ends.
    """
    from swerex_c.cli import sessions

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        fail("shell needs a terminal: use exec to run commands from a file or a pipe", Exit.USAGE)
    target = _target(host, image, deployment, container_runtime)
    request = sessions.session_request(startup_source, None, cwd, env)
    with exit_on_errors():
        code = sessions.ended_by_signals(sessions.run_shell(target, request))
    raise typer.Exit(code)


# The server


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
def serve(context: typer.Context) -> None:
    """Serve sessions on this machine to clients.

    The options are those of `swerex-remote`: `swerex-c serve --help` shows them. The default address is 127.0.0.1, and
    without a key a new one is made.
    """
    from swerex_c.cli import serve as serve_cli

    serve_cli.main(context.args, program="swerex-c serve", host="127.0.0.1", make_key=True)


# The machine


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what this machine has and lacks for sessions.

    The exit code is 0 if sessions can run.
    """
    from swerex_c.cli import doctor as _doctor

    raise typer.Exit(0 if _doctor.examine(as_json=as_json) else Exit.FAILED)


@app.command()
def demo() -> None:
    """Show a session step by step, and check every answer."""
    from swerex_c.cli import demo as _demo

    raise typer.Exit(_demo.main())


# Containers


class Cloud(StrEnum):
    """Services other than local container engines in which sandboxes may run."""

    daytona = "daytona"
    kubernetes = "kubernetes"
    modal = "modal"


@app.command()
def prune(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be removed.")] = False,
    container_runtime: EngineOption = ContainerRuntime.docker,
    cloud: Annotated[
        Cloud | None, typer.Option(help="Remove pods (of the current context) or sandboxes of this service instead.")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(metavar="NAME", help="Kubernetes namespace (default: that of the context).")
    ] = None,
) -> None:
    """Remove the sandboxes whose process died without stopping them.

    These are containers, pods and sandboxes of deployments. What belongs to living processes, to other machines or to
    other programs is left alone.
    """
    if namespace is not None and cloud is not Cloud.kubernetes:
        fail("--namespace needs --cloud kubernetes", Exit.USAGE)
    with exit_on_errors():
        from swerex_c.providers import orphans

        if cloud is None:
            owned = load_class("swerex_c.providers.docker.engine:Engine")(container_runtime.value).owned()
        else:
            find_owned = load_class(f"swerex_c.providers.{cloud}.deployment:find_owned")
            owned = find_owned(namespace) if cloud is Cloud.kubernetes else find_owned()
        found = orphans.prune(owned, dry_run=dry_run, timeout=120.0 if cloud else None)
    for one in found:
        if one.error is not None:
            print(visible(f"swerex-c: cannot remove {one.name}: {one.error}"), file=sys.stderr)
            continue
        done = "stopped but kept" if one.keep else "removed"
        print(visible(f"{'Would be ' if dry_run else ''}{done}: {one.name} ({one.about}, of the dead {one.owner})"))
    if not found:
        what = {None: "container", Cloud.kubernetes: "pod"}.get(cloud, "sandbox")
        print(f"{cloud or container_runtime.value} has no {what} of a dead process")
    raise typer.Exit(Exit.FAILED if any(one.error is not None for one in found) else 0)


# The benchmark


@app.command()
def bench(
    seconds: Annotated[
        float | None, typer.Option(min=1, metavar="SECONDS", help="Time limit (default: 60).", show_default=False)
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Measure for 15 seconds only, with rough results.")] = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="ROW", help="Row to measure; may be repeated.")
    ] = None,
    as_json: Annotated[
        Path | None,
        typer.Option("--json", metavar="FILE", help="Also write the results to FILE; with -, print only them."),
    ] = None,
    peers: Annotated[
        bool, typer.Option("--peers", help="Also measure pexpect, ptyprocess and SWE-ReX; they are installed apart.")
    ] = False,
    peers_python: Annotated[
        Path | None, typer.Option(help="Measure the peers that this Python interpreter has.", metavar="FILE")
    ] = None,
    image: ImageOption = None,
    container_runtime: EngineOption = ContainerRuntime.docker,
    host: HostOption = None,
    deployment: DeploymentOption = None,
) -> None:
    """Measure sessions on this machine in about a minute.

    They are compared with a bare terminal, plain programs, with --peers pexpect, ptyprocess and SWE-ReX, and with those
    in a container, on a host or in a deployment if it is given. Every answer is checked: a wrong one has no time, and
    makes the exit code 1. The seconds do not include the installation of the peers, nor the time that a container or a
    server takes to start and to end. After ^C the results are those until then.
    Rows: true, bin-true, start, sessions-64, output-1, output-64, interrupt, execute.
    """
    from swerex_c.bench import command

    target = _target(host, image, deployment, container_runtime)
    try:
        code = command.run(
            seconds or (15.0 if quick else 60.0),
            only or [],
            as_json=as_json,
            peers=peers,
            peers_interpreter=peers_python,
            target=target,
        )
    except InvalidInputError as error:
        fail(str(error), Exit.USAGE)
    raise typer.Exit(code)
