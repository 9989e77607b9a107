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

/* In the child: a signal that comes now is forgotten when it becomes a program. */
int tcsetpgrp(int fd, pid_t group)
{
    int (*next)(int, pid_t);
    *(void **)&next = dlsym(RTLD_NEXT, "tcsetpgrp");
    int result = next(fd, group);
    if (getpid() != shell) {
        nap(50);
    }
    return result;
}

pid_t fork(void)
{
    pid_t (*next)(void);
    *(void **)&next = dlsym(RTLD_NEXT, "fork");
    const char *mark = getenv("LATE_FORK");
    int slow = mark && access(mark, F_OK) == 0;
    if (slow) {
        close(open(mark, O_TRUNC | O_WRONLY));
        nap(60);
    }
    pid_t child = next();
    if (slow && child > 0) {
        nap(20);
    }
    return child;
}
"""


async def test_what_the_shell_forks_behind_an_interrupt_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
        for _ in range(3):
            mark.write_text("to be emptied by a fork")
            running = asyncio.ensure_future(say("sleep 1000"))
            await until_async(lambda: not mark.stat().st_size)
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            await runtime.run_in_session(BashInterruptAction(timeout=1.0, n_retry=10))
            mark.unlink()
            assert await say("echo a; (exit 3)") == ("a\n", 3)
            assert await say("echo $?") == ("3\n", 0)
    finally:
        await runtime.close()
