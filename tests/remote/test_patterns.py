"""A client's patterns: the server refuses or ends those that cost too much, and serves others meanwhile."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from swerex_c.exceptions import CommandTimeoutError
from swerex_c.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    CloseBashSessionRequest,
    CreateBashSessionRequest,
)
from swerex_c.runtime.remote import RemoteRuntime
from tests.support.patterns import CATASTROPHIC, COSTLY
from tests.support.server_process import KEY, Server


@pytest.mark.parametrize("pattern", [CATASTROPHIC, COSTLY])
async def test_one_that_costs_too_much(our_server: Server, tmp_path: Path, pattern: str) -> None:
    letters = tmp_path / "letters"
    letters.write_bytes(bytes(random.Random(1).choices(b"ab", k=1_000_000)))
    first, other = (RemoteRuntime(host="http://127.0.0.1", port=our_server.port, auth_token=KEY) for _ in range(2))
    for runtime, name in ((first, "one"), (other, "two")):
        await runtime.create_session(CreateBashSessionRequest(session=name))
    command = BashAction(session="one", command=f"cat {letters}; sleep 20", timeout=15, expect=[pattern])
    costly = asyncio.ensure_future(first.run_in_session(command))
    while not costly.done():
        await other.run_in_session(BashAction(session="two", command="true", timeout=5))
    with pytest.raises(CommandTimeoutError, match="expect"):
        await costly
    await first.run_in_session(BashInterruptAction(session="one"))
    assert (await first.run_in_session(BashAction(session="one", command="echo next", timeout=5))).output == "next\n"
    for runtime, name in ((first, "one"), (other, "two")):
        await runtime.close_session(CloseBashSessionRequest(session=name))


async def test_one_that_is_not_regular_is_found(our_server: Server) -> None:
    async with RemoteRuntime(host="http://127.0.0.1", port=our_server.port, auth_token=KEY) as runtime:
        await runtime.create_session(CreateBashSessionRequest(session="three"))
        action = BashAction(
            session="three", command="printf 'one xx'; (exit 3)", timeout=15, check="silent", expect=[r"(x)\1"]
        )
        seen = await runtime.run_in_session(action)
        assert (seen.output, seen.exit_code, seen.expect_string) == ("one ", 3, r"(x)\1")
        await runtime.close_session(CloseBashSessionRequest(session="three"))
