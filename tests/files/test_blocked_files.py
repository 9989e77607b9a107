"""Test that files which block or have no end hold up neither other calls nor `close`."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import errno
import os
import threading
from pathlib import Path

import pytest

from swerex_c.exceptions import ResourceError
from swerex_c.files import writing
from swerex_c.runtime.abstract import AbstractRuntime, Command, ReadFileRequest, UploadRequest, WriteFileRequest
from swerex_c.runtime.local import LocalRuntime
from swerex_c.runtime.remote import RemoteRuntime
from swerex_c.runtime.sandbox import SandboxRuntime
from swerex_c.utils.cancellation import check_cancelled
from tests.support.local_backend import Here
from tests.support.original import run_python
from tests.support.runtimes import RUNTIMES
from tests.support.server_process import Server
from tests.support.session import Session
from tests.support.wait import DEADLINE, cancel, until, until_async

LIMIT = 1 << 20


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return str(path)


def no_thread(name: str) -> bool:
    return all(thread.name != name for thread in threading.enumerate())


async def test_reads_of_a_named_pipe_leave_the_others_alone(fifo: str, tmp_path: Path) -> None:
    runtime = LocalRuntime()
    reads = [asyncio.ensure_future(runtime.read_file(ReadFileRequest(path=fifo))) for _ in range(64)]
    await asyncio.sleep(0)
    path = str(tmp_path / "file")
    async with asyncio.timeout(DEADLINE):
        assert await asyncio.to_thread(lambda: "the program's own") == "the program's own"
        await runtime.write_file(WriteFileRequest(path=path, content="text"))
        assert (await runtime.read_file(ReadFileRequest(path=path))).content == "text"
        await runtime.upload(UploadRequest(source_path=path, target_path=path + "2"))
        await Session(runtime).create()
        assert (await runtime.execute(Command(command="echo hi", shell=True))).stdout == "hi\n"
    assert not any(read.done() for read in reads)
    async with asyncio.timeout(DEADLINE):
        await runtime.close()
    for read in reads:
        read.cancel()
    await asyncio.wait(reads)
    await until_async(lambda: no_thread("swerex-file"))


_PROGRAM = """
import asyncio, sys, threading
from swerex_c.runtime.abstract import ReadFileRequest, WriteFileRequest
from swerex_c.runtime.local import LocalRuntime
from swerex_c.files import local as files

class Hangs:  # as a file system that does not answer
    def __call__(self, *_, **__):
        import threading
        threading.Event().wait()

async def main():
    if sys.argv[2] == "a disk":
        files.read_text = Hangs()
    runtime = LocalRuntime()
    reads = [asyncio.ensure_future(runtime.read_file(ReadFileRequest(path=sys.argv[1]))) for _ in range(64)]
    while not any(thread.name == "swerex-file" for thread in threading.enumerate()):
        await asyncio.sleep(0)
    await runtime.write_file(WriteFileRequest(path=sys.argv[1] + "2", content=""))
    if sys.argv[3] == "close":
        await runtime.close()

asyncio.run(main())
print("done", flush=True)
"""


@pytest.mark.parametrize("what", ["a named pipe", "a disk"])
@pytest.mark.parametrize("end", ["close", "nothing"])
def test_a_program_ends_though_reads_do_not(fifo: str, what: str, end: str) -> None:
    done = run_python(_PROGRAM, fifo, what, end)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")


async def test_a_named_pipe_is_read_to_its_end(fifo: str) -> None:
    runtime = LocalRuntime()
    read = asyncio.ensure_future(runtime.read_file(ReadFileRequest(path=fifo)))
    write = runtime.execute(Command(command=f"exec >{fifo}; echo one; sleep 0.3; echo two", shell=True))
    assert (await asyncio.gather(read, write))[0].content == "one\ntwo\n"
    read = asyncio.ensure_future(runtime.execute(Command(command=["cat", fifo])))
    text = "x" * 300_000
    while True:  # until cat has opened it
        try:
            await runtime.write_file(WriteFileRequest(path=fifo, content=text))
            break
        except OSError as error:
            assert error.errno == errno.ENXIO and error.filename == fifo
    assert (await read).stdout == text
    await runtime.close()


async def test_a_named_pipe_that_gives_nothing(fifo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "STILL_SECONDS", 0.2)
    runtime = LocalRuntime()
    with pytest.raises(TimeoutError, match="It sent no data for 0.2 seconds") as caught:
        await runtime.read_file(ReadFileRequest(path=fifo))
    assert (caught.value.errno, caught.value.filename) == (errno.ETIMEDOUT, fifo)
    other = os.open(fifo, os.O_RDWR)
    with pytest.raises(TimeoutError, match="accepted no data"):
        await runtime.write_file(WriteFileRequest(path=fifo, content="x" * 300_000))
    os.close(other)
    await runtime.close()


# Without an end


def limited(where: str, limit: int) -> AbstractRuntime:
    if where == "local":
        return LocalRuntime(read_limit=limit)
    return SandboxRuntime(Here(), read_limit=limit)


IN_BOTH = pytest.mark.parametrize("where", ["local", "sandbox"])


@IN_BOTH
async def test_a_file_may_be_as_long_as_the_limit(where: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * LIMIT)
    async with limited(where, LIMIT) as runtime:
        assert (await runtime.read_file(ReadFileRequest(path=str(path)))).content == "x" * LIMIT
        path.write_bytes(b"x" * (LIMIT + 1))
        for too_long in (str(path), "/dev/zero"):
            with pytest.raises(ResourceError, match=f"is larger than {LIMIT} bytes.*read_limit"):
                await runtime.read_file(ReadFileRequest(path=too_long))


async def test_the_limit_holds_at_the_server(tmp_path: Path, remote: RemoteRuntime) -> None:
    path = tmp_path / "file"
    path.touch()
    os.truncate(path, (1 << 30) + 1)
    with pytest.raises(ResourceError, match="read_limit"):
        await remote.read_file(ReadFileRequest(path=str(path)))


@IN_BOTH
async def test_reading_stops_when_it_is_cancelled(where: str) -> None:
    async with limited(where, 1 << 40) as runtime:
        await runtime.read_file(ReadFileRequest(path="/dev/null"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await runtime.read_file(ReadFileRequest(path="/dev/urandom"))  # slower than /dev/zero, and as endless
        await until_async(lambda: no_thread("swerex-file" if where == "local" else "read_text"))


@pytest.mark.parametrize("where", ["local", "sandbox", "frames"])
async def test_a_download_writes_nothing_after_its_cancellation(
    where: str, swerex_remote: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cancellation comes while files are moved to the target."""
    source, target, moving, replace = tmp_path / "source", tmp_path / "target", threading.Event(), os.replace
    for directory in (source, target):
        directory.mkdir()
    for number in range(9):
        (source / f"{number}").touch()

    def slow(*names: str, **directories: int) -> None:
        moving.set()
        until(is_cancelled)
        replace(*names, **directories)

    monkeypatch.setattr(os, "replace", slow)
    async with RUNTIMES[where](swerex_remote) if where == "frames" else limited(where, LIMIT) as runtime:
        copying = asyncio.ensure_future(runtime.download(str(source), str(target)))
        await until_async(moving.is_set)
        await cancel(copying)
        await until_async(lambda: no_thread("swerex-file") and no_thread("_receive"))
    assert len(os.listdir(target)) == 1


def is_cancelled() -> bool:
    """Return whether the call of this thread was cancelled."""
    with contextlib.suppress(concurrent.futures.CancelledError):
        check_cancelled()
        return False
    return True
