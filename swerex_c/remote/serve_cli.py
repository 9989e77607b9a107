"""The command `swerex-remote`: a server with the original's options and some more.

What is not needed for a wrong option or `--version` is imported later, so that these answer at once.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from swerex_c import __version__
from swerex_c.exceptions import InvalidInputError, SwerexException
from swerex_c.remote.limits import Limits

if TYPE_CHECKING:
    import argparse

    from swerex_c.remote.listen import Places, ServeOptions
    from swerex_c.runtime.local import LocalRuntime

__all__ = ["FAILED", "USAGE", "main"]

FAILED = 1
"""Exit code: the machine lacks something, such as a free port or a readable certificate."""

USAGE = 2
"""Exit code: the options are wrong, or there is no key."""

_DEFAULTS = Limits()

_UNITS = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}

_EPILOG = """\
Clients must show the key, in the header X-API-Key; the Python client does. --auth-token-file and the environment
variable SWEREX_AUTH_TOKEN keep it out of the list of processes. A key that is given by --auth-token is overwritten
there, but can be seen for the first moments, and in whatever started the server.
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
        arguments: instead of the process's.
        program: what it is called in messages.
        host: where it listens unless told otherwise.
        make_key: without a key, make one and print it, instead of refusing to start.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not {"-v", "--version"}.isdisjoint(words):
        if len(words) > 1:
            print("Error: --version cannot be combined with other arguments")
            raise SystemExit(FAILED)
        print(__version__)
        return
    parser = _parser(program, host)
    options = parser.parse_args(words)
    try:
        _check(options)
        if options.stdio:
            _serve_stdio(options)
        else:
            _serve(options, program, host, make_key)
    except InvalidInputError as error:
        _fail(program, str(error), USAGE)
    except SwerexException as error:
        _fail(program, str(error), FAILED)
    except KeyboardInterrupt:  # before the server took the signals
        raise SystemExit(130) from None


def _fail(program: str, message: str, code: int) -> NoReturn:
    print(f"{program}: {message}", file=sys.stderr)
    raise SystemExit(code)


# Options


def _parser(program: str, host: str) -> argparse.ArgumentParser:
    import argparse

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            _fail(program, f"{message} (see {program} --help)", USAGE)

    parser = Parser(
        prog=program,
        description="Serve this machine's sessions, commands and files to clients that know the key.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("-v", "--version", action="store_true", help="print the version of the API, and exit")

    where = parser.add_argument_group("where to listen")
    where.add_argument("--host", help=f"name or address (default: {host}; none if there is --unix and no --port)")
    where.add_argument("--port", type=_port, help="port, up to 65535; 0: one that is free (default: 8000)")
    where.add_argument("--unix", metavar="PATH", help="unix socket, for this user only")
    where.add_argument("--stdio", action="store_true", help="serve standard input and output instead; needs no key")
    where.add_argument("--tls-cert", metavar="FILE", help="certificate (PEM), which makes it https")
    where.add_argument("--tls-key", metavar="FILE", help="its private key, unless it is in the same file")

    who = parser.add_argument_group("the key (one of these, or the variable SWEREX_AUTH_TOKEN)")
    who.add_argument("--auth-token", metavar="KEY", help="the key itself")
    who.add_argument("--auth-token-file", metavar="FILE", help="a file that holds it")

    limits = parser.add_argument_group("limits (bytes may end in K, M, G)")
    for name, kind, text in (
        ("body", _size, "bytes of one request, uploads excepted"),
        ("sessions", _count, "sessions at the same time"),
        ("requests", _count, "requests in flight at the same time"),
        ("connections", _count, "connections at the same time"),
        ("rate", _seconds, "requests a second of one address; 0: any"),
        ("results", _count, "results kept for each client, in case that it asks again"),
        ("result-seconds", _seconds, "how long they are kept"),
        ("result-bytes", _size, "bytes of them"),
        ("head-seconds", _positive, "seconds that the head of a request may take"),
    ):
        default = getattr(_DEFAULTS, name.replace("-", "_"))
        shown = f"{default >> 30}G" if kind is _size else f"{default:g}"
        limits.add_argument(f"--max-{name}", type=kind, metavar="N", help=f"{text} (default: {shown})")

    warm = parser.add_argument_group("shells that are started before a session is asked for")
    warm.add_argument("--warm-sessions", type=_number, default=0, metavar="N", help="how many (default: 0)")
    warm.add_argument("--warm-startup-files", action="store_true", help="they read the startup files ahead of time too")

    log = parser.add_argument_group("what it tells")
    log.add_argument("--metrics", action="store_true", help="answer /metrics for Prometheus (needs prometheus-client)")
    log.add_argument("--log-format", choices=("text", "json"), default="text", help="json needs python-json-logger")
    log.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="info", type=str.lower)
    loops = ("auto", "asyncio", "uvloop")
    add("--loop", choices=loops, default="auto", help="the event loop; auto: uvloop if it is installed (default: auto)")
    add("--graceful", type=_seconds, default=5.0, metavar="SECONDS", help="how long ending may take (default: 5)")
    return parser


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise ValueError
    return port


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise ValueError
    return count


