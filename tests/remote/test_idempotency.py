"""A request is executed once, however often and over whichever connections it is sent."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

from swerex_c.exceptions import (
    ConnectionLostError,
    ResultLostError,
    ServerLimitError,
    ServerRestartedError,
    SessionDoesNotExistError,
)
from swerex_c.remote.client import http
from swerex_c.remote.client.connect import Address
from swerex_c.remote.server import calls as server_channel
from swerex_c.remote.server import requests as requests_module
from swerex_c.remote.server.limits import Limits
from swerex_c.remote.server.requests import RequestTable
from swerex_c.remote.wire.exceptions import from_wire
from swerex_c.remote.wire.protocol import CANCEL, ERROR, GOODBYE, PING, PONG, RESULT, decode_payload
from swerex_c.runtime.abstract import BashAction, Command, CreateBashSessionRequest, WriteFileRequest
from swerex_c.runtime.remote import RemoteRuntime
from tests.support.frames_tools import Proxy, Served, bash, channel_to, raw_client, request, serving
from tests.support.processes import Family
from tests.support.server_process import KEY
from tests.support.server_process import serving as server_process
from tests.support.wait import DEADLINE, cancel, settle, until_async

pytestmark = [pytest.mark.usefixtures("family", "reconnects_at_once")]


def count(ran: Path, sleep: float = 0.0) -> dict[str, Any]:
    """Return a command whose runs can be counted."""
    return {"command": f"echo x >> {ran}; sleep {sleep}; echo y", "shell": True}


def is_lost(answer: Any) -> bool:
    return answer[0] == ERROR and isinstance(from_wire(answer[-1]), ResultLostError)


async def test_asked_again(served: Served, tmp_path: Path) -> None:
    """A request is repeated while it runs and later, over the same and other connections; the newest counts."""
    ran, end = tmp_path / "ran", tmp_path / "end"
    waits = request(
        1, "execute", {"command": f"echo x >> {ran}; until [ -e {end} ]; do sleep 0.02; done", "shell": True}
    )
    async with raw_client(served.port) as old:
        old.send(waits, waits, waits)
        await until_async(ran.exists)
        async with raw_client(served.port, known=True) as new:
            await old.ended()  # though it may still seem to be there
            assert len(served.registry.connections) == 1
            new.send(waits)
            new.writer.write_eof()  # whoever ends half of a connection ends all of it
            await new.ended()
    async with raw_client(served.port, known=True) as peer:
        peer.send(waits)
        end.touch()
        assert (await peer.answer(1))[-1]["exit_code"] == 0
    for _ in range(2):
        async with raw_client(served.port, known=True) as peer:
            for _ in range(2):
                peer.send(waits)
                assert (await peer.answer(1))[-1]["exit_code"] == 0
    assert ran.read_text() == "x\n"


async def test_answers_wait_for_the_question(served: Served, tmp_path: Path) -> None:
    """Over a new connection, the server sends nothing of an exchange before the client repeats the request."""
    payload = {"command": "sleep 0.2; head -c 500000 /dev/zero | tr '\\0' x", "shell": True}
    async with raw_client(served.port) as peer:
        peer.send(request(1, "execute", payload))
        await until_async(lambda: served.running == 1)
    async with raw_client(served.port, known=True) as peer:
        await until_async(lambda: served.running == 0)
        peer.send([PING, 0])
        assert await peer.frame() == [PONG]
        peer.send(request(1, "execute", payload))
        data, size = b"", None
        while len(data) != size:
            if (frame := await peer.frame())[0] == RESULT:
                size = frame[-1]
            else:
                assert frame[3] == len(data)
                data += frame[4]
        assert decode_payload(data)["stdout"] == "x" * 500_000


async def test_forgotten(served: Served, tmp_path: Path) -> None:
    """A response that the client has acknowledged, by a request or a ping, is dropped, and its request not repeated."""
    ran = tmp_path / "ran"
    async with raw_client(served.port) as peer:
        peer.send(request(1, "execute", count(ran)))
        await peer.answer(1)
        peer.send(request(2, "execute", count(ran), 2))
        await peer.answer(2)
        assert served.calls == 1
        peer.send([PING, 3])
        assert await peer.frame() == [PONG]
        assert served.calls == 0
        for number in (1, 2):
            peer.send(request(number, "execute", count(ran), 3))
            assert is_lost(await peer.answer(number))
        peer.send(request(1 << 63))
        assert (await peer.answer(1 << 63))[0] == RESULT
        peer.send(request(50, "execute", count(ran)))  # a number below the highest one has been used
        assert is_lost(await peer.answer(50))
    assert ran.read_text() == "x\nx\n"


async def test_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are kept for a time; so is a channel that nobody has connected to."""
    monkeypatch.setattr(server_channel, "_SWEEP", 0.02)
    ran = tmp_path / "ran"
    async with serving(Limits(result_seconds=0.2)) as served:
        async with raw_client(served.port) as peer:
            peer.send(request(1, "execute", count(ran)))
            assert (await peer.answer(1))[0] == RESULT
            assert served.calls == 1
            await until_async(lambda: served.calls == 0)
            peer.send(request(1, "execute", count(ran)))
            assert is_lost(await peer.answer(1))
        assert len(served.registry.channels) == 1
        await until_async(lambda: not served.registry.channels)
    assert ran.read_text() == "x\n"


