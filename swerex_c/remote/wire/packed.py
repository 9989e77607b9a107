"""Archives as asynchronous streams, with bounded memory."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import AsyncGenerator, Callable

from swerex_c.exceptions import ResourceError
from swerex_c.files.writing import write_all
from swerex_c.utils.threads import start_thread

__all__ = ["packed"]

_PIECE = 256 << 10
_PIPE = 1 << 20


async def packed(pack: Callable[[str, Callable[[bytes], object]], None], source: str) -> AsyncGenerator[bytes, None]:
    """Yield the archive that `pack(source, write)` writes, in pieces.

    A thread packs, only a little ahead of the reader. Raises the errors of `pack`; those that can be known beforehand
    come before the first piece.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(limit=_PIPE // 2)
    read_end, write_end = os.pipe()
    done: asyncio.Future[None] = loop.create_future()

    def run() -> None:
        error: BaseException | None = None
        try:
            pack(source, lambda data: write_all(write_end, [data]))
        except BaseException as caught:
            error = caught
        finally:
            os.close(write_end)
        with contextlib.suppress(RuntimeError):  # the loop is closed, and no reader waits
            loop.call_soon_threadsafe(settle, error)

    def settle(error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    with contextlib.suppress(OSError):
        fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, _PIPE)
    try:
        start_thread(run, "swerex-pack")
    except ResourceError:
        os.close(read_end)
        os.close(write_end)
        raise
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), open(read_end, "rb", 0))
    try:
        while data := await reader.read(_PIECE):
            yield data
        await done
    finally:
        transport.close()  # the thread gets EPIPE
        done.cancel()
