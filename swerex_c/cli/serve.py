"""Command line of `swerex-remote`: a server with SWE-ReX's options and more.

Modules that `--version` and wrong options do not need are imported later, so that these answer fast.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NoReturn

from swerex_c._version import API_VERSION
from swerex_c.cli.exit import Exit, exit_on_lost_output, fail, open_closed_streams
from swerex_c.exceptions import InvalidInputError, SwerexException
from swerex_c.remote.server import auth, logs
from swerex_c.remote.server.limits import Limits
from swerex_c.utils.child_signal import restore_child_signal

if TYPE_CHECKING:
    from swerex_c.remote.server.listeners import Listeners

__all__ = ["main"]

_LIMITS = {
    "body": "bytes per request, except uploads",
    "sessions": "open sessions",
    "requests": "concurrent requests",
    "connections": "open connections",
}
"""Fields of `Limits` that options set, with their descriptions."""

_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

_EPILOG = """\
Clients send the key in the header X-API-Key. --auth-token-file and the
environment variable SWEREX_AUTH_TOKEN keep it out of the process list. A key
given with --auth-token is overwritten there, but it is visible for a moment,
and in the program or script that started the server.
"""


def main(
    arguments: Sequence[str] | None = None,
    *,
    program: str = "swerex-remote",
    host: str = "0.0.0.0",
    make_key: bool = False,
) -> None:
    """Run the server and exit.

    Args:
        arguments: command-line arguments; None for those of the process.
        program: name of the command in messages.
        host: default for `--host`.
        make_key: if no key is given, generate and print one, instead of refusing to start.
    """
    restore_child_signal()
    open_closed_streams()
    with exit_on_lost_output(program):
        options = _parser(program, host).parse_args(arguments)
        if options.version:
            print(API_VERSION)
            return
    try:
        if options.stdio:
            _serve_stdio(options)
        else:
            _serve(options, program, host, make_key)
    except InvalidInputError as error:
        fail(str(error), Exit.USAGE, program)
    except SwerexException as error:
        fail(str(error), Exit.FAILED, program)
    except KeyboardInterrupt:  # before the server set its signal handlers
        raise SystemExit(130) from None


# Options


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        fail(f"{message} (see {self.prog} --help)", Exit.USAGE, self.prog)

    def print_help(self, file: Any = None) -> None:
        print(self.format_help(), end="", file=file)  # argparse ignores errors of the write


def _parser(program: str, host: str) -> argparse.ArgumentParser:
    parser = _Parser(
        prog=program,
        description="Serve sessions, commands and files of this machine to clients that have the key.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("-v", "--version", action="store_true", help="print the API version and exit")

    where = parser.add_argument_group("where to listen")
    where.add_argument("--host", help=f"host name or address (default: {host}; with --unix and without --port: none)")
    where.add_argument("--port", type=_number(int, 0, 65535), help="port; 0: any free port (default: 8000)")
    where.add_argument("--unix", metavar="PATH", help="path of a unix socket, accessible to this user only")
    where.add_argument("--stdio", action="store_true", help="serve one client on stdin and stdout; needs no key")
    where.add_argument("--tls-cert", metavar="FILE", help="TLS certificate (PEM); enables https")
    where.add_argument("--tls-key", metavar="FILE", help="private key of the certificate, unless in the same file")

    who = parser.add_argument_group("the key (one of these, or the variable SWEREX_AUTH_TOKEN)")
    one = who.add_mutually_exclusive_group()
    one.add_argument("--auth-token", metavar="KEY", help="the key itself")
    one.add_argument("--auth-token-file", metavar="FILE", help="file that contains the key")

    limits = parser.add_argument_group("limits (bytes may end in K, M, G)")
    for name, text in _LIMITS.items():
        default = getattr(Limits(), name)
        text += f" (default: {default})" if name != "body" else f" (default: {default >> 20}M)"
        limits.add_argument(f"--max-{name}", type=_number(_bytes, 1), default=default, metavar="N", help=text)

    warm = parser.add_argument_group("shells started ahead of time")
    warm.add_argument("--warm-sessions", type=_number(int, 0), default=0, metavar="N", help="number (default: 0)")

    log = parser.add_argument_group("logs and metrics")
    log.add_argument("--metrics", action="store_true", help="serve /metrics for Prometheus (needs prometheus-client)")
    log.add_argument("--log-format", choices=("text", "json"), default="text", help="json needs python-json-logger")
    log.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info", type=str.lower)
    seconds = "time limit of the shutdown (default: 5)"
    add("--graceful", type=_number(float, 0, 1e9), default=5.0, metavar="SECONDS", help=seconds)
    return parser


def _number(kind: Callable[[str], float], least: float, most: float = 1 << 50) -> Callable[[str], float]:
    """Return the type of an option: a number from `least` to `most`, which `kind` parses."""

    def number(text: str) -> float:
        value = kind(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not between {least} and {most}")
        return value

    return number


def _bytes(text: str) -> int:
    unit = _UNITS.get(text[-1:].lower(), 1)
    return int(text if unit == 1 else text[:-1]) * unit


def _limits(options: argparse.Namespace) -> Limits:
    return Limits(**{name: getattr(options, f"max_{name}") for name in _LIMITS})


def _key(options: argparse.Namespace) -> str | None:
    """Return the key from the options or the environment, or None; remove it from the environment."""
    from_environment = os.environ.pop(auth.VARIABLE, None)
    if options.auth_token is not None:
        return auth.checked(options.auth_token, "--auth-token")
    if options.auth_token_file is not None:
        return auth.from_file(options.auth_token_file)
    if from_environment is not None:
        return auth.checked(from_environment, auth.VARIABLE)
    return None


# Serving


def _serve(options: argparse.Namespace, program: str, default_host: str, make_key: bool) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        given = _key(options)
    if given is None and not make_key:
        msg = f"The server needs a key: set --auth-token-file FILE, the variable {auth.VARIABLE}, or --auth-token KEY"
        raise InvalidInputError(msg)
    secret = given or auth.new()
    hidden = auth.hide(secret)
    auth.protect()
    from swerex_c.remote.server.process import leave_first_process, run

    leave_first_process()
    logs.set_up(options.log_format, options.log_level)
    for warning in caught:
        logs.LOGGER.warning("%s", warning.message)
    if not hidden and options.auth_token is not None:
        logs.LOGGER.warning(
            "The key is visible in the process list: use --auth-token-file or the variable %s", auth.VARIABLE
        )

    from swerex_c.remote.server.listeners import Listeners

    only_unix = options.unix is not None and options.host is None and options.port is None
    host = None if only_unix else options.host or default_host
    port = 8000 if options.port is None else options.port

    def ready() -> None:
        logs.listening(str(listeners))
        if given is None:
            with exit_on_lost_output(program):
                _print_key(listeners, secret)

    # Listen before the slow imports, so that a port in use is reported at once.
    with contextlib.closing(Listeners(host, port, options.unix, options.tls_cert, options.tls_key)) as listeners:
        # Typed as Any, because callers may set the module's globals to other values.
        server: Any = importlib.import_module("swerex_c.server")
        from swerex_c.remote.server.app import create_app
        from swerex_c.remote.server.serve import serve
        from swerex_c.remote.server.service import Service

        server.AUTH_TOKEN = secret
        if options.warm_sessions:
            from swerex_c.runtime.local import LocalRuntime

            server.runtime = LocalRuntime(warm_sessions=options.warm_sessions)
        service = Service(server, _limits(options))
        server.app = create_app(service, metrics=options.metrics)
        run(partial(serve, service, server.app, listeners, graceful=options.graceful, ready=ready), options.graceful)


def _print_key(listeners: Listeners, secret: str) -> None:
    """Print the key for the user, once, on standard output; the log never contains it."""
    if listeners.url is None:
        where = f'host="unix://{listeners.unix}"'
    else:
        host = listeners.url.replace("//0.0.0.0", "//127.0.0.1").replace("//[::]", "//127.0.0.1")
        where = f'host="{host}", port={listeners.port}'
    text = f"""\
