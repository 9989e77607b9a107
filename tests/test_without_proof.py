"""Sessions where the kernel does not tell what the shell is doing: /proc/PID/syscall cannot be opened.

Some kernels do not have it, others keep it from everybody. The shell's marks decide alone there, and an element of
PROMPT_COMMAND puts them back before each prompt. A part of the behaviour tests has to hold all the same; it runs in a
Python of its own, in which a preloaded library refuses that file.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from traps.harness import PACE, needs, python_environment

pytestmark = pytest.mark.thorough

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

/* What is started from here is not concerned. */
__attribute__((constructor)) static void begin(void) { unsetenv("LD_PRELOAD"); }

static int is_refused(const char *path)
{
    size_t size = strlen(path);
    return strncmp(path, "/proc/", 6) == 0 && size > 14 && strcmp(path + size - 8, "/syscall") == 0;
}

#define OPEN(name)                                                                  \
    int name(const char *path, int flags, ...)                                      \
    {                                                                               \
        va_list rest;                                                               \
        va_start(rest, flags);                                                      \
        mode_t mode = va_arg(rest, mode_t);                                         \
        va_end(rest);                                                               \
        if (is_refused(path)) {                                                     \
            errno = EPERM;                                                          \
            return -1;                                                              \
        }                                                                           \
        int (*next)(const char *, int, ...);                                        \
        *(void **)&next = dlsym(RTLD_NEXT, #name);                                  \
        return next(path, flags, mode);                                             \
    }
OPEN(open)
OPEN(open64)
"""

_STATE = "tests/traps/test_state.py::"
NO_MARK = (
    # The prompt that carries the mark is not shown, and what would notice that is the kernel: they time out.
    _STATE + "test_exec_stderr_away",
    _STATE + "test_exec_everything_away",
    _STATE + "test_exec_through_tee",
    _STATE + "test_readonly_prompts[",
    _STATE + "test_prompts_may_be_changed[declare -u PS1=loud]",
    _STATE + "test_prompts_may_be_changed[unset PS1 PS2 PS3 PS4 PS0 PROMPT_COMMAND]",
    _STATE + "test_prompts_may_be_changed[PROMPT_COMMAND+=('PS1=last')]",
    _STATE + "test_prompts_may_be_changed[PROMPT_COMMAND=('PS1=a' 'false' 'PS1=b')]",
    _STATE + "test_prompts_may_be_changed[unset PROMPT_COMMAND; PROMPT_COMMAND=(true 'PS1=b')]",
)
SEEN = (
    # The element of PROMPT_COMMAND is a command, and a DEBUG trap that counts counts it.
    _STATE + "test_debug_trap_counts_only_the_users_commands",
)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    if "SWX_ASAN_PYTHON" in os.environ:
        pytest.skip("the place of the preloaded library is taken by the sanitizer's")
    compiler = needs("cc")
    place = tmp_path_factory.mktemp("shim")
    (place / "shim.c").write_text(SHIM)
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-o", place / "shim.so", place / "shim.c", "-ldl"], check=True, timeout=60
    )
    inherited = {k: v for k, v in python_environment().items() if not k.startswith("PYTEST_")}
    return {**inherited, "LD_PRELOAD": str(place / "shim.so")}


def test_the_session_knows(environment: dict[str, str]) -> None:
    program = (
        "import asyncio\n"
        "from swerex_c.runtime.abstract import CreateBashSessionRequest\n"
        "from swerex_c.runtime.local import LocalRuntime\n"
        "async def look():\n"
        "    runtime = LocalRuntime()\n"
        "    await runtime.create_session(CreateBashSessionRequest(startup_timeout=10))\n"
        "    print(runtime.sessions['default'].core.facts()['kernel_proof'])\n"
        "    await runtime.close()\n"
        "asyncio.run(look())\n"
    )
    for env, proof in ((environment, "False\n"), ({**environment, "LD_PRELOAD": ""}, "True\n")):
        done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (0, proof), done.stderr


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("room", "at_least"), [("state", 140), ("lifecycle", 50), ("concurrency", 20)])
def test_it_behaves(environment: dict[str, str], room: str, at_least: int) -> None:
    left_out = [f"--deselect={test}" for test in NO_MARK + SEEN]
    options = ["-q", "-p", "no:cacheprovider", "-m", "not leak and not build", f"tests/traps/test_{room}.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *left_out],
        cwd=Path(__file__).parent.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=90 * PACE,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed and int(passed[1]) >= at_least, done.stdout[-500:]
