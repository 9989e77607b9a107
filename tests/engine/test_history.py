"""A session leaves the history of the user alone: it is not read, not cut and not written, unless somebody asks."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swerex_c.runtime.abstract import CreateBashSessionRequest
from swerex_c.runtime.local import LocalRuntime
from tests.support.processes import Family
from tests.support.runtimes import RUNTIMES
from tests.support.server_process import serving
from tests.support.wait import DEADLINE

HISTORY = "".join(f"{number}\n" for number in range(1900))
FILES = (".bash_history", ".history", "mine")


@pytest.fixture
def home(family: Family, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory with a history that is longer than bash's own limit, and startup files that allow it."""
    home = Path(os.environ["HOME"])
    (home / ".bashrc").write_text("HISTSIZE=1000\nHISTFILESIZE=2000\n")
    for name in FILES:
        (home / name).write_text(HISTORY)
    monkeypatch.delenv("HISTFILE", raising=False)
    monkeypatch.chdir(home)
    return home


KINDS: dict[str, Callable[[Any], Any]] = {
    **{kind: RUNTIMES[kind] for kind in ("local", "exec", "frames")},
    "prestarted": lambda server: LocalRuntime(warm_sessions=1),
}


TWO = {"echo one": "one\n", "echo two": "two\n"}
UNREAD = {"echo one": "one\n", "history | grep -c ' 189[0-9]$'": "0\n", "printenv HISTFILE": ""}
ASKING = ("PS1=x", "exec 2>&1", "PROMPT_COMMAND='PS1=y'")
ASKED = {**dict.fromkeys(ASKING, ""), "fc -ln 1": "".join(f"\t {line}\n" for line in ASKING)}
CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, str]]] = {
    "nobody asks": ("", "", {}, UNREAD),
    "the session asks its shell": ("", "", {}, ASKED),
    "nobody asks, and the startup file is read twice": ("", "", {"startup_source": ["~/.bashrc"]}, UNREAD),
    "a program exports it": (".bash_history", "", {}, TWO),
    "a prompt saves it": ("", "shopt -s histappend; PROMPT_COMMAND='history -a; history -n'\n", {}, TWO),
    "a prompt saves it, and the session asks": ("", "PROMPT_COMMAND='history -a mine'\n", {}, {"PS1=x": "", **TWO}),
    "a request asks": ("", "", {"env": {"HISTFILE": "mine"}}, {"echo one": "one\n", "echo $HISTFILE": "mine\n"}),
    "a startup file asks": ("", "HISTFILE=mine\n", {}, TWO),
}
"""HISTFILE of this process, more lines of its startup file, the request, and commands with their outputs."""


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_history(kind: str, case: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exported, lines, request, steps = CASES[case]
    if exported:
        monkeypatch.setenv("HISTFILE", exported)
    with (home / ".bashrc").open("a") as file:
        file.write(lines)
    server = serving(tmp_path / "log") if kind == "frames" else contextlib.nullcontext()
    with server as there:
        runtime = KINDS[kind](there)
        if kind == "prestarted":
            await runtime.wait_until_warm()
        await runtime.create_session(CreateBashSessionRequest(startup_timeout=DEADLINE, **request))
        for command, output in steps.items():
            answer = await runtime.run(command, timeout=DEADLINE, check="silent")
            assert answer.output == output
        await runtime.close()
    *others, mine = ((home / name).read_text() for name in FILES)
    assert others == [HISTORY] * 2 and mine.startswith(HISTORY)
    added = mine.removeprefix(HISTORY).splitlines()
    assert [line for line in added if "builtin" in line] == []
    assert "echo one" in added if "mine" in f"{lines} {request}" else not added
