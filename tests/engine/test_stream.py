"""stream_in_session: a command's output as it comes, then its observation."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.support.session import Engine, Shell
from tests.support.wait import at_most, quicker_than


def collect(sh: Shell, command: str, timeout: float | None = 10.0, **more: Any) -> tuple[list[str], Any, list[float]]:
    """The chunks, the observation, and when each chunk came (seconds from the start)."""

    async def read() -> tuple[list[str], Any, list[float]]:
        chunks: list[str] = []
        times: list[float] = []
        last: Any = None
        start = time.monotonic()
        async for item in sh.aio.stream_in_session(sh.action(command, timeout, **more)):
            assert last is None, "something came after the observation"
            if isinstance(item, str):
                assert item
                chunks.append(item)
                times.append(time.monotonic() - start)
            else:
                last = item
        return chunks, last, times

    return sh.wait(read())


def test_output_comes_as_it_is_written(sh: Shell) -> None:
    chunks, last, times = collect(sh, "for i in 1 2 3; do echo $i; sleep 0.25; done; (exit 4)")
    assert "".join(chunks) == "1\n2\n3\n"
    assert times[0] < at_most(0.2)
    assert times[-1] > 0.4
    assert isinstance(last, sh.engine.abstract.BashObservation)
    assert last.exit_code == 4


def test_the_observation_is_that_of_run_in_session(sh: Shell) -> None:
    for command in ("echo hi", "printf 'a\\033[31mb\\n'; false", "true", "", "# nothing", "echo a\necho b"):
        chunks, last, _ = collect(sh, command)
        plain = sh.run(command)
        assert "".join(chunks) == plain.output
        assert last == plain


def test_characters_and_sequences_are_whole(sh: Shell) -> None:
    """Nothing is cut: no half character, no half escape sequence, no piece of a mark."""
    text = "ä漢🦊\\x1b[31mred\\x1b]0;title\\x07.\\n"
    program = f"import os, time\nfor b in '{text}'.encode():\n  os.write(1, bytes([b])); time.sleep(0.003)\n"
    chunks, last, _ = collect(sh, f'python3 -c "{program}"')
    assert "".join(chunks) == "ä漢🦊red.\n"
    assert not any("\x1b" in chunk or "\\x" in chunk for chunk in chunks)
    assert last.exit_code == 0


def test_large_output(sh: Shell) -> None:
    with quicker_than(8):
        chunks, last, _ = collect(sh, "seq 500000; (exit 2)")
    assert "".join(chunks) == "".join(f"{i}\n" for i in range(1, 500_001))
    assert last.exit_code == 2


def test_a_slow_reader_loses_nothing(sh: Shell) -> None:
    async def read() -> str:
        text = ""
        async for item in sh.aio.stream_in_session(sh.action("seq 200000")):
            if isinstance(item, str):
                text += item
                await asyncio.sleep(0.005)
        return text

    assert sh.wait(read()) == "".join(f"{i}\n" for i in range(1, 200_001))


def test_timeout_comes_after_the_chunks(sh: Shell, engine: Engine) -> None:
    chunks: list[str] = []

    async def read() -> None:
        async for item in sh.aio.stream_in_session(sh.action("echo one; sleep 20", 0.3)):
            chunks.append(item)

    with pytest.raises(engine.exceptions.CommandTimeoutError) as caught:
        sh.wait(read())
    assert "".join(chunks) == "one\n"
    assert caught.value.output == "one\n"
    sh.interrupt()


def test_check_raise(sh: Shell, engine: Engine) -> None:
    with pytest.raises(engine.exceptions.NonZeroExitCodeError):
        collect(sh, "echo x; false", check="raise")


def test_bad_input_is_told_before_anything_runs(sh: Shell, engine: Engine) -> None:
    for command, error in (
        ("(a", engine.exceptions.BashIncorrectSyntaxError),
        ("a\0b", engine.exceptions.SwerexException),
    ):
        with pytest.raises(error):
            collect(sh, command)
    with pytest.raises(engine.exceptions.SessionDoesNotExistError):
        collect(sh, "echo x", session="nobody")


def test_left_in_the_middle(sh: Shell) -> None:
    """A reader that goes away leaves the command as a timeout does; the next command waits for it."""

    async def leave() -> None:
        stream = sh.aio.stream_in_session(sh.action("echo one; sleep 0.5; echo two"))
        async for item in stream:
            assert item == "one\n"
            break
        await stream.aclose()

    sh.wait(leave())
    sh.gives("echo next", "next\n")


def test_interrupt_while_streaming(sh: Shell) -> None:
    async def both() -> list[Any]:
        items = []
        async for item in sh.aio.stream_in_session(sh.action("echo one; sleep 30", 20)):
            items.append(item)
            if item == "one\n":
                await sh.aio.run_in_session(sh.interruption())
        return items

    with quicker_than(3):
        *chunks, last = sh.wait(both())
    assert "".join(chunks).startswith("one\n")
    assert last.exit_code == 130


def test_two_streams_stand_in_line(sh: Shell) -> None:
    async def read(i: int) -> tuple[str, int]:
        text, code = "", -1
        async for item in sh.aio.stream_in_session(sh.action(f"echo a{i}; sleep 0.05; echo b{i}; (exit {i})")):
            if isinstance(item, str):
                text += item
            else:
                code = item.exit_code
        return text, code

    async def all_of_them() -> list[tuple[str, int]]:
        return await asyncio.gather(*(read(i) for i in range(5)))

    assert sh.wait(all_of_them()) == [(f"a{i}\nb{i}\n", i) for i in range(5)]


def test_the_end_of_the_shell(sh: Shell) -> None:
    sh.ended = True
    chunks, last, _ = collect(sh, "echo bye; exit 6")
    assert "".join(chunks).startswith("bye\n")
    assert last.exit_code == 6
    assert last.failure_reason


def test_expect_ends_the_stream(sh: Shell) -> None:
    chunks, last, _ = collect(sh, "echo one; echo ready; sleep 20", expect=["ready"])
    assert "".join(chunks).startswith("one\n")
    assert last.expect_string == "ready"
    sh.interrupt()


def test_the_pieces_are_the_output(sh: Shell) -> None:
    """What is taken out of the output at the end is in no piece: job notices, and prompts that a command has set."""
    for command in (
        "sleep 0.1; echo X",
        "printf X; sleep 0.1; printf Y",
        "printf '[1]'; sleep 0.1; printf '+  Done '; sleep 0.01; printf Y",
        "for i in 1 2 3; do printf %s $i; sleep 0.04; done",
        "echo a; PS1='$ '; sleep 0.01",
        "PS1='\\w\\n> '",
        "activate() { PS1='(env) '$PS1; }; activate",
        "yes '[1]+  Done                    x' | head -n 200000",
    ):
        sh.run("sleep 0.05 &")
        chunks, last, _ = collect(sh, command)
        assert "".join(chunks) == last.output, command
        assert "sleep 0.05" not in last.output or "yes" in command, command
        sh.run("wait")


def test_only_what_may_be_a_notice_waits(sh: Shell) -> None:
    sh.run("sleep 100 &")
    chunks, last, times = collect(sh, "echo '[ 10%] one'; sleep 0.3; echo two")
    assert "".join(chunks) == last.output == "[ 10%] one\ntwo\n"
    assert times[-1] - times[0] > 0.2
    sh.run("kill %1")


@pytest.mark.parametrize("frozen", ["readonly PS0=x", "readonly PS0=x PS1="])
def test_no_output_is_lost_behind_a_frozen_prompt(sh: Shell, frozen: str) -> None:
    """What PS0 prints is taken out while the reader takes the rest: also when the end was seen, or is asked for."""

    async def work(name: str) -> None:
        await sh.aio.create_session(sh.engine.abstract.CreateBashSessionRequest(session=name, startup_timeout=30))
        await sh.aio.run_in_session(sh.action(frozen, 30, session=name))
        for number in range(100):
            action = sh.action(f"printf 'a{number}\\n'", 30, session=name)
            pieces = [piece async for piece in sh.aio.stream_in_session(action)]
            seen = pieces.pop()
            assert seen.output == "".join(pieces) == f"a{number}\n"

    async def all_of_them() -> None:
        await asyncio.gather(*(work(f"frozen-{number}") for number in range(16)))

    sh.wait(all_of_them())
