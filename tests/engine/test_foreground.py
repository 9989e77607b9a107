"""A command that waits for input is told from one that works, when its time is over."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from swerex_c.exceptions import CommandTimeoutError
from tests.support.local_backend import runtime_in
from tests.support.session import Shell
from tests.support.wait import doubled

ADVICE = " (it waits for input: use is_interactive_command)"
SELECT = f"{sys.executable} -c 'import select; select.select([0], [], []"


@pytest.fixture
def session(sh: Shell) -> Shell:
    if not sh.aio.sessions["default"].core.facts()["kernel_proof"]:
        pytest.skip("the kernel does not show the system calls of processes here")
    return sh


def said(sh: Shell, command: str, **limit: float) -> str:
    """Return the error of a command whose time is over, and interrupt the command."""
    with pytest.raises(CommandTimeoutError) as caught:
        sh.run(command, **{"timeout": None, **limit})
    sh.interrupt()
    return str(caught.value)


@pytest.mark.parametrize("limit", ["timeout", "no_output_timeout"])
@pytest.mark.parametrize("command", [
    "cat", "cat </dev/tty", "cat | sort", "read x", "( read x; echo )", "select x in a b; do :; done", "bash",
    "bash -c 'cat; true'", f"PYTHON_BASIC_REPL=1 {sys.executable} -q", f"{SELECT})'",
    f"{sys.executable} -c 'import select; p = select.poll(); p.register(0, select.POLLIN); p.poll()'",
])  # fmt: skip
def test_what_waits_for_input(session: Shell, command: str, limit: Any) -> None:
    """Once the time was enough for the program to come to its wait."""
    told = f"while running command {command!r}{ADVICE}"
    assert any(said(session, command, **{limit: seconds}).endswith(told) for seconds in doubled(0.25))


@pytest.mark.parametrize("command", [
    "sleep 100", "sleep 100 </dev/tty", "cat < <(sleep 100)", "read x < <(sleep 100)", "sleep 100 | cat",
    "sleep 100 & wait", "cat & sleep 100", f"{SELECT}, 100)' </dev/null; sleep 100", f"{SELECT}, 100)'",
])  # fmt: skip
def test_what_waits_for_something_else(session: Shell, command: str) -> None:
    assert said(session, command, timeout=0.5) == f"timeout after 0.5 seconds while running command {command!r}"


def test_nothing_is_told_of_a_command_behind_a_client(shells: type[Shell]) -> None:
    """The client reads the terminal all the time."""
    assert ADVICE not in said(shells(aio=runtime_in("here")), "cat", timeout=1.0)