def _number(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError
    return number


def _size(text: str) -> int:
    unit = _UNITS.get(text[-1:].lower(), 1)
    return _count(text if unit == 1 else text[:-1]) * unit


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1e9:
        raise ValueError
    return value


def _positive(text: str) -> float:
    value = _seconds(text)
    if value <= 0:
        raise ValueError
    return value


for _function, _name in (
    (_port, "port (0 to 65535)"), (_count, "count"), (_number, "count"), (_size, "number of bytes"),
    (_seconds, "number"), (_positive, "number"),
):  # fmt: skip
    _function.__name__ = _name  # as in "invalid count value: 'x'"


def _check(options: argparse.Namespace) -> None:
    """Refuse what cannot be meant together.

    Raises:
        InvalidInputError: with what it is.
    """
    if options.stdio:
        for name in ("host", "port", "unix", "tls_cert", "tls_key", "auth_token", "auth_token_file"):
            if getattr(options, name) is not None:
                raise InvalidInputError(f"--stdio goes without --{name.replace('_', '-')}")
        if options.metrics:
            raise InvalidInputError("--stdio goes without --metrics")
    if options.auth_token is not None and options.auth_token_file is not None:
        raise InvalidInputError("Give --auth-token or --auth-token-file, not both")


def _limits(options: argparse.Namespace) -> Limits:
    from dataclasses import fields

    given = {one.name: getattr(options, f"max_{one.name}") for one in fields(Limits)}
    return Limits(**{name: value for name, value in given.items() if value is not None})


def _runtime(options: argparse.Namespace) -> LocalRuntime:
    from swerex_c.runtime.local import LocalRuntime

    return LocalRuntime(warm_sessions=options.warm_sessions, warm_startup_files=options.warm_startup_files)


def _serve_options(options: argparse.Namespace, default_host: str) -> ServeOptions:
    from swerex_c.remote.serve import ServeOptions

    only_unix = options.unix is not None and options.host is None and options.port is None
    return ServeOptions(
        host=None if only_unix else options.host or default_host,
        port=8000 if options.port is None else options.port,
        unix=options.unix,
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
        limits=_limits(options),
        metrics=options.metrics,
        graceful=options.graceful,
        loop=options.loop,
    )


# The key


def _key(options: argparse.Namespace) -> str | None:
    """The key that the options or the environment name. No session can inherit it from here on.

    Raises:
        InvalidInputError: if it cannot be one.
    """
    from swerex_c.remote import key

    from_environment = key.take_from_environment()
    if options.auth_token is not None:
        return key.checked(options.auth_token, "--auth-token")
    if options.auth_token_file is not None:
        return key.from_file(options.auth_token_file)
    if from_environment is not None:
        return key.checked(from_environment, key.VARIABLE)
    return None


# Serving


def _serve(options: argparse.Namespace, program: str, default_host: str, make_key: bool) -> None:
    from swerex_c.remote import key, logs

    logs.set_up(options.log_format, options.log_level)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        given = _key(options)
    for warning in caught:
        logs.LOGGER.warning("%s", warning.message)
    if given is None and not make_key:
        msg = f"A key is needed: --auth-token-file FILE, the variable {key.VARIABLE}, or --auth-token KEY"
        raise InvalidInputError(msg)
    secret = given or key.new()
    if not key.hide(secret) and options.auth_token is not None:
        logs.LOGGER.warning(
            "The key can be seen in the list of processes: use --auth-token-file or the variable %s", key.VARIABLE
        )

    from swerex_c.remote import serve

    where = _serve_options(options, default_host)

    def ready(places: Places) -> None:
        gc.freeze()  # and nothing of them needs to be looked at again
        gc.enable()
        logs.listening(str(places))
        if given is None:
            _print_key(places, secret)

    gc.disable()  # for the imports: nothing of them is garbage
    # It listens before the slow imports, so that a port that is taken is told at once.
    with contextlib.closing(serve.Listeners(where)) as listeners:
        # The module's globals are the callers' to set, so that they are not typed.
        server: Any = importlib.import_module("swerex_c.server")
        from swerex_c.remote.channel import Registry
        from swerex_c.remote.http_app import create_app
        from swerex_c.remote.service import Service

        server.AUTH_TOKEN = secret
        if options.warm_sessions:
            server.runtime = _runtime(options)
        service = Service(server, where.limits)
        server.app = create_app(service)
        serve.run(service, server.app, where, Registry, listeners=listeners, ready=ready)


def _print_key(places: Places, secret: str) -> None:
    """Once, on standard output, which is for the user; the log never has it."""
    if places.url is None:
        where = f'host="unix://{places.unix}"'
    else:
        host = places.url.rpartition(":")[0]
        for everywhere in ("0.0.0.0", "[::]"):
            host = host.replace(f"//{everywhere}", "//127.0.0.1")
        where = f'host="{host}", port={places.port}'
    print(f"The key of this server, until it ends: {secret}\nTo use it from Python:\n")
    print("    from swerex_c.runtime.remote import RemoteRuntime")
    print(f'    runtime = RemoteRuntime({where}, auth_token="{secret}")\n')
    sys.stdout.flush()


def _serve_stdio(options: argparse.Namespace) -> None:
    """Frames on what were standard input and output; whatever else is written there goes to standard error."""
    read_fd, write_fd = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)

    from types import SimpleNamespace

    from swerex_c.remote import key, logs

    logs.set_up(options.log_format, options.log_level)
    if unused := key.take_from_environment():
        key.hide(unused)

    from swerex_c.remote import serve
    from swerex_c.remote.service import Service

    place = SimpleNamespace(runtime=_runtime(options), AUTH_TOKEN="")
    serve.run_stdio(Service(place, _limits(options)), read_fd, write_fd, options.graceful, options.loop)
