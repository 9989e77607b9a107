"""Client and server on two hosts with a slow and lossy line between them."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server_process import environment

pytestmark = pytest.mark.slow

LOSSY_LINK = Path(__file__).parents[1] / "support" / "lossy_link.py"
KEY = "two-hosts"
DELAY = 0.02

CLIENT = """
import asyncio, hashlib, json, sys, time
from swerex_c.runtime.abstract import *
from swerex_c.runtime.remote import RemoteRuntime

async def main(wire, log, source, target):
    runtime = RemoteRuntime(host="http://10.77.0.2", port=8000, auth_token="two-hosts", timeout=5.0, wire=wire)
    await runtime.wait_until_alive(timeout=20)
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=20))
    found = {}
    times = []
    for i in range(20):
        begin = time.monotonic()
        answer = await runtime.run_in_session(BashAction(command=f"echo {i} >>{log}; echo {i}", timeout=30))
        times.append(time.monotonic() - begin)
        assert answer.output == f"{i}\\n", answer
    found["fastest"] = min(times)
    await asyncio.gather(*(runtime.execute(Command(command=f"echo {i} >>{log}", shell=True)) for i in range(20, 60)))
    answer = await runtime.run_in_session(BashAction(command="seq 200000", timeout=60))
    found["output"] = hashlib.sha256(answer.output.encode()).hexdigest()
    await runtime.upload(UploadRequest(source_path=source, target_path=target))
    if wire != "json":
        action = BashAction(command="seq 1000; sleep 0.1; seq 5", timeout=60)
        pieces = [x async for x in runtime.stream_in_session(action)]
        found["stream"] = "".join(pieces[:-1]) == pieces[-1].output
    print("cut", flush=True)   # the test takes the line down during the next command
    answer = await runtime.run_in_session(BashAction(command=f"sleep 2; echo 60 >>{log}; echo late", timeout=60))
    found["late"] = answer.output
    await runtime.close()
    print(json.dumps(found), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


def _missing() -> str | None:
    if os.geteuid() != 0:
        return "making network namespaces needs root"
    if shutil.which("ip") is None:
        return "needs the program ip (package iproute2)"
    name = f"swx-{secrets.token_hex(4)}"
    try:
        with open("/dev/net/tun", "rb"):
            pass
        subprocess.run(["ip", "netns", "add", name], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces or TUN devices cannot be made here: {error}"
    subprocess.run(["ip", "netns", "delete", name], check=True)
    return None


class Hosts:
    """Two namespaces and the line between them."""

    def __init__(self, loss: float):
        self.names = [f"swx-{secrets.token_hex(4)}" for _ in range(2)]
        for name in self.names:
            subprocess.run(["ip", "netns", "add", name], check=True)
        arguments = [*self.names, str(DELAY), str(loss), "7"]
        self.line = subprocess.Popen(
            [sys.executable, str(LOSSY_LINK), *arguments], stdin=-1, stdout=-1, text=True
        )
        assert self.line.stdout is not None and self.line.stdout.readline() == "up\n"

    def say(self, word: str) -> None:
        assert self.line.stdin is not None
        self.line.stdin.write(word + "\n")
        self.line.stdin.flush()

    def start(self, host: int, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[host], *command],
            stdout=-1, stderr=subprocess.DEVNULL, text=True, env=environment(SWE_REX_LOG_STREAM_LEVEL="ERROR"),
        )  # fmt: skip

    def close(self) -> None:
        self.line.communicate(timeout=10)
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], check=True)


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    missing = _missing()
    if missing:
        pytest.skip(missing)
    made = Hosts(loss=0.02)
    yield made
    made.close()


@pytest.mark.parametrize("wire", ["msgpack", "json"])
def test_a_slow_and_lossy_line(hosts: Hosts, wire: str, tmp_path: Path) -> None:
    log, target = tmp_path / "log", tmp_path / "there"
    source = tmp_path / "here"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "data").write_bytes(os.urandom(700_000))
    command = [sys.executable, "-m", "swerex_c.server", "--host", "10.77.0.2", "--auth-token", KEY]
    server = hosts.start(1, *command)
    client = hosts.start(0, sys.executable, "-c", textwrap.dedent(CLIENT), wire, str(log), str(source), str(target))
    try:
        assert client.stdout is not None
        assert client.stdout.readline() == "cut\n"
        time.sleep(0.5)
        hosts.say("down")
        time.sleep(3.0)  # the command ends meanwhile
        hosts.say("up")
        rest, _ = client.communicate(timeout=60)
        found = json.loads(rest)
    finally:
        client.kill()
        server.terminate()
        server.wait(timeout=20)
    seq = "".join(f"{i}\n" for i in range(1, 200001))
    assert found["output"] == hashlib.sha256(seq.encode()).hexdigest()
    assert found["late"] == "late\n"
    assert found.get("stream", True)
    assert 2 * DELAY <= found["fastest"] < 2 * DELAY + 0.05
    assert sorted(map(int, log.read_text().split())) == list(range(61))  # each once
    assert (target / "deep" / "data").read_bytes() == (source / "deep" / "data").read_bytes()
