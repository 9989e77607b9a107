"""The same behaviour for {our client, the original's} x {our server, the original's}, but for ours with ours."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import client_cases
from tests.support.http_servers import serving_original
from tests.support.original import original_python
from tests.support.server_process import KEY, environment, serving

PAIRS = [("ours", "original"), ("original", "ours")]
"""Client and server."""

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
    "wrong_key": [False, True],
    "commands": [["hi\n", 0], ["", 1], ["5\n", 0], None],
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
    "execute": ["out\n", "err\n", 3, "out\nerr\n", "a b|$c|", "b\nnone\n/\n"],
    "execute_errors": ["CommandTimeoutError", "NonZeroExitCodeError", "FileNotFoundError"],
    "files": [True, True],
    "encodings": ["café", "caf\ufffd"],
    "surrogates": "'caf\\udce9'",
    "missing_file": [MISSING, 2, True],
    "undecodable_file": ["UnicodeDecodeError", "ab\xff", 2, 3],
    "upload_file": [True, "750"],
    "upload_tree": TREE,
    "upload_merges": {"both": "644 more", "new": "644 more", "old": "644 merged"},
    "upload_nothing": "FileNotFoundError",
    "closed": True,
}
"""What our client makes of our server, of which the contracts are asked. Every case has a line."""

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

OTHERWISE = dict(zip(PAIRS, (ORIGINAL_SERVER, ORIGINAL_CLIENT), strict=True))


def parameter(pair: tuple[str, str]) -> Any:
    # All cases of a pair come from one run, so they belong to one worker.
    label = "-".join(pair)
    return pytest.param(pair, id=label, marks=[pytest.mark.xdist_group(label), pytest.mark.slow, pytest.mark.slice])


@pytest.fixture(scope="module", params=map(parameter, PAIRS))
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, dict[str, Any]]:
    """Client and server, and what all cases came to."""
    client, kind = request.param
    package, python = ("swerex_c", sys.executable) if client == "ours" else ("swerex", original_python())
    variables = environment() | {"PYTHONWARNINGS": "error::ResourceWarning"}
    if client == "original":
        del variables["PYTHONPATH"]
    place = tmp_path_factory.mktemp("table")
    with serving_original(place / "log") if kind == "original" else serving(place / "log", TERM="dumb") as server:
        (place / "cases").mkdir()
        command = [python, str(Path(client_cases.__file__)), package, server.url, KEY, str(place / "cases")]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=110, cwd=place)
    assert done.returncode == 0, done.stderr
    if client == "ours":
        assert "Unclosed" not in done.stderr and "ResourceWarning" not in done.stderr, done.stderr
    return request.param, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", client_cases.CASES)
def test_case(pair: tuple[Any, dict[str, Any]], name: str) -> None:
    between, results = pair
    assert results[name] == OTHERWISE[between].get(name, EXPECTED[name])
