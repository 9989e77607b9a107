"""Programs in a sandbox of Daytona, carried by its terminals through the real SDK."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("daytona")

from swerex_c.exceptions import SandboxLostError
from swerex_c.providers.daytona.backend import DaytonaBackend, DaytonaProgram
from swerex_c.providers.daytona.labels import client
from tests.support.daytona_fixtures import DaytonaWorld, server, world
from tests.support.processes import command_line
from tests.support.wait import DEADLINE, until, until_async

__all__ = ["server", "world"]


class Box:
    """A sandbox, in this test's own loop."""

    def __init__(self, sandbox: Any, world: DaytonaWorld) -> None:
        self.sandbox, self.world = sandbox, world
        self.place = world.sandboxes[sandbox.id]
        self.programs: list[DaytonaProgram] = []

    async def start(self, *argv: str, terminal: tuple[int, int] | None = None, **environment: str) -> DaytonaProgram:
        program = await DaytonaBackend(self.sandbox).exec(argv, environment, terminal)
        assert isinstance(program, DaytonaProgram)
        self.programs.append(program)
        return program

    async def run(
        self, *argv: str, input: bytes | None = None, terminal: tuple[int, int] | None = None, **environment: str
    ) -> tuple[int, bytes, bytes]:
        program = await self.start(*argv, terminal=terminal, **environment)

        async def give() -> None:
            await program.send(input or b"")
            if terminal is None:
                await program.end_input()

        giving = asyncio.create_task(give())
        try:
            out = await output(program)
            return await program.wait(), out[1], out[2]
        finally:
            giving.cancel()

    def terminals(self) -> list[str]:
        return list(self.place.terminals)


OpenBox = Callable[..., Any]


async def output(program: DaytonaProgram) -> dict[int, bytes]:
    parts = {1: bytearray(), 2: bytearray()}
    while (each := await asyncio.wait_for(program.receive(), DEADLINE)) is not None:
        parts[each[0]] += each[1]
    return {stream: bytes(data) for stream, data in parts.items()}


@pytest.fixture
async def open_box(world: DaytonaWorld) -> AsyncIterator[OpenBox]:
    from daytona import CreateSandboxFromImageParams

    daytona = await client()
    boxes: list[Box] = []

    async def open_box(image: str = "debian:12", **variables: str) -> Box:
        params = CreateSandboxFromImageParams(image=image, env_vars=variables)
        boxes.append(Box(await daytona.create(params), world))
        return boxes[-1]

    yield open_box
    for box in boxes:
        for program in box.programs:
            try:
                await program.close()
            except Exception as error:
                assert "not found" in str(error) or "not running" in str(error), error
        if box.place.id in world.sandboxes:
            assert not box.terminals()
            await daytona.delete(box.sandbox)
    await daytona.close()


@pytest.fixture
async def box(open_box: OpenBox) -> Box:
    return await open_box()


@pytest.mark.parametrize(
    ("script", "answer"),
    [
        ("echo out; echo err >&2; exit 7", (7, b"out\n", b"err\n")),
        ("kill -9 $$", (137, b"", b"")),
        ("kill -INT $$; echo ignored", (130, b"", b"")),
        ("(sleep 1000; echo late) & echo early", (0, b"early\n", b"")),
        ("{ echo loud >/dev/tty; } 2>/dev/null; echo said", (0, b"said\n", b"")),
    ],
    ids=["streams and code", "signal", "interrupts are not ignored", "what is left", "the carrier's terminal"],
)
async def test_an_answer_is_the_programs_own(box: Box, script: str, answer: tuple[int, bytes, bytes]) -> None:
    assert await box.run("sh", "-c", script) == answer


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 36863, 36864, 36865, 262144, 262145, 3_000_000])
async def test_every_byte_passes_both_ways(box: Box, size: int) -> None:
    data = random.Random(size).randbytes(size)
    code, out, err = await box.run("tee", "/dev/stderr", input=data)
    assert code == 0
    assert out == data
    assert err == data


async def test_variables_and_words_pass_whatever_is_in_them(box: Box) -> None:
    value = "a\"b\\c\n\x01\x7f \udc80 \u20ac '$x `y` !"
    words = ["", " ", "'", '"', "\\", "\n", "\udcff", "\u20ac", "*", "-n", "x" * 100_000, "y" * 100_000]
    script = 'printf "%s|" "$ODD" "$@"'
    _, out, _ = await box.run("sh", "-c", script, "sh", *words, ODD=value)
    assert out == os.fsencode("".join(f"{it}|" for it in [value, *words]))


