"""Bad input gets a clear, typed error and harms nothing: the session then answers as if nothing had been."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

import pytest

from swerex_c import _core
from swerex_c.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    InvalidInputError,
    NonZeroExitCodeError,
    SessionDiedError,
    SwerexException,
)
from swerex_c.runtime.abstract import Command
from tests.support.harness import few_descriptors, write_script
from tests.support.processes import Family
from tests.support.session import Session, Shell
from tests.support.wait import DEADLINE, until


@pytest.mark.parametrize("timeout", [-1, -0.001, float("nan"), float("-inf")])
def test_bad_timeout(sh: Shell, tmp_path: Path, timeout: float) -> None:
    with pytest.raises(SwerexException, match="timeout"):
        sh.run(f"touch {tmp_path}/ran", timeout=timeout)
    with pytest.raises(SwerexException, match="timeout"):
        sh.wait(sh.aio.execute(Command(command=["touch", str(tmp_path / "ran")], timeout=timeout)))
    with pytest.raises(SwerexException, match="timeout"):
        sh.wait(Session(sh.aio, "t").create(startup_timeout=timeout))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("timeout", [None, float("inf"), 1e18, 1e9, DEADLINE])
def test_a_long_silence(sh: Shell, timeout: float | None) -> None:
    sh.gives("sleep 1.2; echo x", "x\n", timeout=timeout)
    done = sh.wait(sh.aio.execute(Command(command="sleep 0.1; echo x", shell=True, timeout=timeout)))
    assert done.stdout == "x\n"
    sh.times_out("sleep 1000", timeout=0)
    sh.interrupt()


def test_a_long_command_that_the_terminal_may_have_cut(sh: Shell) -> None:
    sh.ended = True
    sh.gives("PROMPT_COMMAND='stty sane'", "")
    try:
        sh.gives(f": {'x' * 200_000}; echo long", "long\n")  # where it has cut nothing
    except SwerexException as error:
        assert re.search("PROMPT_COMMAND .* modes while a long command was typed", str(error))


def test_what_is_told_of_a_long_command_is_bounded(sh: Shell) -> None:
    """And of all others it is as callers know it."""
    long = f"sleep 30; : {'x' * 300_000} 'the end'"
    with pytest.raises(CommandTimeoutError) as caught:
        sh.run(long, timeout=0.4)
    assert re.fullmatch("timeout after 0.4 seconds while running command \"sleep 30; .*'the end'\"", str(caught.value))
    assert len(str(caught.value)) < 12_000 and "290022 characters of the command are left out" in str(caught.value)
    sh.interrupt()
    with pytest.raises(NonZeroExitCodeError) as failed:
        sh.run(f"true {'y' * 300_000}; (exit 3)", check="raise")
    assert len(str(failed.value)) < 12_000 and "failed with exit code 3. Here is the output:\n''" in str(failed.value)
    with pytest.raises(BashIncorrectSyntaxError) as refused:
        sh.run(f"true {'z' * 100_000}\n(")
    assert len(str(refused.value)) < 12_000
    known = f"sleep 30; : {'x' * 9_000} 'the end'"
    with pytest.raises(
        CommandTimeoutError, match=re.escape(f"timeout after 0.4 seconds while running command {known!r}")
    ):
        sh.run(known, timeout=0.4)
    sh.interrupt()


def test_bash_is_understood_in_every_language(sh: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it says of a here-document without an end decides how the command is sent."""
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.setenv("LANGUAGE", "de")
    answer = sh.run("cat <<X\na")
    assert answer.output.endswith("\na\n") and answer.exit_code == 0


@pytest.mark.parametrize(
    ("text", "seconds", "printed"),
    [
        *((text, 0.3, "they printed nothing") for text in ("sleep 1000", "read x", "while :; do :; done", "cat")),
        ("echo loading nvm; sleep 100", 2.0, "their last output was 'loading nvm\\n'"),
    ],
)
def test_startup_that_does_not_end(
    sh: Shell, tmp_path: Path, family: Family, text: str, seconds: float, printed: str
) -> None:
    """Told in time, with what to do, and nothing of it is left."""
    slow = tmp_path / "slow.sh"
    slow.write_text(text + "\n")
    before = len(family.living())
    with pytest.raises(CommandTimeoutError) as caught:
        sh.wait(Session(sh.aio, "s").create(startup_source=[str(slow)], startup_timeout=seconds))
    assert str(caught.value) == (
        f"timeout after {seconds} seconds while reading the startup files ({printed}): "
        "mend them, or set a longer `startup_timeout`"
    )
    until(lambda: len(family.living()) == before)
    sh.wait(Session(sh.aio, "s").create())


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        *((text, True) for text in ("exit 5", "kill -9 $$", "set -e; false", "exec true")),
        # Many a .bashrc ends with a false test; bash shrugs.
        *((text, False) for text in ("false", "nosuchcommand-x", "return 3", "if", "PS1=x; unset PROMPT_COMMAND")),
    ],
)
def test_startup_file_that_fails(sh: Shell, tmp_path: Path, text: str, ends: bool) -> None:
    """It is an error only if it ends the shell."""
    bad = tmp_path / "bad.sh"
    bad.write_text(f"echo starting\n{text}\n")
    told = rf"(?s)startup files \(.*{re.escape(str(bad))}\).*starting"
    with pytest.raises(SwerexException, match=told) if ends else contextlib.nullcontext():
        sh.wait(Session(sh.aio, "b").create(startup_source=[str(bad)]))
        assert sh.run("echo fine", session="b").output == "fine\n"
    if ends:
        sh.wait(Session(sh.aio, "b").create())


@pytest.mark.parametrize("text", ["true", "exec >/dev/null", "set -x", "shopt -s checkjobs; sleep 100 &", "set -u"])
def test_startup_file_that_is_missing(sh: Shell, tmp_path: Path, text: str) -> None:
    """It is named, whatever the file before it does."""
    first = tmp_path / "first.sh"
    first.write_text(text + "\n")
    with pytest.raises(InvalidInputError, match=r"^The startup file '\$SWX_UNSET/no' does not exist$"):
        sh.wait(Session(sh.aio, "m").create(startup_source=[str(first), "$SWX_UNSET/no"]))


def test_a_bash_that_cannot_start(sh: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bash = write_script(tmp_path / "bash", "echo 'libfoo.so: cannot open' >&2; exit 127")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(SessionDiedError, match=rf"{bash}.*status 127.*libfoo.so: cannot open"):
        sh.wait(Session(sh.aio, "other").create())
    core = _core.Session(os.fsencode(bash), [], None, 24, 80, 1 << 20)
    until(lambda: core.facts()["dead"])  # before anything is asked of it
    assert "libfoo.so" in core.start(b"", 1, None, None).output


@pytest.mark.parametrize("left", [1, 3, 5, 7, 9, 11])
def test_few_fds_left(sh: Shell, left: int) -> None:
    """Wherever in the start the fds run out, it is a typed error and nothing leaks, or it works."""
    with few_descriptors(left):
        before = len(os.listdir("/proc/self/fd"))
        try:
            sh.wait(Session(sh.aio, "n").create())
        except SwerexException as error:
            assert str(error)
            assert len(os.listdir("/proc/self/fd")) <= before, "fewer where the other session went to rest meanwhile"
