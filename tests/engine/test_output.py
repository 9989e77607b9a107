"""The text of a long output: made beside the event loop, and the same as one that is made where it is asked for."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
import select
import subprocess
import sys
from pathlib import Path

import pytest

from swerex_c import _core
from swerex_c.engine.completions import current_completions
from swerex_c.runtime.abstract import BashAction
from tests.support.core_sessions import ended, opened
from tests.support.wait import DEADLINE, settle

LONG = 300_000


async def made(operation: _core.Operation) -> bool:
    waker = current_completions()
    future = waker.create_future()
    begun = operation.make(waker.core, future)
    if begun:
        await future
    return begun


PIECES = {
    "lines": b"a b\n",
    "letters": b"x",
    "colours": b"\x1b[31mred\x1b[0m ",
    "beyond ascii": "ä漢🦊".encode(),
    "no utf-8": b"\xff\xfe-",
    "cr": b"a\r\n",
    "nul": b"\0",
    "escapes alone": b"\x1b",
}


@pytest.mark.parametrize("kind", PIECES)
async def test_the_same_text(tmp_path: Path, kind: str) -> None:
    runtime, core = await opened()
    piece = PIECES[kind]
    (tmp_path / "text").write_bytes(piece * (LONG // len(piece)))
    for more in ("", "; printf 'ä'", "; stty opost onlcr; echo; echo end"):
        operation = await ended(core, f"cat {tmp_path}/text{more}")
        assert operation.long
        before = operation.output
        assert await made(operation)
        assert operation.output == before and (len(before) > LONG // 5 or kind == "escapes alone")
        assert operation.output is operation.output and not await made(operation)
        assert hash(operation.output) == hash(before) and operation.output.isascii() == before.isascii()
    await runtime.close()


async def test_a_dropped_middle() -> None:
    runtime, core = await opened(output_limit=LONG)
    operation = await ended(core, "seq 100000")
    before = operation.output
    assert await made(operation) and operation.output == before
    assert f"\n[... {operation.dropped} bytes of output were dropped here ...]\n" in before
    assert len(before) - before.count("[") * (before.index("]") - before.index("[") + 3) == LONG
    await runtime.close()


async def test_short_ones_are_not_worth_it() -> None:
    runtime, core = await opened()
    assert not (await ended(core, "seq 10000")).long
    waker = current_completions()
    running = core.run("sleep 0.2", 1, 20.0, None, None, waker.core, None, None, 0)
    assert not running.long
    with pytest.raises(RuntimeError, match="not ended"):
        running.make(waker.core, None)
    operation = await ended(core, "seq 100000")
    assert operation.long and not operation.make(None, None)
    await runtime.close()


@pytest.mark.idle
async def test_the_loop_does_not_pay_for_the_memory() -> None:
    """Each page of a new text is a visit to the kernel: those are what takes long."""
    runtime, _ = await opened()
    size = 8_000_000
    command = f"head -c {size} /dev/zero | tr '\\0' x"
    kept = []
    most = 0
    for _i in range(3):
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        kept.append((await runtime.run_in_session(BashAction(command=command, timeout=DEADLINE))).output)
        most = max(most, resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)
    assert all(text == "x" * size for text in kept)
    assert most < size // 4096 // 4
    await runtime.close()


async def test_asked_for_before_it_was_told() -> None:
    """The text is there already: who waits for it is told all the same."""
    runtime, core = await opened()
    operation = await ended(core, "seq 100000")
    future = current_completions().create_future()
    assert operation.make(current_completions().core, future)
    select.select([current_completions().core], [], [])  # the thread that makes it has told, and the loop not yet
    assert operation.output.endswith("\n100000\n")
    await asyncio.wait_for(future, DEADLINE)
    await runtime.close()


@pytest.mark.slow
async def test_given_up_meanwhile() -> None:
    """The answer is not waited for any more while its text is made: nothing breaks, nothing is left."""
    runtime, core = await opened()
    for _i in range(10):
        operation = await ended(core, "seq 1000000")
        future = current_completions().create_future()
        assert operation.make(current_completions().core, future)
        del operation
        gc.collect()
        future.cancel()
        command = "head -c 3000000 /dev/zero | tr '\\0' x"
        task = asyncio.ensure_future(runtime.run_in_session(BashAction(command=command, timeout=DEADLINE)))
        await settle()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
    answer = await runtime.run_in_session(BashAction(command="echo works", timeout=DEADLINE))
    assert answer.output == "works\n"
    await runtime.close()


@pytest.mark.slow
def test_the_end_of_the_interpreter_meanwhile() -> None:
    program = """if True:
        import asyncio, os, sys
        sys.path[:0] = [{root!r}]
        from tests.support.core_sessions import ended, opened
        from swerex_c.engine.completions import current_completions

        async def main():
            runtime, core = await opened()
            operation = await ended(core, "head -c 30000000 /dev/zero | tr '\\\\0' x")
            assert operation.make(current_completions().core, None)
            if {fork} and os.fork() == 0:
                del operation  # its thread is the parent's
                os._exit(0)
            if {fork}:
                assert os.wait()[1] == 0
            globals()["kept"] = operation if {keep} else None

        asyncio.run(main())
    """
    root = str(Path(__file__).parents[2])
    for fork, keep in ((False, True), (False, False), (True, True)):
        code = program.format(root=root, fork=fork, keep=keep)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=False)
        assert done.returncode == 0 and not done.stderr, done
