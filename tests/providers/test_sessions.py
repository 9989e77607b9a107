"""Sessions in real sandboxes, beside what the contracts ask: odd images, and what becomes of them when one ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import subprocess
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from swerex_c.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    InvalidInputError,
    NotSupportedError,
    SandboxLostError,
    SessionDiedError,
)
from swerex_c.runtime.abstract import BashAction, Command, CommandResponse
from swerex_c.runtime.sandbox import SandboxRuntime
from swerex_c.sandbox import processes
from swerex_c.sandbox.backend import Backend
from swerex_c.sandbox.sandbox import Sandbox
from swerex_c.utils import background
from tests.support.docker_engine import Engine
from tests.support.sandboxes import DockerPlace
from tests.support.targets import DEADLINE, Session
from tests.support.wait import settle, until, until_async


@contextlib.asynccontextmanager
async def session_in(backend: Backend) -> AsyncIterator[Session]:
    """A session that is not created, of a runtime of its own."""
    runtime = SandboxRuntime(backend)
    try:
        yield Session(runtime, "default")
    finally:
        await runtime.close()


def place_of(session: Session) -> Sandbox:
    assert isinstance(session.runtime, SandboxRuntime)
    return session.runtime.sandbox


def living(place: Sandbox, words: str) -> int:
    """How many processes of the place have these words in their command line; zombies do not count."""
    count = """n=0
    for p in /proc/[1-9]*; do
        w=()
        { mapfile -d '' -t w <"$p/cmdline"; } 2>/dev/null
        [[ "${w[*]}" == *"$1"* && $p != /proc/$$ && $p != /proc/$BASHPID ]] && ((n += 1))
    done
    echo $n"""
    return int(background.run_blocking(place.run(count, words, timeout=DEADLINE)).stdout)


_LONG = "".join(f"{i:07} ü\t!\n" for i in range(3000))
_READ = "while IFS= read -r line; do echo \"<$line>\"; done <<'E'\none $x\n\ttwo !y\n\nE\nfalse | true"

ONLY_BASH = [
    ("echo hi; (exit 4)", "hi\n", 4),
    ("echo $?", "4\n", 0),
    (_READ, "<one $x>\n<\ttwo !y>\n<>\n", 0),
    ('echo "${PIPESTATUS[@]}"', "1 0\n", 0),
    (f"t='{_LONG}'; printf %s \"$t\"", _LONG, 0),
    (f"printf %s {'x' * 30000}", "x" * 30000, 0),
    ("printf '\\r\\n\\r.\\n'", "\r\n\r.\n", 0),
    *(
        step
        for prompt in ("PS1='(venv) '", "eval 'PS1=$ PS2=x'", "unset PS0 PS1", "PROMPT_COMMAND='PS1=mine'")
        for step in ((prompt, "", 0), ("echo lives", "lives\n", 0))
    ),
    ("unset PROMPT_COMMAND[0]", "", 0),
]


async def test_where_there_is_only_bash(docker_place: DockerPlace, bash_only: str) -> None:
    """There is no stty: the terminal echoes and makes "\\r\\n" all the time."""
    async with session_in(docker_place(bash_only)) as session:
        await session.create()
        for command, output, code in ONLY_BASH:
            said = await session.run(command)
            assert (said.output, said.exit_code) == (output, code), command[:200]
        with pytest.raises(BashIncorrectSyntaxError):
            await session.run("echo (")
        with pytest.raises(CommandTimeoutError) as late:
            await session.run("echo part; while :; do :; done", timeout=0.5)
        assert late.value.output == "part\n"
        await session.interrupt()
        assert (await session.run("echo $? next")).output == "130 next\n"
        with pytest.raises(CommandTimeoutError):
            await session.run('read -r line; echo "read $line"', timeout=0.3)
        assert (await session.run("a line", is_interactive_command=True)).output == "read a line"
        assert (await session.run("echo one; echo two; read -t 5 x", expect=["two\n$", "one\ntwo\n"])).expect_string
        await session.interrupt()
        pieces = session.runtime.stream_in_session(BashAction(command="for i in {1..5}; do echo $i; done"))
        assert "".join([piece async for piece in pieces if isinstance(piece, str)]) == "1\n2\n3\n4\n5\n"
        await session.run(
            "(while :; do read -t 1; done) <> <(:) & (trap '' INT TERM; while :; do read -t 1; done <> <(:)) &"
        )
        await session.close()
        await asyncio.to_thread(until, lambda: living(place_of(session), "--noediting -i") == 0)


async def test_commands_where_there_is_only_bash(docker_place: DockerPlace, bash_only: str) -> None:
    async with session_in(docker_place(bash_only)) as session:

        async def sh(command: str | list[str], **fields: Any) -> CommandResponse:
            return await session.runtime.execute(Command(command=command, shell=isinstance(command, str), **fields))

        for count in range(3):
            answer = await sh(f"echo {count} $0; echo err >&2; exit {count}")
            assert (answer.stdout, answer.stderr, answer.exit_code) == (f"{count} /bin/sh\n", "err\n", count)
        assert (await sh(["bash", "-c", 'printf %s "$A"'], env={"A": "x y", "PATH": "/bin"})).stdout == "x y"
        with pytest.raises(InvalidInputError, match="'a.b' cannot be set in container .*, which has no program env"):
            await sh(["bash", "-c", ":"], env={"a.b": "", "PATH": "/bin"})
        with pytest.raises(CommandTimeoutError):
            await sh("while :; do :; done", timeout=0.3)
        assert (await sh("(while :; do echo noise; done) & echo mine")).stdout.startswith(("mine\n", "noise\n"))
        assert (await sh("echo next")).stdout == "next\n"


async def test_without_bash(docker_place: DockerPlace, ash_min: str) -> None:
    async with session_in(docker_place(ash_min)) as session:
        words = r"(?s)There is no bash in container \w+.*executable file not found"
        with pytest.raises(NotSupportedError, match=words):
            await session.create()


async def test_a_benchmark_image(docker_place: DockerPlace, swebench: str, swebench_user: str) -> None:
    for image, user in ((swebench, "0"), (swebench_user, "1001")):
        async with session_in(docker_place(image)) as session:
            assert "Welcome to this image!" in await session.create(startup_source=["~/.bashrc"])
            said = await session.run(
                'id -u; pwd; echo "$ODD_VALUE|$CONDA_DEFAULT_ENV"; type python; ulimit -n >/dev/null'
            )
            path = "/opt/conda/envs/testbed/bin/python"
            assert said.output == f"{user}\n/testbed\na 'b' \"c\" \\ d|testbed\npython is {path}\n"
            long = "".join(f"{i:07} ü\t'!\n" for i in range(7000))
            assert (await session.run(f"cat <<'E'\n{long}E")).output == long
            with pytest.raises(CommandTimeoutError, match="startup files"):
                await Session(session.runtime).create(startup_timeout=0.5, startup_source=["/dev/stdin"])
            assert list(session.runtime.sessions) == ["default"]  # type: ignore[attr-defined]
            assert living(place_of(session), "--noediting -i") == 1


@pytest.mark.parametrize("end", [("kill",), ("stop", "-t", "0"), ("rm", "-f"), ("restart", "-t", "0")])
async def test_a_container_ends(docker: Engine, docker_place: DockerPlace, bash_min: str, end: tuple[str, ...]) -> None:
    backend = docker_place(bash_min)
    async with session_in(backend) as session:
        await session.create()
        idle = Session(session.runtime)
        await idle.create()
        running = asyncio.ensure_future(session.run("sleep 1000"))
        waiting = asyncio.ensure_future(session.run("echo never"))
        await asyncio.to_thread(until, lambda: living(place_of(session), "sleep 1000"))
        docker.docker(*end, backend.container)
        for said in (running, waiting, idle.run("true")):
            with pytest.raises(SandboxLostError, match="container"):
                await asyncio.wait_for(said, DEADLINE)
        if end[0] != "restart":
            alive = await session.runtime.is_alive(timeout=DEADLINE)
            assert not alive.is_alive and "container" in alive.message
        for _ in range(2):
            with pytest.raises(SandboxLostError, match="container.*restarted" if end[0] == "restart" else "container"):
                await Session(session.runtime).create()
            with pytest.raises(SandboxLostError, match="container"):
                await session.runtime.execute(Command(command="true", shell=True))
        await session.close()


async def test_a_container_that_runs_again_before_its_end_is_seen(
    docker: Engine, docker_place: DockerPlace, bash_min: str
) -> None:
    backend = docker_place(bash_min)
    async with session_in(backend) as session:
        command = asyncio.ensure_future(session.runtime.execute(Command(command=["sleep", "1000"])))
        await asyncio.to_thread(until, lambda: living(place_of(session), "sleep 1000"))
        again = threading.Event()

        async def keep_the_loop_busy() -> None:
            again.wait()

        background.spawn(keep_the_loop_busy())
        try:
            docker.docker("restart", "-t", "0", backend.container)
        finally:
            again.set()
        with pytest.raises(SandboxLostError, match="container.*restarted"):
            await asyncio.wait_for(command, DEADLINE)


async def test_a_container_pauses(docker: Engine, docker_place: DockerPlace, bash_min: str) -> None:
    backend = docker_place(bash_min)
    async with session_in(backend) as session:
        await session.create()
        shells = place_of(session)._shells
        # An engine that pauses a container in which it is starting something may hang.
        await until_async(lambda: shells._idle and all(it.settled for it in shells._idle))
        docker.docker("pause", backend.container)
        try:
            with pytest.raises(CommandTimeoutError):
                await session.run("echo thawed", timeout=0.3)
            with pytest.raises((CommandTimeoutError, SandboxLostError)):
                await session.runtime.execute(Command(command="echo thawed", shell=True, timeout=0.3))
            alive = await session.runtime.is_alive(timeout=DEADLINE)
            assert not alive.is_alive and "paused" in alive.message
        finally:
            docker.docker("unpause", backend.container)
        assert (await session.run("echo next")).output == "next\n"
        assert (await session.runtime.execute(Command(command="echo next", shell=True))).stdout == "next\n"


async def test_a_client_is_killed(docker_place: DockerPlace, bash_min: str) -> None:
    """What the shell or its command did not say is not told as theirs, and nothing of the session goes on."""
    async with session_in(docker_place(bash_min)) as session:
        await session.create()
        running = asyncio.ensure_future(session.run("sleep 1001"))
        await asyncio.to_thread(until, lambda: living(place_of(session), "sleep 1001"))
        os.kill(session.runtime.sessions["default"].pid, signal.SIGKILL)  # type: ignore[attr-defined]
        with pytest.raises(SessionDiedError, match="client") as dead:
            await asyncio.wait_for(running, DEADLINE)
        assert dead.value.exit_code is None
        await asyncio.to_thread(until, lambda: living(place_of(session), "--noediting -i") == 0)
        assert living(place_of(session), "sleep 1001") == 0
        with pytest.raises(SessionDiedError, match="client"):
            await session.run("true")
        await session.close()
        await session.create()
        assert (await session.run("kill -9 $$", check="silent")).exit_code == 137  # this one is the shell's


@pytest.mark.parametrize("lives", [False, True])
async def test_a_start_is_given_up(docker_place: DockerPlace, bash_min: str, lives: bool) -> None:
    """Before its shell lives, and then."""
    async with session_in(docker_place(bash_min)) as session:
        place = place_of(session)
        await session.runtime.execute(Command(command=["true"]))
        starting = asyncio.ensure_future(session.create())
        await settle()
        if lives:
            await asyncio.to_thread(until, lambda: starting.done() or living(place, "--noediting -i"))
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
            await session.close()
        await asyncio.to_thread(until, lambda: living(place, "--noediting -i") == 0)


# ---- the scripts


STORM = """import os, sys, time
end = time.monotonic() + 60
while time.monotonic() < end:
    if sys.argv[1] == "chain":
        if os.fork():
            os._exit(0)
        os.setsid()
    elif os.fork() == 0:
        time.sleep(60)
    else:
        time.sleep(0.002)
