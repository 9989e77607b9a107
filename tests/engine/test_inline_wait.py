"""How the calling thread waits by itself for a command, in the place of an event loop that would sleep."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from swerex_c.engine import completions
from swerex_c.engine.completions import current_completions
from swerex_c.runtime.abstract import Command, CreateBashSessionRequest
from swerex_c.runtime.local import LocalRuntime
from tests.support.wait import DEADLINE, until_async


def by_a_signal(release: Callable[[], object], runtime: LocalRuntime, tmp_path: Path) -> Callable[[], object]:
    """What wakes the loop as a callback from another thread does, and interrupts system calls."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, release)
    return lambda: os.kill(os.getpid(), signal.SIGUSR1)


def by_a_program(release: Callable[[], object], runtime: LocalRuntime, tmp_path: Path) -> Callable[[], object]:
    fifo = tmp_path / "program"
    os.mkfifo(fifo)
    task = asyncio.ensure_future(runtime.execute(Command(command=["cat", str(fifo)])))
    task.add_done_callback(lambda _: release())
    return lambda: fifo.write_text("")


@pytest.mark.parametrize("way", [by_a_signal, by_a_program])
async def test_what_would_wake_the_loop_ends_the_wait(
    way: Callable[..., Callable[[], object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command ends by a callback of the loop, which comes while the wait would last for ten minutes more."""
    runtime = LocalRuntime()
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=DEADLINE))
    begun, go = tmp_path / "begun", tmp_path / "go"
    os.mkfifo(begun)
    os.mkfifo(go)
    trigger = way(lambda: go.write_text("on\n"), runtime, tmp_path)
    await until_async(lambda: way is by_a_signal or runtime._processes._running)
    waits: list[int] = []
    inline_wait = completions.CompletionQueue.inline_wait

    def counted(queue: completions.CompletionQueue) -> int:
        waits.append(inline_wait(queue))
        return waits[-1]

    monkeypatch.setattr(completions, "INLINE_MICROSECONDS", 600_000_000)
    monkeypatch.setattr(completions.CompletionQueue, "inline_wait", counted)

    def work() -> None:
        begun.read_text()  # the shell runs the command, and the calling thread waits
        trigger()

    thread = threading.Thread(target=work)
    thread.start()
    answer = await runtime.run(f"echo >{begun}; read x <{go}; echo $x")
    thread.join()
    assert answer.output == "on\n" and waits == [600_000_000]
    monkeypatch.undo()
    await runtime.close()


async def test_the_end_of_the_shell_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would last longer than the time limit of a test."""
    runtime = LocalRuntime()
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=DEADLINE))
    monkeypatch.setattr(completions, "INLINE_MICROSECONDS", 600_000_000)
    assert (await runtime.run("exit 3", check="silent")).exit_code == 3
    monkeypatch.undo()
    await runtime.close()


async def test_a_loop_that_would_not_sleep_is_not_waited_for() -> None:
    queue, loop = current_completions(), asyncio.get_running_loop()
    later = loop.call_later(60, int)
    assert queue.inline_wait() == completions.INLINE_MICROSECONDS
    soon = loop.call_later(0.001, int)
    assert queue.inline_wait() == 0, "a timer is due"
    soon.cancel()
    later.cancel()
    await until_async(lambda: queue.inline_wait() == completions.INLINE_MICROSECONDS)
    loop.call_soon(int)
    assert queue.inline_wait() == 0, "a callback is ready"
    await asyncio.sleep(0)
    async with LocalRuntime() as runtime:
        await runtime.create_session(CreateBashSessionRequest(startup_timeout=DEADLINE))
        task = asyncio.ensure_future(runtime.run("read x"))
        await until_async(lambda: queue.pending)
        assert queue.inline_wait() == 0, "another call waits"
    await asyncio.wait([task])
    assert task.exception() and queue.inline_wait() == completions.INLINE_MICROSECONDS


def test_a_loop_that_does_not_show_its_work_counts_as_busy() -> None:
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")

    async def wait() -> int:
        return current_completions().inline_wait()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(wait()) == 0