async def test_what_a_program_has_not_read_keeps_it_from_nothing(box: Box) -> None:
    """A program that prints before it reads, and one that never reads, while more waits than pipes hold."""
    data = b"i" * 400_000
    code, out, _ = await box.run("sh", "-c", "head -c 400000 /dev/zero; wc -c", input=data)
    assert (code, len(out), out[400_000:].strip()) == (0, 400_000 + len(out[400_000:]), b"400000")
    assert await box.run("sh", "-c", "exec <&-; echo done", input=data) == (0, b"done\n", b"")
    assert await box.run("sh", "-c", "echo done", input=data) == (0, b"done\n", b"")


@pytest.mark.parametrize("stream", [1, 2])
async def test_a_program_may_set_its_outputs_to_wait_for_nothing(box: Box, stream: int, tmp_path: Path) -> None:
    """Its pipe is full when it ends: what is put behind its last output arrives all the same."""
    ended = tmp_path / "ended"
    fill = (
        "import os, sys, time\n"
        f"os.set_blocking({stream}, False)\n"
        "full = 0\n"
        "while full < 20:\n"
        f"    try: os.write({stream}, bytes(4096)); full = 0\n"
        "    except BlockingIOError: full += 1; time.sleep(0.05)\n"
        "os.rename(sys.argv[1] + '.new', sys.argv[1])\n"
        "sys.exit(3)\n"
    )
    fill = f"open(__import__('sys').argv[1] + '.new', 'w').write(str(__import__('os').getpid()))\n{fill}"
    program = await box.start("python3", "-c", fill, str(ended))
    # Nothing is taken until the program has ended, so that the pipe is full then.
    await asyncio.to_thread(until, ended.exists)
    await asyncio.to_thread(until, lambda: not Path("/proc", ended.read_text()).exists())
    out = await output(program)
    assert await program.wait() == 3 and len(out[stream]) >= 65536 and out[3 - stream] == b""


@pytest.mark.parametrize("kind", [b"1", b"2", b"x"])
async def test_a_frame_of_which_a_part_is_missing_is_not_taken_for_whole(kind: bytes) -> None:
    def frame(program: DaytonaProgram, body: bytes) -> bytes:
        return b"\n" + program._key + kind + b"%d " % len(body) + body + b"\n"

    for cut in (slice(0, 4), slice(4, 8), slice(0, 0)):
        program = DaytonaProgram("place")
        program._ready.set()
        body = b"12345678"
        await program._hear(frame(program, body).replace(body, body[cut]))
        with pytest.raises(SandboxLostError, match="corrupt"):
            await program.receive()


async def test_a_flood_of_small_messages_leaves_others_their_turns() -> None:
    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turns = 0
    counting = asyncio.ensure_future(count())
    program, over = DaytonaProgram("place"), time.thread_time() + 0.5
    while turns <= 3 and time.thread_time() < over:
        await program._hear(b"x")
    counting.cancel()
    assert turns > 3


async def test_the_environment_is_that_of_the_place(box: Box) -> None:
    _, out, _ = await box.run("env")
    names = {it.partition(b"=")[0] for it in out.splitlines()}
    assert b"DAYTONA_SANDBOX_ID" in names and b"HOME" in names
    assert not any(it.startswith(b"swx_") for it in names) and not names & {b"SHELLOPTS", b"TERM"}


async def test_the_startup_files_of_the_first_shell_do_not_matter(box: Box) -> None:
    with (box.place.directory / ".profile").open("a") as profile:
        profile.write("PATH=/usr/bin:/bin ADDED=1 LANG=\nexport ADDED\n")
    _, out, _ = await box.run("sh", "-c", 'echo "$PATH $ADDED $LANG"')
    path, added, language = out.decode().rstrip("\n").rsplit(" ", 2)
    assert path == f"{box.world.programs}:{os.environ['PATH']}" and (added, language) == ("", "C.UTF-8")


async def test_odd_variables_of_the_place_do_not_matter(open_box: OpenBox) -> None:
    odd = {"POSIXLY_CORRECT": "1", "name": "n\nn", "kind": "k", "data": "d", "IFS": "x", "BASH_ENV": "/no"}
    box = await open_box(**odd)
    _, out, _ = await box.run("env", "-0")
    found = dict(it.split(b"=", 1) for it in out.split(b"\0") if it)
    assert {name: found[name.encode()].decode() for name in odd} == odd
    assert await box.run("cat", input=b"x y\0") == (0, b"x y\0", b"")


async def test_the_history_is_not_written(box: Box) -> None:
    await box.run("true")
    assert not (box.place.directory / ".bash_history").exists()