"""


async def test_storms_and_other_users(docker_place: DockerPlace, debian_py: str) -> None:
    async with session_in(docker_place(debian_py, "--pids-limit", "200")) as session:
        place, mark = place_of(session), processes.new_mark(processes.new_mark())
        await session.create()
        await session.run(f"printf %s {shlex.quote(STORM)} >/tmp/storm.py")
        await session.run("(unset SWEREX_C_MARK; exec sleep 1003) & disown")
        for what in (
            "python3 /tmp/storm.py chain",
            "python3 /tmp/storm.py many",
            "su nobody -s /bin/sh -c 'sleep 1004'",
        ):
            await session.run(f"(export SWEREX_C_MARK={mark}; ulimit -m unlimited; {what} &)")
            await asyncio.to_thread(until, lambda: living(place, "storm.py") or living(place, "sleep 1004"))
            ending = place.run(processes.END_MARKED, mark, "20", timeout=DEADLINE)
            left = (await background.run(ending)).stdout.split()
            assert left[0] == b"0" and int(left[1]) > 0, what
            assert living(place, "storm.py") + living(place, "sleep 1004") == 0, what
        assert living(place, "sleep 1003") == 1


def test_this_machine_is_not_hit(tmp_path: Path) -> None:
    """Nothing without the mark gets a signal, whatever its number or its name is."""
    runtime = processes.new_mark()
    marks = [processes.new_mark(runtime), processes.new_mark(runtime), processes.new_mark()]
    script = processes.TAG_LIMITS + "sleep 600; :"
    started = [subprocess.Popen(["bash", "-c", script], env={**os.environ, processes.MARK: mark}) for mark in marks]
    try:
        argv = ["bash", "--noprofile", "--norc", "-c", processes.END_MARKED, "bash"]
        subprocess.run([*argv, marks[0], "30"], check=True, timeout=DEADLINE, stdout=subprocess.DEVNULL)
        assert [each.poll() for each in started] == [-9, None, None]
        subprocess.run([*argv, runtime, "30"], check=True, timeout=DEADLINE, stdout=subprocess.DEVNULL)
        assert started[1].wait(DEADLINE) == -9 and started[2].poll() is None
        assert subprocess.run([*argv, "", "30"], check=False, timeout=DEADLINE).returncode == 2
    finally:
        for each in started:
            each.kill()
            each.wait()
