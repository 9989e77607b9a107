"""What other threads of the process may do, and how little stack a caller's thread may have."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import threading

import pytest

from swerex_c import _core
from swerex_c.runtime.abstract import BashAction, Command, CreateBashSessionRequest
from swerex_c.runtime.local import LocalRuntime
from tests.support.harness import few_descriptors
from tests.support.original import run_python
from tests.support.processes import file_of_descriptor
from tests.support.session import Gate
from tests.support.wait import until, until_async

SMALL_STACK = """if True:
    import asyncio, threading
    from swerex_c.runtime.abstract import Command, CreateBashSessionRequest
    from swerex_c.runtime.local import LocalRuntime

    async def use():
        runtime = LocalRuntime()
        await runtime.create_session(CreateBashSessionRequest(startup_timeout=60))
        seen = await runtime.run("seq 30000; sleep 0.01; (exit 3)", check="silent")
        assert (len(seen.output), seen.exit_code) == (168894, 3)
        assert len((await runtime.execute(Command(command=["seq", "30000"]))).stdout) == 168894
        await asyncio.gather(*(runtime.execute(Command(command=["cat", "/dev/zero"], timeout=0.05)) for _ in range(2)),
                             return_exceptions=True)
        task = asyncio.ensure_future(runtime.execute(Command(command=["yes"])))
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait([task])
        await runtime.close()
        print("done")

    asyncio.new_event_loop().close()
    threading.stack_size(64 << 10)
    thread = threading.Thread(target=asyncio.run, args=(use(),))
    thread.start()
    thread.join()
"""


@pytest.mark.idle  # ASan puts more on the stack
def test_a_thread_with_little_stack() -> None:
    done = run_python(SMALL_STACK)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


async def test_programs_start_while_the_environment_changes() -> None:
    """Variables come, change and go in another thread."""
    over = threading.Event()

    def change() -> None:
        for i in itertools.count():
            os.environ[f"SWX_CHANGES_{i % 50}"] = "v" * (i % 200)
            os.environ.pop(f"SWX_CHANGES_{i * 7 % 50}", None)
            if over.is_set():
                break
        for i in range(50):
            os.environ.pop(f"SWX_CHANGES_{i}", None)

    async with LocalRuntime() as runtime:
        changing = asyncio.create_task(asyncio.to_thread(change))
        try:
            for _ in range(20):
                for answer in await asyncio.gather(*(runtime.execute(Command(command=["env"])) for _ in range(5))):
                    lines = answer.stdout.splitlines()
                    changed = [line.partition("=")[2] for line in lines if line.startswith("SWX_CHANGES_")]
                    assert set("".join(changed)) <= {"v"} and f"PATH={os.environ['PATH']}" in lines
        finally:
            over.set()
            await changing


def is_terminal(fd: str) -> bool:
    """Return whether a descriptor is a terminal's master; another thread may take its number afterwards."""
    return file_of_descriptor(fd).endswith("/ptmx")


def terminals() -> set[str]:
    return set(filter(is_terminal, os.listdir("/proc/self/fd")))


async def opened() -> tuple[LocalRuntime, str, int]:
    """Return a runtime with a session, the descriptor of its terminal, and the id of its shell."""
    runtime, before = LocalRuntime(), terminals()
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=60))
    (terminal,) = terminals() - before
    return runtime, terminal, int((await runtime.run("trap '' HUP; echo $$")).output)


async def test_a_shell_that_is_dropped_ends_even_if_its_tree_cannot_be_seen() -> None:
    """Without a free descriptor the kill sweep sees no process: at its end the shell itself is killed and reaped."""
    runtime, terminal, pid = await opened()
    with few_descriptors():
        del runtime
        gc.collect()
        await until_async(lambda: not is_terminal(terminal))  # what the last command has left in the loop refers to it
        assert not os.path.exists(f"/proc/{pid}")


@pytest.mark.idle
async def test_a_stuck_shell_that_is_dropped_holds_nobody_up(gate: Gate) -> None:
    """Another session answers while the kill sweep of the dropped one, which takes a second, is under way."""
    other, _, _ = await opened()
    before = terminals()
    stuck, terminal, pid = await opened()
    command = BashAction(command=f"{gate.pass_}; echo here")
    running = asyncio.ensure_future(other.run_in_session(command))  # an idle session would need a descriptor
    await gate.is_reached()
    with few_descriptors():
        nodes = _core.node_count()
        del stuck
        gc.collect()
        until(lambda: _core.node_count() < nodes)  # a thread drops it
        gate.open()
        assert (await running).output == "here\n"
        assert os.path.exists(f"/proc/self/fd/{terminal}"), "it answered only after the kill sweep"
    await other.close()
    until(lambda: not os.path.exists(f"/proc/{pid}") and terminals() <= before)
