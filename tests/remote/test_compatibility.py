"""The same behaviour for {our client, the original's} x {our server, the original's}, but for ours with ours."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from tests.support import client_cases
from tests.support.original import original_python
from tests.support.processes import ran
from tests.support.server_process import KEY, environment, serving, serving_original

PAIRS = [("ours", "original"), ("original", "ours")]
"""Client and server."""

RUNTIME_BASES = ["SwerexException", "RuntimeError", "Exception", "BaseException", "object"]
VALUE_BASES = ["SwerexException", "ValueError", "Exception", "BaseException", "object"]
FAILED = "Oh no: Command 'false' failed with exit code 1. Here is the output:\n''"
LATE = "timeout after 0.5 seconds while running command 'echo so far; sleep 30'"
MISSING = '[Errno 2] No such file or directory: "DIR/it\'s not there"'
TARGET = {"both": "644 target", "old": "644 target"}
TREE = TARGET | {
    "new": "directory",
    "new/a ü.txt": "644 text",
    "new/bin": "directory",
    "new/bin/run.sh": "755 #!/bin/sh\n",
    "new/empty": "directory",
    "new/link": "-> bin/run.sh",
}
FILE = TARGET | {"new": "directory"}


def error(kind: str, text: str | None = None, **more: Any) -> dict[str, Any]:
    """An error of this kind, with what is asked of it."""
    return {"type": kind, **({"text": text} if text else {}), **more}


DIED = [None, ["exit\n", 3], error("SessionDiedError"), error("SessionDiedError")]
EXPECTED: dict[str, Any] = {
    "alive": [[True, ""]],
    "wrong key": [[False, True]],
    "commands": [None, ["hi\n", 0], ["", 1], ["5\n", 0], ["", None]],
    "failed command": [None, error("NonZeroExitCodeError", FAILED, bases=RUNTIME_BASES)],
    "syntax error": [None, error("BashIncorrectSyntaxError", extra=[["bash_stderr", "bash_stdout"], True])],
    "timeout": [None, error("CommandTimeoutError", LATE, output="so far\n"), ["", 0], ["on\n", 0]],
    "session twice": [None, error("SessionExistsError", "session default already exists", bases=VALUE_BASES)],
    "no session": [error("SessionDoesNotExistError", "session 'default' does not exist", bases=VALUE_BASES)],
    "dead session": DIED,
    "execute": [["out\n", "err\n", 3], ["out\nerr\n", "", 0], ["a b|$c|", "", 0], ["b\nnone\n/\n", "", 0]],
    "late": [error("CommandTimeoutError")],
    "failed": [error("NonZeroExitCodeError")],
    "no program": [error("FileNotFoundError")],
    "files": [None, [client_cases.TEXT], [client_cases.TEXT, "", 0]],
    "latin-1": [["café"]],
    "replaced": [["caf\ufffd"]],
    "surrogates": [["caf\udce9"]],
    "undecodable file": [error("UnicodeDecodeError", object=repr(b"caf\xe9"), start=3, end=4)],
    "missing file": [error("FileNotFoundError", MISSING, errno=2, filename="DIR/it's not there")],
    "upload of a file": [None, FILE | {"new/file": "750 large"}],
    "upload of a tree": [None, TREE],
    "upload that merges": [None, {"both": "644 more", "new": "644 more", "old": "644 target"}],
    "upload of nothing": [error("FileNotFoundError"), TARGET],
    "closed": [None, None, None, None],
}
"""What our client makes of our server, of which the contracts are asked. Every case has a line."""

ORIGINAL_CLIENT: dict[str, Any] = {
    "timeout": [None, error("CommandTimeoutError", LATE, output=None), ["", 0], ["on\n", 0]],
    "dead session": [*DIED[:2], error("SwerexException"), error("SwerexException")],
    "missing file": [error("FileNotFoundError", MISSING, errno=None, filename=None)],
    "undecodable file": [error("SwerexException")],
    "upload of a file": [None, FILE | {"new/file": "644 large"}],
    "upload of a tree": [None, TREE | {"new/link": "755 #!/bin/sh\n"}],
    "upload of nothing": [error("ValueError"), TARGET],
}
"""What the original's client makes of our server, where it is not the same: it has no more to ask for or to tell."""

ORIGINAL_SERVER: dict[str, Any] = {
    "timeout": [None, error("CommandTimeoutError", LATE, output=""), ["so far", 0], ["on\n", 0]],
    "dead session": [None, *3 * [error("SwerexException")]],
    "missing file": [error("FileNotFoundError", MISSING, errno=None, filename=None)],
    "surrogates": [error("SwerexException")],
    "undecodable file": [error("SwerexException")],
    "upload of a file": [None, FILE | {"new/file": "644 large"}],
    "upload of a tree": [None, TREE | {"new/bin/run.sh": "644 #!/bin/sh\n", "new/link": "644 #!/bin/sh\n"}],
    "closed": [None, None, error("SessionExistsError", "session default already exists"), None],
}
"""What our client makes of the original's server, where it is not the same."""

OTHERWISE = dict(zip(PAIRS, (ORIGINAL_SERVER, ORIGINAL_CLIENT), strict=True))


def parameter(pair: tuple[str, str]) -> Any:
    # All cases of a pair come from one run, so they belong to one worker.
    label = "-".join(pair)
    return pytest.param(pair, id=label, marks=[pytest.mark.xdist_group(label), pytest.mark.slow, pytest.mark.slice])


@pytest.fixture(scope="module", params=map(parameter, PAIRS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, Any], str]:
    """Client and server, the results of all cases, and the client's standard error."""
    client, kind = request.param
    package, python = ("swerex_c", sys.executable) if client == "ours" else ("swerex", original_python())
    variables = environment() | {"PYTHONWARNINGS": "error::ResourceWarning"}
    if client == "original":
        del variables["PYTHONPATH"]
    place = tmp_path_factory.mktemp("table")
    with serving_original(place / "log") if kind == "original" else serving(place / "log", TERM="dumb") as server:
        (place / "cases").mkdir()
        words = (package, server.url, KEY, str(place / "cases"))
        done = ran(python, client_cases.__file__, *words, seconds=110, env=variables, cwd=place)
    assert done.returncode == 0, done.stderr
    return request.param, json.loads(done.stdout.splitlines()[-1]), done.stderr


def asked(wanted: Any, found: Any) -> Any:
    """Return of what was found in a call that which is asked for."""
    return {name: found.get(name) for name in wanted} if isinstance(wanted, dict) and "type" in wanted else found


@pytest.mark.parametrize("name", client_cases.CASES)
def test_case(pair: tuple[Any, dict[str, Any], str], name: str) -> None:
    between, results, _ = pair
    wanted = OTHERWISE[between].get(name, EXPECTED[name])
    assert list(map(asked, wanted, results[name])) == wanted


def test_our_client_closes_its_files_and_connections(pair: tuple[Any, dict[str, Any], str]) -> None:
    (client, _), _, printed = pair
    assert client != "ours" or ("Unclosed" not in printed and "ResourceWarning" not in printed), printed
