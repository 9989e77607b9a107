"""Engine for `floor.c`: what a session costs in plain C."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import subprocess
from pathlib import Path

from swerex_c.bench.engines import Engine
from swerex_c.bench.worker import Operations, Result

__all__ = ["PlainC", "build"]

FLAGS = ["-O2", "-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra"]
HERE = Path(__file__).resolve().parent


def build(source: str, directory: Path, *more: str) -> str:
    """Compile a C file beside this one, and return the path of the program.

    Raises:
        RuntimeError: if there is no compiler, or the file does not compile.
    """
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise RuntimeError("no C compiler: install build-essential (Debian) or gcc (Fedora)")
    path = directory / source.removesuffix(".c")
    command = [*shlex.split(compiler), *FLAGS, str(HERE / source), *more, "-o", str(path), "-lutil"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{source} does not compile: {done.stderr.strip()}")
    return str(path)


class PlainC(Operations):
    """Operations by the program `floor`, one run for each turn."""

    def __init__(self, directory: str) -> None:
        super().__init__(Engine())
        self.binary = build("floor.c", Path(directory))

    async def _run(self, mode: str, count: int, seconds: float, *arguments: object) -> Result:
        words = [self.binary, mode, str(min(count, 4000)), str(seconds), *map(str, arguments)]
        process = await asyncio.create_subprocess_exec(*words, stdout=subprocess.PIPE)
        try:
            said, _ = await process.communicate()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        if process.returncode:
            raise RuntimeError(f"floor {mode} ended with {process.returncode}")
        found: Result = json.loads(said)
        return found

    async def command(self, text: str, count: int, seconds: float) -> Result:
        return await self._run("command", count, seconds, text, 0)

    async def create(self, count: int, seconds: float, rest: float = 0.0) -> Result:
        return await self._run("start", count, seconds)

    async def output(self, path: str, count: int, seconds: float) -> Result:
        size = os.path.getsize(path)
        return {**await self._run("command", count, seconds, f"cat {path}", size), "bytes": size}

    async def sessions(self, number: int, count: int, seconds: float) -> Result:
        return await self._run("sessions", count, seconds, number)

    async def interrupt(self, count: int, seconds: float) -> Result:
        return await self._run("interrupt", count, seconds)
