"""Programs in a sandbox of Daytona, carried by its terminals through the real SDK."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("daytona")

from swerex_c.exceptions import SandboxLostError
from swerex_c.providers.daytona.backend import DaytonaBackend, DaytonaProgram
from swerex_c.providers.daytona.deployment import connect
from tests.support.daytona_fixtures import DaytonaWorld, server, world
from tests.support.direct_programs import collect
from tests.support.harness import needs
from tests.support.processes import alive
from tests.support.wait import DEADLINE, cancel, until, until_async

__all__ = ["server", "world"]

Size = tuple[int, int] | None


class Box:
    """A sandbox, in this test's own loop."""

    def __init__(self, sandbox: Any, world: DaytonaWorld) -> None:
        self.sandbox, self.world = sandbox, world
        self.place = world.sandboxes[sandbox.id]
        self.programs: list[DaytonaProgram] = []

    async def start(self, *argv: str, terminal: Size = None, **environment: str) -> DaytonaProgram:
        program = await DaytonaBackend(self.sandbox).exec(argv, environment, terminal)
        assert isinstance(program, DaytonaProgram)
        self.programs.append(program)
        return program

    async def run(
        self, *argv: str, input: bytes = b"", terminal: Size = None, **environment: str
    ) -> tuple[int, bytes, bytes]:
        """Run a program, and return its exit code and outputs."""
        program = await self.start(*argv, terminal=terminal, **environment)

        async def give() -> None:
            await program.send(input)
            if terminal is None:
                await program.end_input()

        giving, outputs = asyncio.create_task(give()), {1: b"", 2: b""}
        code = await asyncio.wait_for(collect(program, outputs), DEADLINE)
        giving.cancel()
        return code, outputs[1], outputs[2]


OpenBox = Callable[..., Awaitable[Box]]


@pytest.fixture
async def open_box(world: DaytonaWorld) -> AsyncIterator[OpenBox]:
    from daytona import CreateSandboxFromImageParams

    daytona = await connect()
    boxes: list[Box] = []

    async def open_box(image: str = "debian:12", **variables: str) -> Box:
        params = CreateSandboxFromImageParams(image=image, env_vars=variables)
        boxes.append(Box(await daytona.create(params), world))
        return boxes[-1]

    yield open_box
    for box in boxes:
        for program in box.programs:
            await program.close()
        assert not box.place.terminals, "a program was closed and goes on"
        await daytona.delete(box.sandbox)
    await daytona.close()


@pytest.fixture
async def box(open_box: OpenBox) -> Box:
    return await open_box()


async def test_an_answer_is_the_programs_own(box: Box) -> None:
    """The terminal of the transport has no part in it."""
    script = "echo out; echo err >&2; { echo loud >/dev/tty; } 2>/dev/null; (sleep 1000; echo late) & exit 7"
    assert await box.run("sh", "-c", script) == (7, b"out\n", b"err\n")
    assert await box.run("sh", "-c", "kill -INT $$; echo ignored") == (130, b"", b"")


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 36863, 36864, 36865, 262144, 262145, 3_000_000])
async def test_every_byte_passes_both_ways(box: Box, size: int) -> None:
    data = random.Random(size).randbytes(size)
    assert await box.run("tee", "/dev/stderr", input=data) == (0, data, data)


async def test_unread_input_blocks_nothing(box: Box) -> None:
    """A program that prints before it reads, and one that never reads, while more waits than pipes hold."""
    data = b"i" * 400_000
    code, out, _ = await box.run("sh", "-c", "head -c 400000 /dev/zero; wc -c", input=data)
    assert (code, out[:400_000], out[400_000:].strip()) == (0, bytes(400_000), b"400000")
    assert await box.run("sh", "-c", "exec <&-; echo done", input=data) == (0, b"done\n", b"")
    assert await box.run("sh", "-c", "echo done", input=data) == (0, b"done\n", b"")


FILL = """
import os, sys, time
directory, stream = sys.argv[1], int(sys.argv[2])
with open(f"{directory}/new", "w") as file:
    file.write(str(os.getpid()))
os.set_blocking(stream, False)
full = 0
while full < 20:
    try:
        os.write(stream, bytes(4096))
        full = 0
    except BlockingIOError:
        full += 1
        time.sleep(0.05)
os.rename(f"{directory}/new", f"{directory}/ended")
sys.exit(3)
"""