The key of this server until it stops: {secret}
To use it from Python:

    from swerex_c.runtime.remote import RemoteRuntime
    runtime = RemoteRuntime({where}, auth_token="{secret}")

"""
    with open(1, "w", closefd=False) as out:
        out.write(text)


def _serve_stdio(options: argparse.Namespace) -> None:
    """Serve frames on standard input and output; other output of the process goes to standard error."""
    for name in ("host", "port", "unix", "tls_cert", "tls_key", "auth_token", "auth_token_file", "metrics"):
        if (given := getattr(options, name)) is not None and given is not False:
            raise InvalidInputError(f"--stdio cannot be combined with --{name.replace('_', '-')}")

    if unused := os.environ.pop(auth.VARIABLE, None):
        auth.hide(unused)
    from swerex_c.remote.server.process import leave_first_process, run

    leave_first_process()
    read_fd, write_fd = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    logs.set_up(options.log_format, options.log_level)

    from swerex_c.remote.server.service import Service
    from swerex_c.remote.server.stdio import serve_stdio
    from swerex_c.runtime.local import LocalRuntime

    holder = SimpleNamespace(runtime=LocalRuntime(warm_sessions=options.warm_sessions), AUTH_TOKEN="")
    service = Service(holder, _limits(options))
    run(partial(serve_stdio, service, read_fd, write_fd, options.graceful), options.graceful)
