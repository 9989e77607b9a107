"""Environment of a session's shell, and the script that reads startup files."""

from __future__ import annotations

import os
import re
import shlex

from swerex_c import _core
from swerex_c.engine.execute import encode_variables
from swerex_c.engine.outcomes import validate_seconds
from swerex_c.engine.syntax import encode, own_environment
from swerex_c.exceptions import InvalidInputError
from swerex_c.models import CreateBashSessionRequest, startup_seconds

__all__ = ["READ_BY_BASH", "SET_BY_CORE", "check_request", "environment", "startup_script"]

_STARTUP = b"""\
[[ ! -r /etc/bash.bashrc ]] || . /etc/bash.bashrc
[[ ! -r ~/.bashrc ]] || . ~/.bashrc
"""
"""The startup files that an interactive bash reads by itself. The shell is started without them, so that the session is
in control before they are read, and a startup file cannot interfere."""

READ_BY_BASH = ("/etc/bash.bashrc", "~/.bashrc")
"""Their names, for messages."""

_NO_LOGOUT = b"[[ ! -v TMOUT ]] || builtin unset -v TMOUT 2>&- || builtin :\n"
"""Script after the startup files: unset TMOUT, so that an idle shell does not exit after some minutes."""

_STRICT = {"errexit": "e", "nounset": "u"}
"""Options that a strict parent may export in SHELLOPTS, with their letters. Startup files are not written for them:
bash too turns `errexit` on behind them."""

_NAME = re.compile(r"(?!(?:UID|EUID|PPID|SHELLOPTS|BASHOPTS|BASH_VERSINFO)$)[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
"""Pattern of the variables that bash can assign."""

_VARIABLE = re.compile(r"\$(\{)?([A-Za-z_]\w*)(?(1)\})", re.ASCII)
"""Pattern of a variable in the name of a startup file, which SWE-ReX gives to the shell as it is."""

_PROMPTS = ("PS0", "PS1", "PS2")

SET_BY_CORE = (*_PROMPTS, "HISTFILE")
"""Variables that the core sets; a session cannot inherit them. It begins without a history file, because bash would cut
that of this user to 500 lines before a startup file says how long it may be."""

_SET_BY_CORE = frozenset(map(os.fsencode, SET_BY_CORE))

_LONGEST_LINE = 900
"""Maximum bytes of a line that is typed as it is. A terminal takes 4,095, and some clients less."""


def check_request(request: CreateBashSessionRequest, *, in_sandbox: bool) -> None:
    """Check the fields of a request that need no shell.

    Args:
        in_sandbox: whether its directory is that of a sandbox, which only the shell can check.

    Raises:
        InvalidInputError: if a field is invalid.
    """
    validate_seconds(startup_seconds(request), "startup_timeout")
    if not in_sandbox and request.cwd is not None and not os.path.isdir(request.cwd):
        raise InvalidInputError(f"The directory {request.cwd!r} that the session should start in does not exist")
    encode_variables(request.env or {})
    if in_sandbox:  # where the shell itself exports them
        for name in request.env or {}:
            if not _NAME.fullmatch(name):
                raise InvalidInputError(f"{name!r} cannot be the name of an environment variable of a session")


def environment(request: CreateBashSessionRequest) -> list[bytes]:
    """Return the environment of a shell on this machine, as `b"NAME=value"`.

    Raises:
        InvalidInputError: if a variable cannot be passed to a program.
    """
    variables = encode_variables(request.env or {}, own_environment())
    return [each for each in variables if each.partition(b"=")[0] not in _SET_BY_CORE]


def startup_script(request: CreateBashSessionRequest, prefix: str, *, in_sandbox: bool) -> bytes:
    """Return the script that prepares a shell and reads the startup files.

    Args:
        prefix: text before the colon in the message that the script prints before it exits because something does not
            exist.
        in_sandbox: whether the shell has neither the environment nor the directory of the request yet.
    """

    def fail(what: str) -> str:
        text = shlex.quote(f"{what} does not exist")
        return f"{{ builtin printf '%s: %s\\n' {prefix} {text} >&0; builtin exit 1; }}"  # stdout may be redirected

    env, script, strict = request.env or {}, b"", ""
    if not in_sandbox:
        options = env.get("SHELLOPTS", os.environ.get("SHELLOPTS", "")).split(":")
        strict = "".join(letter for name, letter in _STRICT.items() if name in options)
        env = {name: value for name, value in env.items() if name == "HISTFILE"}
    if strict:
        script += _typed(f"builtin set +{strict}")
    if variables := [f"{name}={shlex.quote(value)}" for name, value in env.items() if name not in _PROMPTS]:
        script += _typed("builtin export " + " ".join(variables))
    if in_sandbox and request.cwd is not None:
        what = fail(f"The directory {request.cwd!r} that the session should start in")
        script += _typed(f"builtin cd -- {shlex.quote(request.cwd)} 2>/dev/null || {what}; builtin unset OLDPWD")
    script += _STARTUP
    for name in request.startup_source:
        file = _quoted_path(name if "/" in name or name[:1] in ("~", "$") else f"./{name}")  # not looked up in PATH
        # A shell's own startup file, which callers name everywhere, may be missing, as for a shell itself.
        otherwise = ":" if os.path.basename(name) == ".bashrc" else fail(f"The startup file {name!r}")
        script += _typed(f"if [[ -e {file} ]]; then . {file}; else {otherwise}; fi")
    return script + _NO_LOGOUT + (_typed(f"builtin set -{strict}") if strict else b"")


def _typed(line: str) -> bytes:
    """Return a line of a script as it is typed: quoted if it is long, or may have characters that are terminal keys."""
    text = encode(line)
    plain = len(text) <= _LONGEST_LINE and line.isascii() and line.isprintable()
    return text + b"\n" if plain else _core.quote(text)


def _quoted_path(path: str) -> str:
    """Return a path quoted for bash, except for a leading `~` or `~user` and for `$NAME`."""
    home, slash, rest = path.partition("/")
    if not re.fullmatch(r"~[\w.-]*", home, re.ASCII):
        home, slash, rest = "", "", path
    return home + slash + (_VARIABLE.sub(r"""'"${\2-}"'""", shlex.quote(rest)) if rest else "")
