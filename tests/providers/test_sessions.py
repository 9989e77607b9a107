"""Sessions in real sandboxes: what they do every day, and what becomes of them when a sandbox ends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from swerex_c.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    InvalidInputError,
    NotSupportedError,
    RuntimeClosedError,
    SandboxLostError,
    SessionDiedError,
    SwerexException,
)
from swerex_c.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    BashObservation,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
)
from swerex_c.runtime.sandbox import SandboxRuntime
from swerex_c.sandbox import processes
from swerex_c.sandbox.backend import Backend
from swerex_c.sandbox.sandbox import Sandbox
from swerex_c.sandbox.session import SandboxSession
from swerex_c.utils import background
from tests.support import needs
from tests.support.docker_engine import Engine
from tests.support.wait import until

MINUTE = 60.0
"""No bound of this file is about speed."""


class Talk:
    """A runtime, in few words."""

    def __init__(self, backend: Backend) -> None:
        self.runtime = SandboxRuntime(backend)

    async def create(self, name: str = "default", **request: Any) -> str:
        request = {"startup_timeout": MINUTE, **request}
        return (await self.runtime.create_session(CreateBashSessionRequest(session=name, **request))).output

    async def say(self, command: str, name: str = "default", **action: Any) -> BashObservation:
        action = {"timeout": MINUTE, "check": "silent", **action}
        said = await self.runtime.run_in_session(BashAction(session=name, command=command, **action))
        assert isinstance(said, BashObservation)
        return said

    async def interrupt(self, name: str = "default", **action: Any) -> BashObservation:
        action = {"timeout": 2, "n_retry": 5, **action}
        said = await self.runtime.run_in_session(BashInterruptAction(session=name, **action))
        assert isinstance(said, BashObservation)
        return said

    async def close(self, name: str = "default") -> None:
        await self.runtime.close_session(CloseBashSessionRequest(session=name))

    def session(self, name: str = "default") -> SandboxSession:
        found = self.runtime.sessions[name]
        assert isinstance(found, SandboxSession)
        return found


@contextlib.asynccontextmanager
async def talk_in(backend: Backend) -> AsyncIterator[Talk]:
    talk = Talk(backend)
    try:
        yield talk
    finally:
        await talk.runtime.close()


def living(place: Sandbox, words: str) -> int:
    """How many processes of the place have these words in their command line; zombies do not count."""
    count = """n=0
    for p in /proc/[1-9]*; do
        w=()
        { mapfile -d '' -t w <"$p/cmdline"; } 2>/dev/null
        [[ "${w[*]}" == *"$1"* && $p != /proc/$$ && $p != /proc/$BASHPID ]] && ((n += 1))
    done
    echo $n"""
    return int(background.run_blocking(place.run(count, words, timeout=MINUTE)).stdout)


# ---- in every kind of place


async def test_a_short_command_sets_no_timer(place: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    call_later, timers = loop.call_later, []

    def note(*arguments: Any) -> asyncio.TimerHandle:
        timers.append(arguments)
        return call_later(*arguments)

    async with talk_in(place) as talk:
        await talk.create()
        monkeypatch.setattr(loop, "call_later", note)
        for _ in range(500):  # on a busy machine few are short
            timers.clear()
            assert (await talk.say("true")).exit_code == 0
            if not timers:
                return
        pytest.fail("each of 500 commands has set a timer")


async def test_everything_ends_with_its_session(place: Backend) -> None:
    """Also what left its group, its session, its parents and its environment, and nothing of another session."""
    token = f"{os.getpid()}0{threading.get_native_id()}"
    async with talk_in(place) as talk:
        await talk.create()
        await talk.create("other")
        await talk.say(f"sleep 7{token} & setsid sleep 7{token} & (setsid sleep 7{token} &); disown -a")
        await talk.say(f"env -i sleep 7{token} & (env -i setsid sleep 7{token} &); trap '' HUP TERM INT")
        await talk.say(f"bash -c 'exec -a \"a ) R 1 1 (\" sleep 7{token}' & (while :; do sleep 7{token}; done &)")
        await talk.say("f() { f & }; f")  # who always has a successor already when it is found
        await talk.say(f"sleep 8{token} &", "other")
        runtime = talk.runtime.sandbox
        await asyncio.to_thread(until, lambda: living(runtime, f"sleep 7{token}") >= 5)
        await talk.close()
        assert needs.mentioning(f"sleep\0007{token}") == []
        assert living(runtime, f"7{token}") == 0
        assert living(runtime, f"8{token}") == 1
        said = await talk.say("kill -0 $! && echo lives", "other")
        assert said.output == "lives\n"


# ---- containers


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


async def test_where_there_is_only_bash(docker_place: Callable[..., Backend], bash_only: str) -> None:
    """There is no stty: the terminal echoes and makes "\\r\\n" all the time."""
    async with talk_in(docker_place(bash_only)) as talk:
        await talk.create()
        for command, output, code in ONLY_BASH:
            said = await talk.say(command)
            assert (said.output, said.exit_code) == (output, code), command[:200]
        with pytest.raises(BashIncorrectSyntaxError):
            await talk.say("echo (")
        with pytest.raises(CommandTimeoutError) as late:
            await talk.say("echo part; while :; do :; done", timeout=0.5)
        assert late.value.output == "part\n"
        await talk.interrupt()
        assert (await talk.say("echo $? next")).output == "130 next\n"
        with pytest.raises(CommandTimeoutError):
            await talk.say('read -r line; echo "read $line"', timeout=0.3)
        assert (await talk.say("a line", is_interactive_command=True)).output == "read a line"
        assert (await talk.say("echo one; echo two; read -t 5 x", expect=["two\n$", "one\ntwo\n"])).expect_string
        await talk.interrupt()
        pieces = talk.runtime.stream_in_session(BashAction(command="for i in {1..5}; do echo $i; done"))
        assert "".join([piece async for piece in pieces if isinstance(piece, str)]) == "1\n2\n3\n4\n5\n"
        await talk.say(
            "(while :; do read -t 1; done) <> <(:) & (trap '' INT TERM; while :; do read -t 1; done <> <(:)) &"
        )
        await talk.close()
        await asyncio.to_thread(until, lambda: living(talk.runtime.sandbox, "--noediting -i") == 0)


async def test_without_bash(docker_place: Callable[..., Backend], ash_min: str) -> None:
    async with talk_in(docker_place(ash_min)) as talk:
        with pytest.raises(NotSupportedError, match=r"There is no bash in container \w+"):
            await talk.create()


async def test_a_benchmark_image(docker_place: Callable[..., Backend], swebench: str, swebench_user: str) -> None:
    for image, user in ((swebench, "0"), (swebench_user, "1001")):
        async with talk_in(docker_place(image)) as talk:
            assert "Welcome to this image!" in await talk.create(startup_source=["~/.bashrc"])
            said = await talk.say('id -u; pwd; echo "$ODD_VALUE|$CONDA_DEFAULT_ENV"; type python; ulimit -n >/dev/null')
            path = "/opt/conda/envs/testbed/bin/python"
            assert said.output == f"{user}\n/testbed\na 'b' \"c\" \\ d|testbed\npython is {path}\n"
            long = "".join(f"{i:07} ü\t'!\n" for i in range(7000))
            assert (await talk.say(f"cat <<'E'\n{long}E")).output == long
            for request, message in (
                ({"cwd": "/no/such"}, "The directory '/no/such'"),
                ({"startup_source": ["/no such"]}, "The startup file '/no such'"),
            ):
                with pytest.raises(InvalidInputError, match=message):
                    await talk.create("other", **request)
            with pytest.raises(CommandTimeoutError, match="startup files"):
                await talk.create("other", startup_timeout=0.5, startup_source=["/dev/stdin"])
            assert list(talk.runtime.sessions) == ["default"]
            assert living(talk.runtime.sandbox, "--noediting -i") == 1


@pytest.mark.parametrize("end", [("kill",), ("stop", "-t", "0"), ("rm", "-f"), ("restart", "-t", "0")])
async def test_a_container_ends(
    docker: Engine, docker_place: Callable[..., Any], bash_min: str, end: tuple[str, ...]
) -> None:
    backend = docker_place(bash_min)
    async with talk_in(backend) as talk:
        await talk.create()
        await talk.create("idle")
        running = asyncio.ensure_future(talk.say("sleep 1000"))
        waiting = asyncio.ensure_future(talk.say("echo never"))
        await asyncio.to_thread(until, lambda: living(talk.runtime.sandbox, "sleep 1000"))
        docker.docker(*end, backend.container)
        for said in (running, waiting, talk.say("true", "idle")):
            with pytest.raises(SandboxLostError, match="container"):
                await asyncio.wait_for(said, MINUTE)
        if end[0] != "restart":
            alive = await talk.runtime.is_alive(timeout=MINUTE)
            assert not alive.is_alive and "container" in alive.message
        for _ in range(2):
            with pytest.raises(SandboxLostError, match="container.*restarted" if end[0] == "restart" else "container"):
                await talk.create("new")
            with pytest.raises(SandboxLostError, match="container"):
                await talk.runtime.execute(Command(command="true", shell=True))
        await talk.close()


async def test_a_container_pauses(docker: Engine, docker_place: Callable[..., Any], bash_min: str) -> None:
    backend = docker_place(bash_min)
    async with talk_in(backend) as talk:
        await talk.create()
        docker.docker("pause", backend.container)
        try:
            with pytest.raises(CommandTimeoutError):
                await talk.say("echo thawed", timeout=0.3)
            alive = await talk.runtime.is_alive(timeout=MINUTE)
            assert not alive.is_alive and "paused" in alive.message
        finally:
            docker.docker("unpause", backend.container)
        assert (await talk.say("echo next")).output == "next\n"


async def test_a_client_is_killed(docker_place: Callable[..., Backend], bash_min: str) -> None:
    """What the shell or its command did not say is not told as theirs, and nothing of the session goes on."""
    async with talk_in(docker_place(bash_min)) as talk:
        await talk.create()
        running = asyncio.ensure_future(talk.say("sleep 1001"))
        await asyncio.to_thread(until, lambda: living(talk.runtime.sandbox, "sleep 1001"))
        os.kill(talk.session().pid, signal.SIGKILL)
        with pytest.raises(SessionDiedError, match="client") as dead:
            await asyncio.wait_for(running, MINUTE)
        assert dead.value.exit_code is None
        await asyncio.to_thread(until, lambda: living(talk.runtime.sandbox, "--noediting -i") == 0)
        assert living(talk.runtime.sandbox, "sleep 1001") == 0
        with pytest.raises(SessionDiedError, match="client"):
            await talk.say("true")
        await talk.close()
        await talk.create()
        assert (await talk.say("kill -9 $$", check="silent")).exit_code == 137  # this one is the shell's


async def test_a_start_is_given_up(docker_place: Callable[..., Backend], bash_min: str) -> None:
    async with talk_in(docker_place(bash_min)) as talk:
        await talk.runtime.open()
        for seconds in (0.0, 0.03, 0.1, 0.2):
            task = asyncio.ensure_future(talk.create())
            await asyncio.sleep(seconds)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            with contextlib.suppress(SwerexException):
                await talk.close()
        await asyncio.to_thread(until, lambda: living(talk.runtime.sandbox, "--noediting -i") == 0)


READERS = (
    "echo up; cat",
    "echo up; read -r x",
    "echo up; cat | cat",
    "bash -c 'echo up; cat; echo more'",
    "bash -c 'exec 3<&0; read -r x <&3 & echo up; exec sleep 50'",
    "python3 -c 'print(\"up\", flush=True); input()'",
    'python3 -c \'import subprocess; print("up", flush=True); subprocess.run(["cat"])\'',
)


async def test_what_follows_an_interrupt(docker_place: Callable[..., Backend], debian_py: str) -> None:
    """No letter of the next command goes to a program that read when it was interrupted."""
    async with talk_in(docker_place(debian_py)) as talk:
        await talk.create()
        for turn in range(2):
            for number, reader in enumerate(READERS):
                await talk.say(reader, expect=["up\n"], check="ignore")
                await asyncio.sleep(0.02 * turn)
                await talk.interrupt(timeout=5)
                said = await talk.say(f"echo after {number}")
                assert (said.output, said.exit_code) == (f"after {number}\n", 0), reader


async def test_many_at_once(docker_place: Callable[..., Backend], bash_min: str) -> None:
    async with talk_in(docker_place(bash_min)) as talk:

        async def one(number: int) -> None:
            name = f"s{number}"
            await talk.create(name)
            for i in range(10):
                assert (await talk.say(f"echo {number}.{i}; (exit {i})", name)).exit_code == i
            if number % 2:
                await talk.close(name)

        await asyncio.gather(*(one(number) for number in range(20)))
        place = talk.runtime.sandbox
        assert living(place, "--noediting -i") == 10
        await asyncio.wait_for(talk.runtime.close(), MINUTE)
    async with talk_in(place.backend) as talk:
        await talk.runtime.open()
        await asyncio.to_thread(until, lambda: living(talk.runtime.sandbox, "--noediting -i") == 0)


async def test_closing_under_way(docker_place: Callable[..., Backend], bash_min: str) -> None:
    async with talk_in(docker_place(bash_min)) as talk:
        await talk.create()
        running: list[Awaitable[Any]] = [asyncio.ensure_future(talk.say("sleep 1002")) for _ in range(3)]
        await asyncio.to_thread(until, lambda: living(talk.runtime.sandbox, "sleep 1002"))
        await asyncio.gather(talk.runtime.close(), talk.runtime.close())
        for said in running:
            with pytest.raises(RuntimeClosedError):
                await asyncio.wait_for(said, MINUTE)
        with pytest.raises(RuntimeClosedError):
            await talk.create("late")
        assert (await talk.runtime.is_alive()).message == "The runtime was closed"


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


async def test_storms_and_other_users(docker_place: Callable[..., Any], debian_py: str) -> None:
    async with talk_in(docker_place(debian_py, "--pids-limit", "200")) as talk:
        place, mark = talk.runtime.sandbox, processes.new_mark(processes.new_mark())
        await talk.create()
        await talk.say(f"printf %s {shlex.quote(STORM)} >/tmp/storm.py")
        await talk.say("(unset SWEREX_C_MARK; exec sleep 1003) & disown")
        for what in (
            "python3 /tmp/storm.py chain",
            "python3 /tmp/storm.py many",
            "su nobody -s /bin/sh -c 'sleep 1004'",
        ):
            await talk.say(f"(export SWEREX_C_MARK={mark}; ulimit -m unlimited; {what} &)")
            await asyncio.to_thread(until, lambda: living(place, "storm.py") or living(place, "sleep 1004"))
            ending = place.run(processes.END_MARKED, mark, "20", timeout=MINUTE)
            left = (await background.run(ending)).stdout.split()
            assert left[0] == b"0" and int(left[1]) > 0, what
            assert living(place, "storm.py") + living(place, "sleep 1004") == 0, what
        assert living(place, "sleep 1003") == 1


def test_this_machine_is_not_hit(tmp_path: Path) -> None:
    """Nothing without the mark gets a signal, whatever its number or its name is."""
    import subprocess

    runtime = processes.new_mark()
    marks = [processes.new_mark(runtime), processes.new_mark(runtime), processes.new_mark()]
    script = processes.TAG_LIMITS + "sleep 600; :"
    started = [subprocess.Popen(["bash", "-c", script], env={**os.environ, processes.MARK: mark}) for mark in marks]
    try:
        argv = ["bash", "--noprofile", "--norc", "-c", processes.END_MARKED, "bash"]
        subprocess.run([*argv, marks[0], "30"], check=True, timeout=MINUTE, stdout=subprocess.DEVNULL)
        assert [each.poll() for each in started] == [-9, None, None]
        subprocess.run([*argv, runtime, "30"], check=True, timeout=MINUTE, stdout=subprocess.DEVNULL)
        assert started[1].wait(MINUTE) == -9 and started[2].poll() is None
        assert subprocess.run([*argv, "", "30"], check=False, timeout=MINUTE).returncode == 2
    finally:
        for each in started:
            each.kill()
            each.wait()
