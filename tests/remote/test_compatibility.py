"""The same behaviour for {our client, the original's} x {our server, the original's}.

The contracts are asked of our client with our servers: here these two show what the table is.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import client_cases
from tests.support.original import original_python
from tests.support.server_process import KEY, environment, serving

PAIRS = [
    # client, server
    ("ours", "swerex-remote"),
    ("ours", "original"),
    ("original", "any ASGI server"),
    ("original", "swerex-remote"),
    ("original", "original"),
]

SYNTAX_BASES = ["SwerexException", "RuntimeError", "Exception", "BaseException", "object"]
VALUE_BASES = ["SwerexException", "ValueError", "Exception", "BaseException", "object"]
FAILED = "Oh no: Command 'false' failed with exit code 1. Here is the output:\n''"
MISSING = '[Errno 2] No such file or directory: "D/it\'s not there"'
TREE = {
    "a ü.txt": "644 text",
    "bin": "directory",
    "bin/run.sh": "755 #!/bin/sh\n",
    "empty": "directory",
    "link": "-> bin/run.sh",
}


def error(name: str, text: str, bases: list[str]) -> dict[str, Any]:
    return {"type": name, "text": text, "bases": [name, *bases]}


EXPECTED: dict[str, Any] = {
    "alive": [True, ""],
    "alive_in_time": True,
    "wrong_key": [False, True],
    "echo": ["hi\n", 0],
    "exit_codes_and_state": [1, "5\n", None],
    "failed_command": error("NonZeroExitCodeError", FAILED, SYNTAX_BASES),
    "syntax_error": [["bash_stderr", "bash_stdout"], True],
    "timeout_interrupt_and_on": [
        "CommandTimeoutError",
        "timeout after 0.3 seconds while running command 'sleep 30'",
        True,
        0,
    ],
    "partial_output": "so far\n",
    "session_twice": error("SessionExistsError", "session default already exists", VALUE_BASES),
    "no_session": error("SessionDoesNotExistError", "session 'default' does not exist", VALUE_BASES),
    "dead_session": ["SessionDiedError", True],
    "many_sessions": [f"{i}\n" for i in range(6)],
    "startup_source": "yes\n",
    "execute_streams": ["out\n", "err\n", 3, "out\nerr\n"],
    "execute_environment": "b\nnone\n/\n",
    "execute_list": "a b|$c|",
    "execute_timeout": "CommandTimeoutError",
    "execute_check": "NonZeroExitCodeError",
    "execute_missing_program": "FileNotFoundError",
    "execute_stdin_is_at_its_end": "",
    "many_at_once": [f"{i}\n" for i in range(30)],
    "files": [True, True],
    "encodings": ["café", "caf\ufffd"],
    "surrogates": "'caf\\udce9'",
    "missing_file": [MISSING, 2, True],
    "directory_as_file": "IsADirectoryError",
    "undecodable_file": ["UnicodeDecodeError", "ab\xff", 2, 3],
    "upload_file": [True, "750"],
    "upload_tree": TREE,
    "upload_merges": {"both": "644 more", "new": "644 more", "old": "644 merged"},
    "upload_nothing": "FileNotFoundError",
    "nobody_there": [False, True],
    "not_there_in_time": "TimeoutError",
    "closed": True,
}
"""What ours do. Every case has a line."""

ORIGINAL_CLIENT: dict[str, Any] = {
    "partial_output": None,
    "dead_session": ["SwerexException", True],
    "missing_file": [MISSING, None, False],
    "undecodable_file": "SwerexException",
    "upload_file": [True, "644"],
    "upload_tree": TREE | {"link": "755 #!/bin/sh\n"},
    "upload_nothing": "ValueError",
}
"""What the original's client makes of our server, where it is not the same: it has no more to ask for or to tell."""

ORIGINAL_SERVER: dict[str, Any] = {
    "partial_output": "",
    "dead_session": ["SwerexException", True],
    "missing_file": [MISSING, None, False],
    "surrogates": "SwerexException",
    "undecodable_file": "SwerexException",
    "upload_file": [True, "644"],
    "upload_tree": TREE | {"bin/run.sh": "644 #!/bin/sh\n", "link": "644 #!/bin/sh\n"},
    "closed": "SessionExistsError: session last already exists",
}
"""What our client makes of the original's server, where it is not the same."""

BOTH_ORIGINAL: dict[str, Any] = ORIGINAL_CLIENT | {
    "dead_session": ["EOF", False],
    "surrogates": "SwerexException",
    "upload_tree": ORIGINAL_SERVER["upload_tree"],
    "closed": ORIGINAL_SERVER["closed"],
}
"""What the original's client makes of its own server: the reference for the three above."""

OTHERWISE = {
    ("ours", "original"): ORIGINAL_SERVER,
    ("original", "any ASGI server"): ORIGINAL_CLIENT,
    ("original", "swerex-remote"): ORIGINAL_CLIENT,
    ("original", "original"): BOTH_ORIGINAL,
}


@contextlib.contextmanager
def server_of(kind: str, request: pytest.FixtureRequest, place: Path) -> Iterator[tuple[str, str]]:
    """Address and key of a server."""
    if kind == "swerex-remote":
        with serving(place / "log", TERM="dumb") as server:
            yield server.url, KEY
    else:
        name = "original_server" if kind == "original" else "our_server"
        yield request.getfixturevalue(name).url, KEY


def parameter(pair: tuple[str, str]) -> Any:
    # All cases of a pair come from one run, so they belong to one worker.
    label = "-".join(pair).replace(" ", "_")
    marks = [pytest.mark.xdist_group(label), pytest.mark.slow]
    if pair != ("original", "original"):
        marks.append(pytest.mark.slice)
    return pytest.param(pair, id=label, marks=marks)


@pytest.fixture(scope="module", params=map(parameter, PAIRS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str, dict[str, Any]]:
    """Client, server, and what all cases came to."""
    client, kind = request.param
    package, python = ("swerex_c", sys.executable) if client == "ours" else ("swerex", original_python())
    variables = environment() | {"PYTHONWARNINGS": "error::ResourceWarning"}
    if client == "original":
        del variables["PYTHONPATH"]
    place = tmp_path_factory.mktemp("table")
    (place / "cases").mkdir()
    with server_of(kind, request, place) as (url, key):
        command = [python, str(Path(client_cases.__file__)), package, url, key, str(place / "cases")]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=110, cwd=place)
    assert done.returncode == 0, done.stderr
    if client == "ours":
        assert "Unclosed" not in done.stderr and "ResourceWarning" not in done.stderr, done.stderr
    return client, kind, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", client_cases.CASES)
def test_case(pair: tuple[str, str, dict[str, Any]], name: str) -> None:
    client, server, results = pair
    assert results[name] == OTHERWISE.get((client, server), EXPECTED).get(name, EXPECTED[name])