async def test_slow_reader_keeps_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A response that the client is still reading is not dropped when it expires."""
    monkeypatch.setattr(server_channel, "_SWEEP", 0.02)
    async with serving(Limits(result_seconds=0.1, result_bytes=1000)) as served, Proxy(served.port) as proxy:
        async with channel_to(proxy.port) as channel:
            proxy.rate = 20e6
            payload = {"command": "head -c 9000000 /dev/zero | tr '\\0' x", "shell": True}
            answers = await asyncio.gather(*[channel.call("execute", payload, 20) for _ in range(2)])
            assert all(answer["stdout"] == "x" * 9_000_000 for answer in answers)


async def test_alive_may_be_asked_twice(served: Served) -> None:
    """The number of an `is_alive` request may be used again, as after a lost connection."""
    async with raw_client(served.port) as peer:
        for number in (5, 5, 3):
            peer.send(request(number))
            assert (await peer.answer(number))[-1]["is_alive"] is True
        assert served.calls == 0


async def test_cancelled_at_once(served: Served, tmp_path: Path) -> None:
    """A request that is cancelled in the same packet leaves nothing behind."""
    async with raw_client(served.port) as peer:
        for number in range(1, 20):
            peer.send(request(number, "execute", {"command": "sleep 60", "shell": True}), [CANCEL, number])
        for number in range(1, 20):
            assert (await peer.answer(number))[0] == ERROR
        peer.send([CANCEL, 1], [CANCEL, 99], [CANCEL, -1])
        peer.send(request(20, floor=20))
        assert (await peer.answer(20))[0] == RESULT
    assert served.running == 0 and served.calls == 0
    assert served.service.in_flight == 0


async def test_unknown_channel(served: Served, tmp_path: Path) -> None:
    """If the server no longer knows the channel, its calls raise `ResultLostError`."""
    async with Proxy(served.port) as proxy, channel_to(proxy.port) as channel:
        call = asyncio.create_task(channel.call("execute", {"command": "sleep 0.2", "shell": True}))
        await until_async(lambda: served.running == 1)
        served.registry.channels.clear()
        proxy.cut()
        with pytest.raises(ResultLostError):
            await call
        assert (await channel.call("run_in_session", bash("echo y")))["output"].strip() == "y"
        await until_async(lambda: not served.service.in_flight)


async def test_clients_that_went_make_room(family: Family) -> None:
    """Channels without a client are dropped, the oldest first; those with clients are kept."""
    async with serving(Limits(connections=2)) as served:
        async with raw_client(served.port, name=bytes(16)) as stays:
            for i in range(1, 20):
                async with raw_client(served.port, name=i.to_bytes(16, "big")) as peer:
                    peer.send(request(1))
                    await peer.answer(1)
                await until_async(lambda: len(served.registry.connections) == 1)
            assert len(served.registry.channels) == 4
            stays.send(request(1))
            assert (await stays.answer(1))[0] == RESULT


@pytest.mark.parametrize("limits", [Limits(results=6), Limits(result_bytes=60_000)], ids=["number", "bytes"])
async def test_results_have_a_limit_for_all_clients_together(limits: Limits) -> None:
    """A result that was dropped is lost, and its request is not carried out again."""
    echo = {"command": ["printf", "%010000d", "1"]}
    async with serving(limits) as served:
        table = served.registry.service.requests
        for name in (bytes([i]) * 16 for i in range(4)):
            async with raw_client(served.port, name=name) as peer:
                for number in range(1, 5):
                    peer.send(request(number, "execute", echo))
                    assert (await peer.answer(number))[0] == RESULT
            await until_async(lambda: not served.registry.connections)
        assert 0 < len(table._finished) <= 6 and table.kept_bytes < 70_000
        async with raw_client(served.port, name=bytes(16), known=True) as peer:
            peer.send(request(1, "execute", echo))
            assert (await peer.answer(1))[-1]["class_path"].endswith("ResultLostError")
        async with raw_client(served.port, name=bytes([3]) * 16, known=True) as peer:
            peer.send(request(4, "execute", echo))
            assert len((await peer.answer(4))[-1]["stdout"]) == 10_000


async def test_busy_clients_make_no_room(tmp_path: Path) -> None:
    """If all channels are in use, a further client is refused with the reason."""
    gone = tmp_path / "gone"
    wait = {"command": f"until [ -e {gone} ]; do sleep 0.02; done", "shell": True}
    async with serving(Limits(connections=2)) as served:
        for i in range(4):
            async with raw_client(served.port, name=i.to_bytes(16, "big")) as peer:
                peer.send(request(1, "execute", wait))
                await until_async(lambda i=i: served.running == i + 1)  # type: ignore[misc]
        async with channel_to(served.port, seconds=0.1) as channel:
            with pytest.raises(ConnectionLostError, match="too many clients"):
                await channel.call("is_alive", {})
        gone.touch()
        await until_async(lambda: served.running == 0)
        async with channel_to(served.port) as channel:
            await channel.call("is_alive", {})


# Restarts


@pytest.mark.parametrize("wire", ["msgpack", "json"])
async def test_killed(family: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wire: Any) -> None:
    """What was under way does not run on the next server of the port and names the restart; what comes later works."""
    monkeypatch.setattr(http, "_PAUSES", [1.5] * 10)
    ran = tmp_path / "ran"
    with server_process(tmp_path / "log1") as first:
        runtime = RemoteRuntime(host=first.url, auth_token=KEY, wire=wire)
        await runtime.create_session(CreateBashSessionRequest(startup_timeout=20))

        async def stream() -> None:
            async for _ in runtime.stream_in_session(BashAction(command="while sleep 0.05; do date; done", timeout=60)):
                pass

        write = WriteFileRequest(path="/dev/full", content="x" * 9_000_000)
        calls: list[Awaitable[Any]] = [runtime.execute(Command(**count(ran, 30))) for _ in range(10)]
        begun = asyncio.gather(*calls, stream(), runtime.write_file(write), return_exceptions=True)
        await until_async(lambda: ran.exists() and len(ran.read_text()) == 20)
        first.terminate(signal.SIGKILL)
        channel = runtime._frames._shared if wire == "msgpack" else None
        await until_async(lambda: channel is None or channel._connection is None)
        late = asyncio.create_task(runtime.execute(Command(command=["true"])))
    with server_process(tmp_path / "log2", "--host", "127.0.0.1", "--port", str(first.port)):
        *answers, written = await asyncio.wait_for(begun, DEADLINE)
        assert {type(answer) for answer in answers} == {ServerRestartedError}, answers
        assert isinstance(written, (ServerRestartedError, OSError))
        assert (await late).exit_code == 0, "it was not sent before"
        for error in (ServerRestartedError, SessionDoesNotExistError):
            with pytest.raises(error):
                await runtime.run_in_session(BashAction(command="true", timeout=10))
        await runtime.create_session(CreateBashSessionRequest(startup_timeout=20))
        assert (await runtime.run_in_session(BashAction(command="echo y", timeout=10))).output == "y\n"
        await runtime.close()
    assert len(ran.read_text()) == 20


async def test_shut_down_while_a_client_comes_back(family: Family) -> None:
    """Its call does not fail as cancelled, because the client cannot know whether the request was executed."""
    async with serving(session=True) as served:
        async with channel_to(served.port, seconds=0.3) as channel:
            call = asyncio.create_task(channel.call("execute", {"command": "sleep 20", "shell": True}))
            await until_async(lambda: served.running == 1)
            channel.address = Address(port=1)
            await served.registry.shutdown()
            await until_async(lambda: served.running == 0)
            channel.address = Address(port=served.port, headers={"X-API-Key": KEY})
            with pytest.raises(ConnectionLostError, match="shuts down"):
                await asyncio.wait_for(call, 30)


async def test_a_second_cancellation_does_not_interrupt_the_cleanup(served: Served) -> None:
    """A GOODBYE cancels all calls, also one that was cancelled before and still ends its program."""
    ends, ended = asyncio.Event(), asyncio.Event()

    async def read_file(request: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await ends.wait()
            ended.set()

    served.place.runtime.read_file = read_file
    async with raw_client(served.port) as peer:
        peer.send(request(1, "read_file", {"path": "x"}), request(2))
        await peer.answer(2)
        peer.send([CANCEL, 1], request(3))
        await peer.answer(3)
        peer.send([GOODBYE, ""])
        await peer.ended()
    ends.set()
    await until_async(lambda: served.service.in_flight == 0)
    assert ended.is_set()


async def test_requests_that_never_become_whole_are_limited() -> None:
    async with serving(Limits(requests=8)) as served, raw_client(served.port) as peer:
        for number in range(1, 21):
            peer.send(request(number, "execute", 100))
        assert (await peer.answer(20))[-1]["class_path"].endswith(ServerLimitError.__name__)
        assert served.running <= 9


async def test_a_client_that_reads_no_answers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "long").write_text("x" * (1 << 20))
    async with serving(Limits(result_bytes=4 << 20)) as served, raw_client(served.port) as peer:
        kinds = []
        for number in range(1, 21):  # it reads what comes, and never gives credit
            peer.send(request(number, "read_file", {"path": str(tmp_path / "long")}))
            kinds.append((await peer.answer(number))[0])
        assert kinds[0] == RESULT and kinds[-1] == ERROR
        assert served.registry.service.requests.kept_bytes < 6 << 20
        peer.send(request(21))
        assert (await peer.answer(21))[0] == RESULT


async def test_an_open_call_does_not_keep_the_streams_after_it(served: Served) -> None:
    async with channel_to(served.port) as channel:
        open_call = asyncio.create_task(channel.call("execute", {"command": ["sleep", "1000"], "timeout": None}))
        await until_async(lambda: served.calls == 1)
        for _ in range(3):
            _ = [item async for item in channel.stream("stream_in_session", bash("echo hi"))]
        async with contextlib.aclosing(channel.stream("stream_in_session", bash("echo hi; sleep 1000"))) as stream:
            await anext(stream)
        await until_async(lambda: served.calls == 1)
        await cancel(open_call)


# The table of requests


async def test_it_goes_on_when_the_first_has_gone_away() -> None:
    once = RequestTable(Limits())
    calls, ends = [], asyncio.Event()

    async def work() -> Response:
        calls.append(1)
        await ends.wait()
        return Response(b"result")

    first, second = (asyncio.create_task(once.run("a", work)) for _ in range(2))
    await settle()
    await cancel(first)
    ends.set()
    assert (await second).body == (await once.run("a", work)).body == b"result"
    assert len(calls) == 1


async def test_cancellations_take_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_module, "_MOST_LOST", 100)
    once = RequestTable(Limits())
    for i in range(1000):
        await once.cancel(str(i))
    assert len(once._requests) == 0 and len(once._lost) <= 101
    late = RequestTable(Limits(result_seconds=0.0))
    for i in range(1000):
        await late.cancel(str(i))
    assert len(late._lost) <= 1


async def test_the_end_of_what_is_cancelled_is_not_cancelled() -> None:
    """A second cancellation, as of a repeated request, waits for the same end."""
    once = RequestTable(Limits())
    ends, ended = asyncio.Event(), []

    async def work() -> Response:
        try:
            await asyncio.sleep(60)
        finally:
            await ends.wait()
            ended.append(1)

    waiting = asyncio.create_task(once.run("a", work))
    await settle()
    both = [asyncio.create_task(once.cancel("a")) for _ in range(2)]
    await settle()
    assert not any(each.done() for each in both)
    ends.set()
    await asyncio.gather(*both)
    assert ended == [1]
    with pytest.raises(ResultLostError, match="cancelled"):
        await waiting
