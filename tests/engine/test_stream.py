"""stream_in_session: a command's output as it comes, then its observation."""

from __future__ import annotations

import asyncio

import pytest

from tests.support.session import Gate, Session, Shell


def test_characters_and_sequences_are_whole(sh: Shell) -> None:
    """Nothing is cut: no half character, no half escape sequence, no piece of a mark."""
    text = "ä漢🦊\\x1b[31mred\\x1b]0;title\\x07.\\n"
    program = f"import os, time\nfor b in '{text}'.encode():\n  os.write(1, bytes([b])); time.sleep(0.003)\n"
    pieces: list[str] = []
    text, last = sh.stream(f'python3 -c "{program}"', hear=pieces.append)
    assert text == "ä漢🦊red.\n"
    assert not any("\x1b" in piece or "\\x" in piece for piece in pieces)
    assert last.exit_code == 0


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
        text, last = sh.stream(command)
        assert text == last.output, command
        assert "sleep 0.05" not in last.output or "yes" in command, command
        sh.run("wait")
    sh.ended = True
    text, last = sh.stream("echo bye; exit 6")
    assert text.startswith("bye\n") and last.exit_code == 6 and last.failure_reason


def test_only_what_may_be_a_notice_waits(sh: Shell, gate: Gate) -> None:
    sh.run("sleep 1000 &")
    command = f"echo '[ 10%] one'; {gate.pass_}; echo two"
    text, last = sh.stream(command, hear=lambda piece: gate.open() if piece.endswith("one\n") else None)
    assert text == last.output == "[ 10%] one\ntwo\n"
    sh.run("kill %1")


@pytest.mark.parametrize("frozen", ["readonly PS0=x", "readonly PS0=x PS1="])
def test_no_output_is_lost_behind_a_frozen_prompt(sh: Shell, frozen: str) -> None:
    """What PS0 prints is taken out while the reader takes the rest: also when the end was seen, or is asked for."""

    async def work(name: str) -> None:
        session = Session(sh.aio, name)
        await session.create()
        await session.run(frozen)
        for number in range(100):
            pieces, seen = await session.stream(f"printf 'a{number}\\n'")
            assert seen.output == "".join(pieces) == f"a{number}\n"

    async def all_of_them() -> None:
        await asyncio.gather(*(work(f"frozen-{number}") for number in range(16)))

    sh.wait(all_of_them())
