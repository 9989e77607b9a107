"""Hosts that take away the exit status of child processes: they ignore SIGCHLD, or wait for whatever child ends.

Since Linux 6.15 the kernel tells the status nevertheless. An older kernel is imitated by a preloaded library, in which
the system call that asks for it fails.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.behaviour_runs import inherited
from tests.support.harness import build_library
from tests.support.original import run_python
from tests.support.processes import ran
from tests.support.server_process import FRONT, REMOTE, serving

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>

int ioctl(int fd, unsigned long request, ...)
{
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    if ((request >> 8 & 0xFF) == 0xFF && (request & 0xFF) == 11 && (FAILS)) { /* PIDFD_GET_INFO */
        errno = ERROR;
        return -1;
    }
    int (*next)(int, unsigned long, ...);
    *(void **)&next = dlsym(RTLD_NEXT, "ioctl");
    return next(fd, request, argument);
}
"""

IMPORTS = "import asyncio, json, os, signal, subprocess, threading\n"
IGNORES = "signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
COLLECTS = """
def collect():
    while True:
        os.waitpid(-1, 0)

lives = subprocess.Popen(["cat"], stdin=subprocess.PIPE)  # ends with this process; until then the wait blocks
threading.Thread(target=collect, daemon=True).start()
"""
HOST = """
disposition = signal.getsignal(signal.SIGCHLD)
from swerex_c.engine.syntax import check_bash_command
from swerex_c.exceptions import SwerexException
from swerex_c.runtime.abstract import Command
from swerex_c.runtime.local import LocalRuntime

async def outcome(call):
    try:
        return (await call).exit_code
    except FileNotFoundError as error:
        return error.filename
    except SwerexException as error:
        return [type(error).__name__, str(error), getattr(error, "output", None), getattr(error, "exit_code", None)]

async def syntax():
    check_bash_command("echo $(")

async def work():
    answers = {}
    async with LocalRuntime() as runtime:
        for script in ("true", "echo said; exit 3", "kill -KILL $$", "exit 255"):
            answers[script] = await outcome(runtime.execute(Command(command=script, shell=True)))
        answers["no program"] = await outcome(runtime.execute(Command(command=["/nonexistent"])))
        await runtime.create_session()
        for command in ("(exit 4)", "echo $(", "exit 3", "true"):
            answers["session: " + command] = await outcome(runtime.run(command, check="silent"))
    answers["syntax"] = await outcome(syntax())
    print(json.dumps(answers))

asyncio.run(work())
assert signal.getsignal(signal.SIGCHLD) == disposition
"""


def kernel_tells() -> bool:
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int("".join(filter(str.isdigit, minor)))) >= (6, 15)


@pytest.fixture(scope="module")
def old_kernel(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables of a process to which the kernel does not tell the status."""
    return {"LD_PRELOAD": build_library(tmp_path_factory.mktemp("shim"), SHIM, "-DERROR=ENOTTY", "-DFAILS=1")}


@pytest.fixture
def reaping_kernel(tmp_path: Path) -> dict[str, str]:
    """Variables of a process whose children are reaped while the kernel is asked for their status."""
    flags = "-DERROR=ESRCH", "-DFAILS=__extension__({ static int calls; calls++ % 2 == 0; })"
    return {"LD_PRELOAD": build_library(tmp_path, SHIM, *flags)}


def answers_of(taking: str, **variables: str) -> dict[str, Any]:
    done = run_python(IMPORTS + taking + HOST, **variables)
    assert (done.returncode, done.stderr) == (0, "")
    answers: dict[str, Any] = json.loads(done.stdout)
    assert answers.pop("no program") == "/nonexistent"
    assert answers.pop("session: (exit 4)") == 4
    assert answers.pop("session: echo $(")[0] == answers.pop("syntax")[0] == "BashIncorrectSyntaxError"
    return answers


CODES = {"true": 0, "echo said; exit 3": 3, "kill -KILL $$": -9, "exit 255": 255, "session: exit 3": 3}


def check_all_told(answers: dict[str, Any]) -> None:
    assert answers.pop("session: true")[::3] == ["SessionDiedError", 3]
    assert answers == CODES


@pytest.mark.skipif(not kernel_tells(), reason="needs Linux 6.15")
@pytest.mark.parametrize("taking", [IGNORES, COLLECTS], ids=["ignores", "collects"])
def test_the_kernel_tells_the_status(taking: str) -> None:
    check_all_told(answers_of(taking))


@pytest.mark.skipif(not kernel_tells(), reason="needs Linux 6.15")
def test_the_kernel_is_asked_again(reaping_kernel: dict[str, str]) -> None:
    check_all_told(answers_of(IGNORES, **reaping_kernel))


def is_lost(answer: Any, error: str, output: str | None) -> bool:
    name, message, said, code = answer
    return (
        (name, said, code) == (error, output, None)
        and "exit status is unknown, because another part of this process collected it" in message
        and "set SIGCHLD to its default" in message
    )


def test_a_lost_status_is_an_error(old_kernel: dict[str, str]) -> None:
    answers = answers_of(IGNORES, **old_kernel)
    assert set(answers) == {*CODES, "session: true"}
    for name, answer in answers.items():
        error = "SessionDiedError" if "session" in name else "NoExitCodeError"
        output = None if "session" in name else "said\n" if "said" in name else ""
        assert is_lost(answer, error, output), (name, answer)


def test_a_stolen_status_is_right_or_an_error(old_kernel: dict[str, str]) -> None:
    """Which of the two that wait gets the status is a matter of luck."""
    answers = answers_of(COLLECTS, **old_kernel)
    assert answers.pop("session: true")[0] == "SessionDiedError"
    assert set(answers) == set(CODES)
    for name, answer in answers.items():
        assert answer == CODES[name] or answer[0] in ("NoExitCodeError", "SessionDiedError"), (name, answer)


IGNORANT = ["bash", "-c", "trap '' CHLD; exec \"$@\"", "bash"]


@pytest.mark.parametrize(("script", "code"), [("exit 3", 3), ("kill -KILL $$", 137)])
def test_the_command_resets_the_signal(old_kernel: dict[str, str], script: str, code: int) -> None:
    """The second one ends the session's shell, whatever the command's input makes of `exit`."""
    command = [*IGNORANT, sys.executable, "-m", "swerex_c", "exec", script]
    done = ran(*command, env={**inherited(), **old_kernel}, stdin=subprocess.DEVNULL)
    assert done.returncode == code, done.stderr


MODULE = [sys.executable, "-m", "swerex_c.server"]


@pytest.mark.parametrize("command", [REMOTE, MODULE, FRONT], ids=["remote", "module", "front"])
def test_a_server_resets_the_signal(old_kernel: dict[str, str], command: list[str], tmp_path: Path) -> None:
    with serving(tmp_path / "log", command=[*IGNORANT, *command], **old_kernel) as server:
        answer = server.post("/execute", command="exit 3", shell=True).json()
        assert answer["exit_code"] == 3, answer
        server.post("/create_session", session_type="bash").raise_for_status()
        answer = server.post("/run_in_session", action_type="bash", command="exit 5", check="silent").json()
        assert answer["exit_code"] == 5, answer
