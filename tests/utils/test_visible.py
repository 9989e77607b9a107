"""What people see has no control characters but newlines and tabs: error texts, logs, `swerex-c exec` on a terminal."""

from __future__ import annotations

import re
from typing import Any

import pytest

from swerex_c import exceptions
from swerex_c.exceptions import SwerexException
from swerex_c.remote.wire.exceptions import from_wire
from swerex_c.utils.visible import visible
from tests.support.cli import COMMAND
from tests.support.original import run_python
from tests.support.person import Person

HOSTILE = "a\x1b\x1b[m]52;c;YQ==\x07\x9b31m\x90\x85\r\x7f\0\x08\udc80\n\tb"
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def test_every_control_character_is_shown_and_nothing_else_changes() -> None:
    for code in range(0x110000):
        letter = chr(code)
        kept = letter in "\n\t" or not CONTROLS.match(letter)
        assert visible(letter) == (letter if kept else repr(letter)[1:-1])
    assert visible(HOSTILE).startswith(r"a\x1b\x1b[m]52;c;YQ==\x07\x9b31m\x90")
    assert visible("a\n\tb", one_line=True) == r"a\n\tb"
    assert visible(visible(HOSTILE)) == visible(HOSTILE)


@pytest.mark.parametrize("kind", [getattr(exceptions, name) for name in exceptions.__all__])
def test_the_text_of_our_exceptions(kind: type[SwerexException]) -> None:
    assert str(kind(HOSTILE)) == visible(HOSTILE)


@pytest.mark.parametrize("path", ["swerex_c.exceptions.UploadError", "builtins.ValueError", "builtins.OSError", "x.Y"])
@pytest.mark.parametrize("details", [{}, {"errno": 2, "strerror": HOSTILE}, {"args": [HOSTILE]}])
def test_the_text_of_what_a_peer_says_was_raised(path: str, details: dict[str, Any]) -> None:
    sent = {"message": HOSTILE, "class_path": path, "traceback": HOSTILE, "extra_info": {"swerex_c": details}}
    error = from_wire(sent)
    assert not CONTROLS.search(str(error)) and "52;c" in str(error)
    assert error.remote_traceback == visible(HOSTILE)  # type: ignore[attr-defined]


LOG = f"""
from swerex_c.utils.log import get_logger
text = {HOSTILE!r}
try:
    raise ValueError(text)
except ValueError:
    get_logger("rex").exception("The place said: %s", text)
"""


@pytest.mark.parametrize("before", ["", "import sys; sys.modules['rich.console'] = None"], ids=["", "without rich"])
def test_a_log_on_the_terminal(before: str) -> None:
    seen = run_python(before + LOG).stderr
    assert seen.count("52;c") == 2 and not CONTROLS.search(seen)


SERVER_LOG = f"""
import logging
from swerex_c.remote.server import logs
logs.set_up("text", "debug")
logging.getLogger("anyone").warning("refused: %s", {HOSTILE!r})
logs.request_done({HOSTILE!r}, 0.1, "200", "client", {HOSTILE!r}, True)
"""


def test_a_log_of_the_server() -> None:
    said = run_python(SERVER_LOG).stderr
    assert said.count("52;c") == 2 and not CONTROLS.search(said)
    assert said.splitlines()[-1].endswith("from client: 200 in 0.100000 s")


def on_a_terminal(command: str) -> bytes:
    """Return what `swerex-c exec` prints for a command when its standard output and error are a terminal."""
    with Person("exec", command, command=COMMAND) as person:
        person.exit_code()
        return person.said


def test_exec_shows_them_on_a_terminal() -> None:
    said = on_a_terminal(r"printf 'a\033\033[m]52;c;YQ==\a\302\2331m\r\033[3\n1m\b.\tb\n'")
    assert said == b"a]52;c;YQ==\\x07\\x9b1m\\r[3\r\n1m\\x08.\tb\r\n"


def test_exec_shows_them_in_its_errors_on_a_terminal() -> None:
    said = on_a_terminal("echo \x1b]52;c;YQ==\x07 )")
    assert b"52;c" in said and not CONTROLS.search(said.replace(b"\r\n", b"\n").decode())
