"""Limits of a server: concurrent requests, memory, and connections without a key."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from swerex_c.exceptions import ServerLimitError
from swerex_c.remote.wire.protocol import ERROR
from swerex_c.runtime.abstract import Command, CommandResponse
from swerex_c.runtime.remote import RemoteRuntime
from tests.support.frames_tools import long_request, raw_client
from tests.support.harness import in_thread
from tests.support.processes import cpu_seconds, memory_of
from tests.support.server_process import KEY, REMOTE, Server, open_files, serving, upgrade
from tests.support.session import Session
from tests.support.wait import DEADLINE, until, until_async


@pytest.mark.parametrize("wire", ["msgpack", "json"])
async def test_limits_hold_for_concurrent_requests(tmp_path: Path, wire: Any) -> None:
    """Sessions and requests."""
    end = tmp_path / "end"
    wait = Command(command=f"until [ -e {end} ]; do sleep 0.05; done", shell=True)
    with serving(tmp_path / "log", "--max-sessions", "2", "--max-requests", "12") as server:
        async with RemoteRuntime(auth_token=KEY, host=server.url, timeout=DEADLINE, wire=wire) as runtime:
            sessions = [Session(runtime) for _ in range(12)]
            answers: list[Any] = await asyncio.gather(*(it.create() for it in sessions), return_exceptions=True)
            assert Counter(map(type, answers)) == {str: 2, ServerLimitError: 10}
            made = [it for it, answer in zip(sessions, answers, strict=True) if isinstance(answer, str)]
            await made[0].close()
            await Session(runtime).create()
            with pytest.raises(ServerLimitError):
                await Session(runtime).create()

            calls = [asyncio.create_task(runtime.execute(wait)) for _ in range(20)]
            await until_async(lambda: sum(call.done() for call in calls) == 8)
            end.touch()
            answers = await asyncio.gather(*calls, return_exceptions=True)
            assert Counter(map(type, answers)) == {CommandResponse: 12, ServerLimitError: 8}
            assert (await runtime.execute(Command(command=["true"]))).exit_code == 0


# Memory that a peer decides


BAD: dict[str, tuple[str, Callable[[int], Any]]] = {
    "a list of numbers": ("execute", lambda n: {"command": [0] * n}),
    "a list of lists": ("execute", lambda n: {"command": [[]] * n}),
    "an object of numbers": ("execute", lambda n: {"command": "x", "env": {str(i): 0 for i in range(n // 2)}}),
    "a long name": ("execute", lambda n: {"command": "x", "env": {"x" * 3 * n: 0}}),
    "a long tag": ("run_in_session", lambda n: {"action_type": "x" * 3 * n, "command": "x"}),
    "a long number": ("execute", lambda n: {"command": "x", "timeout": "x" * 3 * n}),
    "no object": ("execute", lambda n: [0] * n),
}
"""Methods, and what they do not take, of a size."""


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("patient") / "log") as server:
        server.get("/is_alive")
        yield server


@pytest.mark.idle
@pytest.mark.parametrize("wire", ["frames", "json"])
@pytest.mark.parametrize("bad", BAD)
async def test_an_invalid_request_is_refused_in_few_words(patient: Server, bad: str, wire: str) -> None:
    method, make = BAD[bad]
    payload = make(1_300_000 if wire == "json" else 190_000)  # frames have at most 200,000 members
    before, used = memory_of(patient.process.pid, "VmHWM"), cpu_seconds(patient.process.pid)
    if wire == "json":
        answer = patient.client.post(f"{patient.url}/{method}", json=payload, timeout=60)
        assert answer.status_code == 422 and len(answer.content) < 5000
    else:
        async with raw_client(patient.port, key=KEY, name=os.urandom(16)) as peer:
            peer.send(*long_request(1, method, payload))
            kind, *_, error = await peer.answer(1)
            assert kind == ERROR and error["class_path"] == "swerex.exceptions.InvalidInputError"
            assert "is not valid" in error["message"] and len(str(error)) < 20_000
    assert cpu_seconds(patient.process.pid) - used < 3
    assert memory_of(patient.process.pid, "VmHWM") - before < 120 << 20


@pytest.mark.slow
def test_the_text_of_a_file_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("x" * (32 << 20))
    with serving(tmp_path / "log") as server:
        server.get("/is_alive")
        before = memory_of(server.process.pid)
        for i in range(6):
            server.client.headers["X-Request-ID"] = str(i)
            answer = server.post("/read_file", path=str(tmp_path / "f"))
            assert len(answer.json()["content"]) == 32 << 20
        until(lambda: memory_of(server.process.pid) - before < 96 << 20)


# Connections without the key


@contextlib.contextmanager
def flood(server: Server, count: int) -> Iterator[None]:
    """Hold many connections, and make each again that is cut."""

    def connect() -> socket.socket:
        return socket.create_connection(("127.0.0.1", server.port))

    def hold(over: threading.Event) -> None:
        while not over.wait(0.1):
            for i, wire in enumerate(wires):
                wire.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    try:
                        cut = wire.recv(1) == b""
                    except ConnectionError:
                        cut = True
                    if cut:
                        wire.close()
                        wires[i] = connect()

    wires = [connect() for _ in range(count)]
    try:
        with in_thread(hold):
            yield
    finally:
        for wire in wires:
            wire.close()


@pytest.mark.idle
@pytest.mark.slow
@pytest.mark.parametrize("descriptors", [256, 1024])
def test_with_a_key_one_gets_through_a_flood(tmp_path: Path, descriptors: int) -> None:
    few = ["bash", "-c", f'ulimit -n {descriptors}; exec "$@"', "bash", *REMOTE]
    with serving(tmp_path / "log", command=few) as server:
        before = cpu_seconds(server.process.pid)
        with flood(server, 700):
            for _ in range(3):
                with requests.Session() as one:
                    one.trust_env = False
                    answer = one.get(server.url + "/is_alive", headers={"X-API-Key": KEY}, timeout=DEADLINE)
                    assert answer.status_code == 200
            # One that is in stays in, and has descriptors for what it asks for.
            assert server.post("/create_session", session_type="bash", startup_timeout=30).status_code == 200
            ran = server.post("/run_in_session", action_type="bash", command="echo on")
            assert ran.json()["output"].strip() == "on"
            assert server.post("/execute", command="echo on", shell=True).json()["stdout"] == "on\n"
            assert open_files(server.process.pid) <= min(descriptors - 30, 256 + 60)
        assert server.get("/is_alive").status_code == 200
        assert cpu_seconds(server.process.pid) - before < 5
        said = server.said().splitlines()
        assert len([line for line in said if "Too many connections" in line]) == 1 and len(said) < 10
        until(lambda: open_files(server.process.pid) < 60)


def test_connections_with_the_key_leave_descriptors(tmp_path: Path) -> None:
    """Further connections with the key are refused with an error."""
    few = ["bash", "-c", 'ulimit -n 256; exec "$@"', "bash", *REMOTE]
    with serving(tmp_path / "log", command=few) as server, contextlib.ExitStack() as stack:
        assert server.post("/create_session", session_type="bash", startup_timeout=30).status_code == 200
        statuses = []
        for _ in range(300):
            wire = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=20))
            wire.sendall(upgrade(key=KEY))
            statuses.append(wire.recv(65536)[9:12])
        assert statuses[:100] == [b"101"] * 100
        assert statuses[-50:].count(b"511") >= 48  # the session rests after a second, and then has two files less
        assert server.post("/execute", command="echo on", shell=True).json()["stdout"] == "on\n"
        ran = server.post("/run_in_session", action_type="bash", command="echo on")
        assert ran.json()["output"].strip() == "on"