@pytest.mark.parametrize("stream", [1, 2])
async def test_a_program_may_make_its_outputs_non_blocking(box: Box, stream: int, tmp_path: Path) -> None:
    """Its pipe is full when it ends: what is put behind its last output arrives all the same."""
    program = await box.start("python3", "-c", FILL, str(tmp_path), str(stream))
    # Nothing is taken until the program has ended, so that the pipe is full then.
    await until_async((tmp_path / "ended").exists)
    await until_async(lambda: not alive(int((tmp_path / "ended").read_text())))
    outputs = {1: b"", 2: b""}
    assert await collect(program, outputs) == 3
    assert len(outputs[stream]) >= 65536 and outputs[3 - stream] == b""


@pytest.mark.parametrize("kind", [b"1", b"2", b"x"])
async def test_an_incomplete_frame_is_corrupt(kind: bytes) -> None:
    for part in (b"1234", b"5678", b""):
        program = DaytonaProgram("place")
        program._ready.set()
        await program._on_output(b"\n" + program._frame_key + kind + b"8 " + part + b"\n")
        with pytest.raises(SandboxLostError, match="corrupt"):
            await program.receive()


async def test_each_message_leaves_others_a_turn() -> None:
    """So that a flood of small ones does not hold up what else is in the loop."""
    turn, program = asyncio.Event(), DaytonaProgram("place")
    asyncio.get_running_loop().call_soon(turn.set)
    await program._on_output(b"x")
    assert turn.is_set()


async def test_the_environment_is_that_of_the_place(open_box: OpenBox) -> None:
    """Whatever variables it has, and whatever its first shell's startup files say; no history is written."""
    odd = {"POSIXLY_CORRECT": "1", "name": "n\nn", "kind": "k", "data": "d", "IFS": "x", "BASH_ENV": "/no"}
    box = await open_box(**odd)
    with (box.place.directory / ".profile").open("a") as profile:
        profile.write("PATH=/usr/bin:/bin ADDED=1 LANG=\nexport ADDED\n")
    _, out, _ = await box.run("env", "-0")
    found = dict(it.split("=", 1) for it in out.decode().split("\0") if it)
    assert odd.items() <= found.items() and found["LANG"] == "C.UTF-8"
    assert found["PATH"] == f"{box.world.programs}:{os.environ['PATH']}"
    assert found.keys() >= {"DAYTONA_SANDBOX_ID", "HOME"}
    assert not found.keys() & {"ADDED", "SHELLOPTS", "TERM"} and not any(it.startswith("swx_") for it in found)
    assert await box.run("cat", input=b"x y\0") == (0, b"x y\0", b"")
    assert not (box.place.directory / ".bash_history").exists()


@pytest.mark.parametrize(
    "image",
    [
        "dash",
        "zsh",
        "greeting",
        "bare+busybox+bash,busybox,sh,stty,dd,base64,cat,env,setsid,python3",
        "bare+bash,sh,stty,dd,base64,cat,setsid,python3",
    ],
    ids=["dash", "zsh", "greeting", "busybox", "no script"],
)
async def test_other_shells_greetings_and_tools_do_not_matter(open_box: OpenBox, image: str) -> None:
    program = "busybox" if "busybox" in image else image
    if program in ("dash", "zsh", "busybox"):
        needs(program)
    box = await open_box(image)
    data = random.Random(1).randbytes(300_000)
    for input in (b"\0x", b"", data):
        assert await box.run("sh", "-c", "cat; exit 3", input=input) == (3, input, b"")
    code, out, _ = await box.run("bash", "-c", "stty size; exit 4", terminal=(33, 77))
    assert (code, out.strip()) == (4, b"33 77")


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
async def test_a_missing_tool_is_named(open_box: OpenBox, programs: str, terminal: Size, what: str) -> None:
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
    until(lambda: list(box.place.terminals) in ([], [it._id for it in box.programs]))


async def test_unread_output_blocks_the_program(box: Box) -> None:
    program = await box.start("bash", "-c", "for ((;;)); do printf '%65536s' >&2; echo $((++n)) >count; done")
    count = box.place.directory / "count"
    await until_async(count.exists)
    for _ in range(3):  # meanwhile it would print far more
        await box.run("true")
    assert int(count.read_text()) < 20
    await program.receive()


async def test_a_cancelled_start_leaves_no_terminal(open_box: OpenBox) -> None:
    box = await open_box("greeting")  # its shell takes a second
    starting = asyncio.create_task(box.start("sleep", "1000"))
    await until_async(lambda: box.place.terminals)
    await cancel(starting)
    until(lambda: not box.place.terminals)
