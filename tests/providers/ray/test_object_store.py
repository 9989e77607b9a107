"""Files and trees cross whole or not at all, in pieces."""

from __future__ import annotations

import asyncio
import os
import resource
from pathlib import Path

import pytest
import ray

from swerex_c.exceptions import NotSupportedError, SandboxLostError
from swerex_c.models import UploadRequest
from tests.support.ray_cluster import Made, raised
from tests.support.wait import DEADLINE, until_async


def peak() -> int:
    """The most bytes of memory that this process has ever taken."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


async def test_a_transfer_that_is_cancelled_or_whose_place_dies(made: Made, tmp_path: Path) -> None:
    deployment = made(resources={"far": 0.1})
    await deployment.start()
    (tmp_path / "tree").mkdir()
    with open(tmp_path / "tree" / "large", "wb") as file:
        file.truncate(2 << 30)
    request = UploadRequest(source_path=str(tmp_path / "tree"), target_path=str(tmp_path / "target"))
    for how in ("cancel", "kill"):
        upload = asyncio.ensure_future(deployment.runtime.upload(request))
        await until_async(lambda: len(os.listdir(tmp_path)) > 1)  # what comes is beside the target meanwhile
        if how == "cancel":
            upload.cancel()
        else:
            ray.kill(deployment._channel._handle)
        error = await raised(asyncio.wait_for(upload, DEADLINE))
        assert isinstance(error, asyncio.CancelledError if how == "cancel" else SandboxLostError), repr(error)
        assert not (tmp_path / "target").exists()
        if how == "cancel":  # what had come goes, too
            await until_async(lambda: os.listdir(tmp_path) == ["tree"])


async def test_little_of_a_large_file_is_in_memory_at_once(made: Made, tmp_path: Path) -> None:
    """Four times what an object store holds here passes through it."""
    deployment = made(resources={"far": 0.1})
    await deployment.start()
    size = 320 << 20
    with open(tmp_path / "large", "wb") as file:
        file.truncate(size)
    before = peak()
    await deployment.runtime.upload(
        UploadRequest(source_path=str(tmp_path / "large"), target_path=str(tmp_path / "copy"))
    )
    assert (tmp_path / "copy").stat().st_size == size
    assert peak() - before < 128 << 20
    with pytest.raises((NotSupportedError, OSError)):
        await deployment.runtime.download(str(tmp_path), "/proc/nothing/here")
