"""`LocalRuntime` of a package with the API of SWE-ReX: ours, the original."""

from __future__ import annotations

import asyncio
import importlib
import time
from collections.abc import Callable
from typing import Any

from engines.base import Engine
from measuring.engine import GIVE_UP
from measuring.runtime import Runtime as BaseRuntime

__all__ = ["OnUvloop", "Runtime", "UvloopRuntime"]


class Runtime(BaseRuntime, Engine):
    """`LocalRuntime` of a package with the API of SWE-ReX."""

    def __init__(self, package: str, options: dict[str, Any] | None = None) -> None:
        """options: what the runtime is made with."""
        super().__init__(package)
        self.rest_seconds = 1.0 if package == "swerex_c" else 0.0
        self.runtime = self.make_runtime(options or {})

    def make_runtime(self, options: dict[str, Any]) -> Any:
        return importlib.import_module(f"{self.package}.runtime.local").LocalRuntime(**options)

    async def open_with(self, key: str, files: list[str]) -> None:
        request = self.api.CreateBashSessionRequest(session=key, startup_timeout=10, startup_source=files)
        await self.runtime.create_session(request)

    async def ready(self) -> None:
        if not await self.runtime.wait_until_warm():
            raise RuntimeError("no shells are ready")

    async def run_bounded(self, key: str, text: str) -> tuple[str, int | None, int]:
        result = await self.runtime.run_in_session(self.api.BashAction(command=text, session=key, check="silent"))
        dropped: int = result.output_dropped
        note = f"\n[... {dropped} bytes of output were dropped here ...]\n" if dropped else ""
        return result.output.replace(note, "", 1), result.exit_code, dropped

    async def stream(self, key: str, text: str, take: Callable[[str], None]) -> int | None:
        action = self.api.BashAction(command=text, session=key, check="silent")
        code = None
        async for piece in self.runtime.stream_in_session(action):
            if isinstance(piece, str):
                take(piece)
            else:
                code = piece.exit_code
        return code

    async def wait_for(self, key: str, text: str, patterns: list[str]) -> str:
        action = self.api.BashAction(command=text, session=key, check="ignore", expect=patterns)
        return str((await self.runtime.run_in_session(action)).expect_string)

    async def interrupt_running(self, key: str, text: str) -> float:
        action = self.api.BashAction(command=text, session=key, check="silent")
        running = asyncio.ensure_future(self.runtime.run_in_session(action))
        await asyncio.sleep(GIVE_UP)
        start = time.perf_counter()
        interrupt = asyncio.ensure_future(self.runtime.run_in_session(self.api.BashInterruptAction(session=key)))
        await asyncio.wait([running], timeout=10)
        took = (time.perf_counter() - start) * 1e6
        await interrupt
        await running
        return took

    async def alive(self) -> bool:
        return bool((await self.runtime.is_alive()).is_alive)

    async def move(self, how: str, path: str, copy: str, content: str) -> str | None:
        if how == "read":
            return str((await self.runtime.read_file(self.api.ReadFileRequest(path=path))).content)
        if how == "write":
            await self.runtime.write_file(self.api.WriteFileRequest(path=copy, content=content))
        elif how == "upload":
            await self.runtime.upload(self.api.UploadRequest(source_path=path, target_path=copy))
        else:
            await self.runtime.download(path, copy)
        return None


class OnUvloop(Engine):
    """The same on uvloop; comes before the class that it changes."""

    def __init__(self, *arguments: Any) -> None:
        self.loop_factory = importlib.import_module("uvloop").new_event_loop
        super().__init__(*arguments)


class UvloopRuntime(OnUvloop, Runtime):
    pass
