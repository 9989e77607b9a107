"""Check an installed package with any Python: sessions, a server by both protocols, a pool that is dropped.

    PYTHON smoke.py

Needs nothing but the package and this machine. Prints a line for each part; the exit status is 0 if all hold.
"""

import asyncio
import os
import re
import select
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from swerex_c.exceptions import CommandTimeoutError
from swerex_c.runtime.abstract import BashInterruptAction, Command, CreateBashSessionRequest
from swerex_c.runtime.local import LocalRuntime
from swerex_c.runtime.remote import RemoteRuntime

DEADLINE = 60

DROPPED = """
import asyncio
from swerex_c.deployment.config import LocalDeploymentConfig
from swerex_c.pool import Pool
from swerex_c.runtime.abstract import CreateBashSessionRequest

async def main():
    pool = Pool(LocalDeploymentConfig(), 2, warm=1)
    await pool.__aenter__()
    lent = pool.environment()
    environment = await lent.__aenter__()
    await environment.runtime.create_session(CreateBashSessionRequest(startup_timeout=60))
    answer = await environment.runtime.run("sleep 1000 & echo pids $$ $!", timeout=60)
    print(answer.output, flush=True)

asyncio.run(main())
"""


async def session(runtime):
    """What an agent needs of a session, whatever is between it and the caller."""

    async def gives(command, output, code=0):
        answer = await runtime.run(command, timeout=DEADLINE, check="silent")
        assert (answer.output, answer.exit_code) == (output, code), (command, answer)

    await runtime.create_session(CreateBashSessionRequest(startup_timeout=DEADLINE))
    await gives("cd /usr && x=42", "")
    await gives("echo $x in $PWD; (exit 3)", "42 in /usr\n", 3)
    await gives("sleep 0.3; echo late", "late\n")  # not answered at once
    await gives("seq 200000 | tail -1", "200000\n")
    try:
        await runtime.run("sleep 1000", timeout=0.5)
    except CommandTimeoutError:
        await runtime.run_in_session(BashInterruptAction())
    else:
        raise AssertionError("sleep 1000 ended")
    await gives("echo again", "again\n")
    words = "sleep 0.3; echo out; echo err >&2; exit 4"
    done = await runtime.execute(Command(command=words, shell=True, timeout=DEADLINE))
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 4), done
    assert (await runtime.is_alive()).is_alive
    await runtime.close()


async def server(wire):
    with tempfile.TemporaryDirectory() as directory:
        socket = os.path.join(directory, "socket")
        command = [sys.executable, "-m", "swerex_c.server", "--auth-token", "key"]
        command += ["--unix", socket] if wire == "msgpack" else ["--host", "127.0.0.1", "--port", "0"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            address = {"host": f"unix://{socket}"} if wire == "msgpack" else {"port": port(process.stderr)}
            runtime = RemoteRuntime(auth_token="key", wire=wire, timeout=DEADLINE, **address)
            await runtime.wait_until_alive(timeout=DEADLINE)
            await session(runtime)
        finally:
            process.terminate()
            process.wait(DEADLINE)


def port(log):
    """Return the port that the server's log names."""
    lines = []
    for line in log:
        lines.append(line)
        if found := re.search(r"http://127\.0\.0\.1:(\d+)\b", line):
            return int(found[1])
    raise AssertionError("".join(lines))


def dropped_pool():
    """Check that a program which ends without closing its pool leaves no process."""
    done = subprocess.run([sys.executable, "-c", DROPPED], capture_output=True, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done
    found = re.search(r"^pids (\d+) (\d+)$", done.stdout, re.MULTILINE)  # among lines of the log
    assert found, done
    for pid in map(int, found.groups()):
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        ready, _, _ = select.select([descriptor], [], [], DEADLINE)
        os.close(descriptor)
        assert ready, f"process {pid} was left: {Path(f'/proc/{pid}/cmdline').read_bytes()}"


def main():
    print(sys.version.split()[0], sys.modules["swerex_c"].__file__)
    for name, part in (
        ("session", lambda: asyncio.run(session(LocalRuntime()))),
        ("server, frames", lambda: asyncio.run(server("msgpack"))),
        ("server, JSON", lambda: asyncio.run(server("json"))),
        ("dropped pool", dropped_pool),
    ):
        begin = time.monotonic()
        part()
        print(f"{name}: right, {time.monotonic() - begin:.1f} s", flush=True)


main()
