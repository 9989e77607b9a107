"""Files and trees cross whole or not at all, in pieces."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
import pytest_asyncio
import ray

from swerex_c.exceptions import NotSupportedError, SandboxLostError
from swerex_c.providers.ray.runtime import RayRuntime
from swerex_c.runtime.abstract import UploadRequest
from tests.support.ray_cluster import Made, raised
from tests.support.wait import until


@pytest_asyncio.fixture
async def runtime(made: Made) -> RayRuntime:
    deployment = made(resources={"far": 0.1})
    await deployment.start()
    assert isinstance(deployment.runtime, RayRuntime)
    return deployment.runtime


async def _up(runtime: RayRuntime, source: Path, target: Path) -> None:
    await runtime.upload(UploadRequest(source_path=str(source), target_path=str(target)))


async def test_a_transfer_that_is_cancelled_or_whose_place_dies(runtime: RayRuntime, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    with open(tmp_path / "tree" / "large", "wb") as file:
        file.truncate(2 << 30)
    for how in ("cancel", "kill"):
        upload = asyncio.ensure_future(_up(runtime, tmp_path / "tree", tmp_path / "target"))
        # What comes is beside the target meanwhile.
        await asyncio.to_thread(until, lambda: len(os.listdir(tmp_path)) > 1)
        if how == "cancel":
            upload.cancel()
        else:
            ray.kill(runtime._wire_client._actor._handle)
        error = await raised(asyncio.wait_for(upload, 20))
        assert isinstance(error, asyncio.CancelledError if how == "cancel" else SandboxLostError), repr(error)
        assert not (tmp_path / "target").exists()
        if how == "cancel":  # what had come goes, too
            await asyncio.to_thread(until, lambda: sorted(os.listdir(tmp_path)) == ["tree"])


async def test_little_of_a_large_file_is_in_memory_at_once(runtime: RayRuntime, tmp_path: Path) -> None:
    """Four times what an object store holds here passes through it."""
    size = 320 << 20
    with open(tmp_path / "large", "wb") as file:
        file.truncate(size)
    before = _peak()
    await _up(runtime, tmp_path / "large", tmp_path / "copy")
    assert (tmp_path / "copy").stat().st_size == size
    assert _peak() - before < 128 << 20
    with pytest.raises((NotSupportedError, OSError)):
        await runtime.download(str(tmp_path), "/proc/nothing/here")


def _peak() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    raise AssertionError("no VmHWM")
