"""A PROMPT_COMMAND that costs each command much is named in the log, once per process."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from swerex_c import CommandTimeoutError, CreateBashSessionRequest, LocalRuntime
from swerex_c.engine import prompt_hook
from swerex_c.engine.sessions import SessionsRuntime
from swerex_c.runtime.sandbox import SandboxRuntime
from tests.support.local_backend import Here
from tests.support.processes import Family

Make = Callable[[logging.Logger], SessionsRuntime]
KINDS: dict[str, Make] = {
    "local": lambda logger: LocalRuntime(logger=logger),
    "transport": lambda logger: SandboxRuntime(Here(), logger=logger),
}
SLOW = "ran=$((ran + 1)); sleep 0.01 # a comment"
"""A hook that takes 10 ms at least, counts its runs, and has a comment, as hooks of several lines have."""


@pytest.fixture
def home(family: Family, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(prompt_hook, "_probed", False)
    return Path(os.environ["HOME"])


def logger() -> logging.Logger:
    return logging.getLogger("test-prompt-hook")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_slow_hook_is_named_once(kind: str, home: Path, caplog: pytest.LogCaptureFixture) -> None:
    (home / ".bashrc").write_text(f"echo hello; PROMPT_COMMAND=({SLOW!r} 'second=1')\n")
    states = []
    async with KINDS[kind](logger()) as runtime:
        for name in ("measured", "not measured"):
            assert (await runtime.create_session(CreateBashSessionRequest(session=name))).output == "hello\n"
            states.append(await runtime.run("echo $?:$ran:$_swerex_c:$_hook:$!:$_", session=name))
    assert states[0] == states[1]
    (message,) = [record.getMessage() for record in caplog.records if "PROMPT_COMMAND" in record.getMessage()]
    assert f"ms to each command of a session ({SLOW} second=1): unset it in a file" in message
    assert float(message.split(" adds ")[1].split()[0]) >= 10


@pytest.mark.parametrize(
    "hook",
    [
        "",
        "IFS=1; readonly IFS; PROMPT_COMMAND=(: 'x=1')",
        "unset PROMPT_COMMAND",
        "PROMPT_COMMAND='[[ $BASHPID = $$ ]] || exit 3'",
    ],
)
async def test_no_other_hook_is_named(
    hook: str, home: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among them one that ends the subshell: nothing is measured then."""
    monkeypatch.setattr(prompt_hook, "COSTLY_SECONDS", 5.0)  # which no load makes of one that does nothing
    (home / ".bashrc").write_text(f"{hook}\necho hello\n")
    async with LocalRuntime(logger=logger()) as runtime:
        assert (await runtime.create_session()).output == "hello\n"
        assert (await runtime.run("echo on")).output == "on\n"
    assert "PROMPT_COMMAND" not in caplog.text


async def test_startup_files_that_redirect_the_output(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    (home / ".bashrc").write_text(f"set -eu; PROMPT_COMMAND={SLOW!r}; ran=0; exec 3>&1 >{home}/log\n")
    async with LocalRuntime(logger=logger()) as runtime:
        assert (await runtime.create_session()).output == ""
        assert (await runtime.run("exec >&3; echo on")).output == "on\n"
    assert (home / "log").read_text() == "" and "ms to each command" in caplog.text


async def test_an_error_does_not_show_the_measurement(home: Path) -> None:
    (home / ".bashrc").write_text("echo hello; PROMPT_COMMAND='[[ $BASHPID != $$ ]] || sleep 100'\n")
    async with LocalRuntime(logger=logger()) as runtime:
        with pytest.raises(CommandTimeoutError) as caught:
            await runtime.create_session(CreateBashSessionRequest(startup_timeout=5))
        assert caught.value.output == "hello\n"
