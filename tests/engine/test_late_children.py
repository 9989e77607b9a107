"""An interrupt that comes before the child of the shell for a command has the terminal.

Bash may go back to its prompt then, and the child forgets the signal, runs all the same, and is waited for behind the
next command. A preloaded library makes the moments long in which that happens.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from tests.support.harness import build_library
from tests.support.session import Shell
from tests.support.wait import until_async

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
@pytest.mark.parametrize(
    ("before", "tries"),
    [("", 10), ("exec 255>&-", 1)],  # without this descriptor no child takes the terminal, and only a kill reaches it
    ids=["", "without the terminal"],
)
def test_what_the_shell_forks_behind_an_interrupt_ends(
    shells: type[Shell], before: str, tries: int, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    monkeypatch.setenv("LD_PRELOAD", build_library(tmp_path, _SOURCE))
    monkeypatch.setenv("LATE_FORK", str(mark))
    sh = shells()

    async def give_up_at(moment: str) -> None:
        running = asyncio.ensure_future(sh.go(command))
        await until_async(lambda: moment in mark.read_text())
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    sh.run(before)
    sh.run("sleep 1002 &")
    for moment in ("1", "2", "3"):
        mark.touch()
        sh.wait(give_up_at(moment))
        sh.interrupt(timeout=1.0, n_retry=tries)
        mark.unlink()
        sh.gives("echo a; (exit 3)", "a\n", 3)
        sh.gives("echo $?", "3\n")
        sh.gives("kill -0 $! && echo the job lives", "the job lives\n")