@pytest.mark.parametrize("image", ["dash", "zsh", "greeting"])
async def test_other_shells_and_greetings_do_not_matter(open_box: OpenBox, image: str) -> None:
    if image != "greeting" and not shutil.which(image):
        pytest.skip(f"there is no {image} here")
    box = await open_box(image)
    for _ in range(3):
        assert await box.run("sh", "-c", "cat; exit 3", input=b"\0x") == (3, b"\0x", b"")
    code, out, _ = await box.run("bash", "-c", "stty size; exit 4", terminal=(33, 77))
    assert (code, out.strip()) == (4, b"33 77")


async def test_the_tools_may_be_those_of_busybox(open_box: OpenBox) -> None:
    if not shutil.which("busybox"):
        pytest.skip("there is no busybox here")
    box = await open_box("bare+busybox+bash,busybox,sh,stty,dd,base64,cat,env,setsid")
    data = random.Random(1).randbytes(1_000_000)
    assert await box.run("cat", input=data) == (0, data, b"")


async def test_a_terminal_comes_of_python_where_there_is_no_script(open_box: OpenBox) -> None:
    box = await open_box("bare+bash,sh,stty,dd,base64,python3,tty,setsid")
    code, out, _ = await box.run("bash", "-c", "tty; stty size; exit 3", terminal=(33, 77))
    assert (code, out.splitlines()[1]) == (3, b"33 77")


@pytest.mark.parametrize(
    ("programs", "terminal", "what"),
    [
        ("sh,stty,dd,base64", None, "no bash"),
        ("bash,sh,dd,base64", None, "stty"),
        ("bash,sh,stty,base64", None, "dd"),
        ("bash,sh,stty,dd", None, "base64"),
        ("bash,sh,stty,dd,base64", (24, 80), "script"),
    ],
)
async def test_what_is_missing_is_named(
    open_box: OpenBox, programs: str, terminal: tuple[int, int] | None, what: str
) -> None:
    box = await open_box(f"bare+{programs}")
    with pytest.raises(SandboxLostError, match=what):
        await box.run("sh", "-c", "true", terminal=terminal)


async def test_a_slow_network_loses_nothing(box: Box) -> None:
    """The toolbox cuts off whoever has 256 messages waiting, as a terminal by itself shows."""
    box.world.lag = 0.004
    handle = await box.sandbox.process.create_pty_session("plain", lambda data: None)
    await handle.send_input("exec seq 1 1000000\n")
    until(lambda: box.world.counts["dropped"])
    await asyncio.wait_for(handle.wait(), DEADLINE)
    box.world.counts.clear()
    numbers = b"".join(b"%d\n" % i for i in range(1, 200_001))
    assert await box.run("seq", "1", "200000") == (0, numbers, b"")
    code, out, _ = await box.run("seq", "1", "200000", terminal=(24, 80))
    assert (code, out.replace(b"\r\n", b"\n")) == (0, numbers)
    assert not box.world.counts["dropped"]
    until(lambda: not box.terminals() or box.terminals() == [it._id for it in box.programs])


async def test_output_that_nobody_takes_holds_the_program_back(box: Box) -> None:
    program = await box.start("bash", "-c", "for ((;;)); do printf '%65536s' >&2; echo $((++n)) >count; done")
    count = box.place.directory / "count"
    await until_async(count.exists)
    for _ in range(3):  # meanwhile it would print far more
        await box.run("true")
    assert int(count.read_text()) < 20
    await program.receive()


async def test_a_connection_that_breaks_is_told_and_no_code_made_up(box: Box) -> None:
    program = await box.start("sh", "-c", "echo begun; sleep 1000")
    assert await asyncio.wait_for(program.receive(), DEADLINE) == (1, b"begun\n")
    box.world.cut(box.sandbox.id)
    with pytest.raises(SandboxLostError, match="connection"):
        await asyncio.wait_for(program.receive(), DEADLINE)
    with pytest.raises(SandboxLostError, match="connection"):
        await asyncio.wait_for(program.send(b"x"), DEADLINE)


async def test_letting_go_ends_the_program(box: Box) -> None:
    program = await box.start("sh", "-c", "echo $$; exec sleep 1000")
    piece = await asyncio.wait_for(program.receive(), DEADLINE)
    assert piece is not None
    assert len(box.terminals()) == 1
    await program.close()
    box.programs.clear()
    assert not box.terminals()
    until(lambda: not command_line(int(piece[1])))


async def test_a_start_that_is_given_up_leaves_no_terminal(open_box: OpenBox) -> None:
    box = await open_box("greeting")  # its shell takes a second
    starting = asyncio.create_task(box.start("sleep", "1000"))
    await until_async(box.terminals)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    until(lambda: not box.terminals())
