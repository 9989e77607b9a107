"""An interrupt that comes before the child of the shell for a command has the terminal.

Bash may go back to its prompt then, and the child forgets the signal, runs all the same, and is waited for behind the
next command. A preloaded library makes the moments long in which that happens.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from swerex_c.runtime.abstract import BashAction, BashInterruptAction, CreateBashSessionRequest
from swerex_c.runtime.local import LocalRuntime
from tests.support.harness import needs
from tests.support.wait import DEADLINE, until_async

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static pid_t shell;
__attribute__((constructor)) static void begin(void) { shell = getpid(); }

static void nap(long milliseconds)
{
    struct timespec left = { .tv_nsec = milliseconds * 1000000 };
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

/* Adds how far it has come to the file, if that is there. */
static int tell(const char *moment)
{
    const char *path = getenv("LATE_FORK");
    int file = path ? open(path, O_APPEND | O_WRONLY) : -1;
    if (file >= 0 && write(file, moment, 1) == 1) {
        close(file);
    }
    return file >= 0;
}

/* In the child: a signal that comes now is forgotten when it becomes a program. */
int tcsetpgrp(int fd, pid_t group)
{
    int (*next)(int, pid_t);
    *(void **)&next = dlsym(RTLD_NEXT, "tcsetpgrp");
    int result = next(fd, group);
    if (getpid() != shell && tell("2")) {
        nap(50);
        tell("3");
    }
    return result;
}

pid_t fork(void)
{
    pid_t (*next)(void);
    *(void **)&next = dlsym(RTLD_NEXT, "fork");
    int slow = tell("1");
    if (slow) {
        nap(60);
    }
    pid_t child = next();
    if (slow && child > 0) {
        nap(20);
    }
    return child;
}
"""


@pytest.mark.parametrize("command", ["sleep 1000", "sleep 1000 | cat", "(sleep 1000; sleep 1001)"])
@pytest.mark.parametrize("before", ["", "exec 255>&-"])  # without this descriptor no child takes the terminal
async def test_what_the_shell_forks_behind_an_interrupt_ends(
    before: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("cc")
    source, library, mark = tmp_path / "late.c", tmp_path / "late.so", tmp_path / "mark"
    source.write_text(_SOURCE)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True, timeout=DEADLINE)
    if "LD_PRELOAD" in os.environ:
        pytest.skip("another library is preloaded")
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("LATE_FORK", str(mark))
    runtime = LocalRuntime()
    await runtime.create_session(CreateBashSessionRequest(startup_source=[], startup_timeout=DEADLINE))

    async def say(command: str) -> tuple[str, int | None]:
        answer = await runtime.run_in_session(BashAction(command=command, check="silent", timeout=DEADLINE))
        return answer.output, answer.exit_code

    try:
        await say(before)
        await say("sleep 1002 &")
        for moment in ("1", "2", "3"):
            mark.touch()
            running = asyncio.ensure_future(say(command))
            await until_async(lambda: moment in mark.read_text())  # noqa: B023
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            await runtime.run_in_session(BashInterruptAction(timeout=1.0, n_retry=10))
            mark.unlink()
            assert await say("echo a; (exit 3)") == ("a\n", 3)
            assert await say("echo $?") == ("3\n", 0)
            assert await say("kill -0 $! && echo the job lives") == ("the job lives\n", 0)
    finally:
        await runtime.close()
