"""A session of the core, and a command that has ended in it."""

from __future__ import annotations

import asyncio
from typing import Any

from swerex_c import _core
from swerex_c.engine.completions import current_completions
from swerex_c.engine.session import BashSession
from swerex_c.runtime.abstract import CreateBashSessionRequest
from swerex_c.runtime.local import LocalRuntime


async def opened(**more: Any) -> tuple[LocalRuntime, _core.Session]:
    runtime = LocalRuntime(**more)
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=60))
    session = runtime.sessions["default"]
    assert isinstance(session, BashSession)
    return runtime, session.core


async def ended(core: _core.Session, command: str) -> _core.Operation:
    future = asyncio.get_running_loop().create_future()
    operation = core.run(command, 1, 20.0, None, None, current_completions().core, future, None, 0)
    if not operation.done:
        await future
    return operation
