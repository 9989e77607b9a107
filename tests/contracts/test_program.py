"""What passes between a caller and a program of the sandbox: bytes, words, variables, signals, descriptors."""

from __future__ import annotations

import asyncio
import hashlib
import os
import random
from pathlib import Path

import pytest

from swerex_c.models import UploadRequest
from tests.support.harness import no_signals
from tests.support.results import WrongAnswer
from tests.support.targets import ALL, Session, Target, token

TARGETS = [*(name for name in ALL if name != "original"), "cat"]

ODD = "a'b\"c\\d&e\\&f!g!h@40%n$x`ls` ;|*?[a]{b,c}~#<>ü\n\t\n"
"""What a shell, a terminal or a format on the way would change."""

SIZES = (0, 1, 2048, 65535, 65536, 65537, 3_000_000)
"""About the sizes of pipes, pages and messages."""


def data_of(size: int) -> bytes:
    """Bytes of every value, half of them at random."""
    return random.Random(size).randbytes(size // 2) + (bytes(range(256)) * (size // 512 + 1))[: size - size // 2]


@pytest.mark.parametrize("size", SIZES)
async def test_every_byte_arrives_and_comes_back(target: Target, tmp_path: Path, size: int) -> None:
    data, path = data_of(size), target.new()
    (tmp_path / "up").write_bytes(data)
    await target.runtime.upload(UploadRequest(source_path=str(tmp_path / "up"), target_path=path))
    assert (await target.says(f"sha256sum <{path}")).split()[0] == hashlib.sha256(data).hexdigest()
    await target.runtime.download(path, str(tmp_path / "down"))
    assert (tmp_path / "down").read_bytes() == data


@pytest.mark.slice
async def test_variables_pass_whatever_is_in_them(target: Target) -> None:
    path = (await target.says("echo $PATH")).strip()
    print_them = ["sh", "-c", 'printf "<%s>" "$ODD" "${EMPTY-unset}" "${MISSING-unset}" "$PS1"']
    environment = {"ODD": ODD, "EMPTY": "", "PS1": ODD, "PATH": path}
    assert await target.says(print_them, env=environment) == f"<{ODD}><><unset><{ODD}>"
    session = Session(target.runtime, patience=target.patience)
    await session.create(env={"ODD": ODD, "EMPTY": ""})
    await session.gives('printf "<%s>" "$ODD" "${EMPTY-unset}"', f"<{ODD}><>")
    await session.close()


async def test_bytes_that_are_no_text_pass(target: Target) -> None:
    """As a word and as a variable."""
    path, odd = (await target.says("echo $PATH")).strip(), "a\udc80\udcff"
    dump = "printf %s \"$1$ODD\" | od -An -tx1 | tr -d ' \\n'"
    gave = await target.says(["sh", "-c", dump, "sh", odd], env={"ODD": odd, "PATH": path})
    assert gave == 2 * os.fsencode(odd).hex()


async def test_values_of_variables_are_in_no_command_line(target: Target, session: Session) -> None:
    secret = f"hush-{token()}"
    path = (await target.says("echo $PATH")).strip()
    look = "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '; :"
    other = Session(target.runtime, patience=target.patience)
    await other.create(env={"TOKEN": secret})
    printed = await target.says(["sh", "-c", look], env={"TOKEN": secret, "PATH": path})
    printed += (await other.run(look)).output
    assert "cmdline" in printed and secret not in printed
    await other.close()


async def test_signals_are_default(target: Target, session: Session) -> None:
    assert no_signals(await target.says(["cat", "/proc/self/status"]))
    assert no_signals((await session.run("cat /proc/self/status")).output)
    assert await target.says("yes | head -1") == "y\n"


async def test_much_output_at_once(target: Target, session: Session) -> None:
    """Of several commands, each of which gets its own."""
    size = 5_000_000
    many = "head -c {} /dev/zero | tr '\\0' {}"
    answers = await asyncio.gather(
        session.run(many.format(size, "s")), *(target.execute(many.format(size, letter)) for letter in "abc")
    )
    wanted = {letter: letter * size for letter in "sabc"}
    gave = [answers[0].output, *(answer.stdout for answer in answers[1:])]  # type: ignore[union-attr]
    if gave != list(wanted.values()):
        raise WrongAnswer(f"lengths {[len(text) for text in gave]}, letters {[set(text[:100]) for text in gave]}")
