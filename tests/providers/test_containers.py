"""Test commands and sessions in containers beyond the contracts: odd images, hostile programs, lost containers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import subprocess
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
    ResourceError,
    SandboxLostError,
    SessionDiedError,
)
from swerex_c.runtime.abstract import BashAction, Command, ReadFileRequest, WriteFileRequest
from swerex_c.runtime.sandbox import SandboxRuntime
from swerex_c.sandbox import processes
from swerex_c.sandbox.sandbox import Sandbox
from swerex_c.utils import background
from tests.support.docker_engine import Engine
from tests.support.sandboxes import StartBackend
from tests.support.targets import DEADLINE, Session, Target
from tests.support.wait import settle, until, until_async

Contained = Callable[..., Awaitable[tuple[Target, Session]]]


@pytest.fixture
async def contained(docker_backend: StartBackend) -> AsyncIterator[Contained]:
    """`await contained(image, *arguments)` gives a target, named by the container's id, and a session to create."""
    opened: list[Target] = []

    async def start(image: str, *arguments: str) -> tuple[Target, Session]:
        backend = await asyncio.to_thread(docker_backend, image, *arguments)
        opened.append(Target(backend.container, SandboxRuntime(backend), "/tmp"))
        return opened[-1], Session(opened[-1].runtime, "default")

    yield start
    for target in opened:
        await target.runtime.close()


def sandbox_of(target: Target) -> Sandbox:
    assert isinstance(target.runtime, SandboxRuntime)
    return target.runtime.sandbox


def living(target: Target, words: str) -> int:
    """Count the processes of the container, without zombies, that have these words in their command line."""
    count = """n=0
    for p in /proc/[1-9]*; do
        w=()
        { mapfile -d '' -t w <"$p/cmdline"; } 2>/dev/null
        [[ "${w[*]}" == *"$1"* && $p != /proc/$$ && $p != /proc/$BASHPID ]] && ((n += 1))
    done
    echo $n"""
    return int(background.run_blocking(sandbox_of(target).run(count, words, timeout=DEADLINE)).stdout)


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


async def test_where_there_is_only_bash(contained: Contained, bash_only: str) -> None:
    """There is no stty, so the terminal echoes and sends "\\r\\n"."""
    target, session = await contained(bash_only)
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
    await asyncio.to_thread(until, lambda: living(target, "--noediting -i") == 0)


async def test_commands_where_there_is_only_bash(contained: Contained, bash_only: str) -> None:
    """bash stands in for /bin/sh."""
    target, _ = await contained(bash_only)
    for count in range(3):
        answer = await target.execute(f"echo {count} $0; echo err >&2; exit {count}")
        assert (answer.stdout, answer.stderr, answer.exit_code) == (f"{count} /bin/sh\n", "err\n", count)
    assert await target.says(["bash", "-c", 'printf %s "$A"'], env={"A": "x y", "PATH": "/bin"}) == "x y"
    with pytest.raises(InvalidInputError, match="'a.b' cannot be set in container .*, which has no program env"):
        await target.execute(["bash", "-c", ":"], env={"a.b": "", "PATH": "/bin"})


async def test_without_bash(contained: Contained, ash_min: str) -> None:
    _, session = await contained(ash_min)
    words = r"(?s)There is no bash in container \w+.*executable file not found"
    with pytest.raises(NotSupportedError, match=words):
        await session.create()


async def test_a_benchmark_image(contained: Contained, swebench: str) -> None:
    target, session = await contained(swebench)
    assert "Welcome to this image!" in await session.create(startup_source=["~/.bashrc"])
    said = await session.run('id -u; pwd; echo "$ODD_VALUE|$CONDA_DEFAULT_ENV"; type python; ulimit -n >/dev/null')
    path = "/opt/conda/envs/testbed/bin/python"
    assert said.output == f"1001\n/testbed\na 'b' \"c\" \\ d|testbed\npython is {path}\n"
    long = "".join(f"{i:07} ü\t'!\n" for i in range(7000))
    assert (await session.run(f"cat <<'E'\n{long}E")).output == long
    with pytest.raises(CommandTimeoutError, match="startup files"):
        await Session(session.runtime).create(startup_timeout=0.5, startup_source=["/dev/stdin"])
    assert list(session.runtime.sessions) == ["default"]  # type: ignore[attr-defined]
    assert living(target, "--noediting -i") == 1


@pytest.mark.parametrize("end", [("kill",), ("stop", "-t", "0"), ("rm", "-f"), ("restart", "-t", "0")])
async def test_a_container_ends(docker: Engine, contained: Contained, bash_min: str, end: tuple[str, ...]) -> None:
    target, session = await contained(bash_min)
    await session.create()
    idle = Session(session.runtime)
    await idle.create()
    running = asyncio.ensure_future(session.run("sleep 1000"))
    waiting = asyncio.ensure_future(session.run("echo never"))
    await asyncio.to_thread(until, lambda: living(target, "sleep 1000"))
    docker.docker(*end, target.name)
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
    docker: Engine, contained: Contained, bash_min: str
) -> None:
    target, session = await contained(bash_min)
    command = asyncio.ensure_future(session.runtime.execute(Command(command=["sleep", "1000"])))
    await asyncio.to_thread(until, lambda: living(target, "sleep 1000"))
    again = threading.Event()

    async def keep_the_loop_busy() -> None:
        again.wait()

    background.spawn(keep_the_loop_busy())
    try:
        docker.docker("restart", "-t", "0", target.name)
    finally:
        again.set()
    with pytest.raises(SandboxLostError, match="container.*restarted"):
        await asyncio.wait_for(command, DEADLINE)


async def test_a_container_pauses(docker: Engine, contained: Contained, bash_min: str) -> None:
    target, session = await contained(bash_min)
    await session.create()
    shells = sandbox_of(target)._shells
    # An engine that pauses a container in which it is starting something may hang.
    await until_async(lambda: shells._idle and all(it.settled for it in shells._idle))
    docker.docker("pause", target.name)
    try:
        with pytest.raises(CommandTimeoutError):
            await session.run("echo thawed", timeout=0.3)
        with pytest.raises((CommandTimeoutError, SandboxLostError)):
            await session.runtime.execute(Command(command="echo thawed", shell=True, timeout=0.3))
        alive = await session.runtime.is_alive(timeout=DEADLINE)
        assert not alive.is_alive and "paused" in alive.message
    finally:
        docker.docker("unpause", target.name)
    assert (await session.run("echo next")).output == "next\n"
    assert (await session.runtime.execute(Command(command="echo next", shell=True))).stdout == "next\n"


async def test_a_client_is_killed(contained: Contained, bash_min: str) -> None:
    """Its exit code is not reported as the command's, and everything in the session ends."""
    target, session = await contained(bash_min)
    await session.create()
    running = asyncio.ensure_future(session.run("sleep 1001"))
    await asyncio.to_thread(until, lambda: living(target, "sleep 1001"))
    os.kill(session.runtime.sessions["default"].core.facts()["pid"], signal.SIGKILL)  # type: ignore[attr-defined]
    with pytest.raises(SessionDiedError, match="client") as dead:
        await asyncio.wait_for(running, DEADLINE)
    assert dead.value.exit_code is None
    await asyncio.to_thread(until, lambda: living(target, "--noediting -i") == 0)
    assert living(target, "sleep 1001") == 0
    with pytest.raises(SessionDiedError, match="client"):
        await session.run("true")
    await session.close()
    await session.create()
    assert (await session.run("kill -9 $$", check="silent")).exit_code == 137  # this one is the shell's


@pytest.mark.parametrize("lives", [False, True])
async def test_a_start_is_given_up(contained: Contained, bash_min: str, lives: bool) -> None:
    """The start is cancelled before or after its shell runs."""
    target, session = await contained(bash_min)
    await session.runtime.execute(Command(command=["true"]))
    starting = asyncio.ensure_future(session.create())
    await settle()
    if lives:
        await asyncio.to_thread(until, lambda: starting.done() or living(target, "--noediting -i"))
    starting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await starting
        await session.close()
    await asyncio.to_thread(until, lambda: living(target, "--noediting -i") == 0)


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


async def test_storms_and_other_users(contained: Contained, debian_py: str) -> None:
    target, session = await contained(debian_py, "--pids-limit", "200")
    sandbox, mark = sandbox_of(target), processes.new_mark(processes.new_mark())
    await session.create()
    await session.run(f"printf %s {shlex.quote(STORM)} >/tmp/storm.py")
    await session.run("(unset SWEREX_C_MARK; exec sleep 1003) & disown")
    for what in ("python3 /tmp/storm.py chain", "python3 /tmp/storm.py many", "su nobody -s /bin/sh -c 'sleep 1004'"):
        await session.run(f"(export SWEREX_C_MARK={mark}; ulimit -m unlimited; {what} &)")
        await asyncio.to_thread(until, lambda: living(target, "storm.py") or living(target, "sleep 1004"))
        ending = sandbox.run(processes.END_MARKED, mark, timeout=DEADLINE)
        left = (await background.run(ending)).stdout.splitlines()[-1].split()
        assert left[0] == b"0" and int(left[1]) > 0, what
        assert living(target, "storm.py") + living(target, "sleep 1004") == 0, what
    assert living(target, "sleep 1003") == 1


def test_this_machine_is_not_hit(tmp_path: Path) -> None:
    """Processes without the mark get no signal."""
    runtime = processes.new_mark()
    marks = [processes.new_mark(runtime), processes.new_mark(runtime), processes.new_mark()]
    script = processes.TAG_LIMITS + "sleep 600; :"
    started = [subprocess.Popen(["bash", "-c", script], env={**os.environ, processes.MARK: mark}) for mark in marks]
    try:
        argv = ["bash", "--noprofile", "--norc", "-c", processes.END_MARKED, "bash"]
        subprocess.run([*argv, marks[0]], check=True, timeout=DEADLINE, stdout=subprocess.DEVNULL)
        assert [each.poll() for each in started] == [-9, None, None]
        subprocess.run([*argv, runtime], check=True, timeout=DEADLINE, stdout=subprocess.DEVNULL)
        assert started[1].wait(DEADLINE) == -9 and started[2].poll() is None
        assert subprocess.run([*argv, ""], check=False, timeout=DEADLINE).returncode == 2
    finally:
        for each in started:
            each.kill()
            each.wait()


# ---- programs that do what nobody should


async def says(target: Target, command: str, **fields: Any) -> tuple[int | None, str, str]:
    answer = await target.execute(command, **fields)
    return answer.exit_code, answer.stdout, answer.stderr


async def many(target: Target, count: int) -> None:
    """Run commands at once, and check that each gets its own answer."""
    answers = await asyncio.gather(*(says(target, f"echo {n}; echo e{n} >&2; exit {n}") for n in range(count)))
    assert answers == [(n, f"{n}\n", f"e{n}\n") for n in range(count)]


ODD = {
    "POSIXLY_CORRECT": "1",
    "LC_ALL": "xx_YY.UTF-8",
    "SHELLOPTS": "errexit:noexec:noglob:nounset:posix:xtrace",
    "BASHOPTS": "extdebug:failglob",
    "BASH_ENV": "/etc/passwd",
    "ENV": "/etc/passwd",
    "PS4": "$(echo swx-ps4)",
    "IFS": "swx_0123456789",
    "BASH_FUNC_printf%%": "() { echo fake; }",
    "BASH_FUNC_kill%%": "() { echo fake; }",
    "BASH_COMPAT": "4.2",
    "BASH_XTRACEFD": "1",
    "SECONDS": "5000",
    "FUNCNEST": "1",
    "TMOUT": "1",
    "CDPATH": "/",
    "GLOBIGNORE": "*",
    "EXECIGNORE": "*",
    "swx_out": "1",
}


@pytest.mark.parametrize("user", ["root", "4242:4242"])
async def test_an_odd_environment_changes_no_answer(contained: Contained, debian_py: str, user: str) -> None:
    variables = [word for name, value in ODD.items() for word in ("-e", f"{name}={value}")]
    talk, session = await contained(debian_py, "-u", user, *variables)
    for code in (0, 3, 137, 145, 255):
        assert await says(talk, f"echo out; echo err >&2; exit {code}") == (code, "out\n", "err\n")
    for number in (2, 9, 15, 17, 34):
        assert (await says(talk, f"kill -{number} $$; exit 5"))[0] == (5 if number == 17 else -number)
    seen = (await talk.execute(["env"])).stdout.splitlines()
    for name in ("POSIXLY_CORRECT", "LC_ALL", "BASH_ENV", "ENV", "FUNCNEST", "TMOUT"):
        assert f"{name}={ODD[name]}" in seen
    with pytest.raises(FileNotFoundError):
        await talk.execute(["no-such-program"])
    await says(talk, r"printf '#!/no/such/thing\n' >/tmp/odd; chmod +x /tmp/odd")
    with pytest.raises(FileNotFoundError):
        await talk.execute(["/tmp/odd"])
    with pytest.raises(CommandTimeoutError):
        await says(talk, "setsid sleep 8100042 & exec sleep 8100041", timeout=0.5)
    await talk.runtime.write_file(WriteFileRequest(path="/tmp/swx/a/b", content="text\n"))
    assert (await talk.runtime.read_file(ReadFileRequest(path="/tmp/swx/a/b"))).content == "text\n"
    await session.create()
    await session.gives("echo in; (exit 4)", "in\n", 4)
    await talk.execute(["sleep", "1.5"])  # a shell with that TMOUT ends itself when nobody says anything for a second
    await session.gives("echo $?", "4\n")
    assert "81000" not in (await says(talk, "ps -eo args | grep '[s]leep 81000'"))[1], "what was overdue has ended"


async def test_a_cat_that_does_not_copy(contained: Contained, docker: Engine, debian_py: str) -> None:
    fake, _ = await contained(debian_py)
    script = r"mv /bin/cat /bin/dog; printf '#!/bin/sh\nexec tr a-z A-Z\n' >/bin/cat; chmod +x /bin/cat"
    await asyncio.to_thread(docker.docker, "exec", fake.name, "sh", "-c", script)
    await many(fake, 3)
    await many(fake, 3)


async def test_what_stops_its_shell_leaves_nothing(contained: Contained, debian_py: str) -> None:
    talk, _ = await contained(debian_py)
    for _ in range(2):
        with pytest.raises(CommandTimeoutError):
            await says(talk, "kill -STOP $PPID; exec sleep 8200041", timeout=0.3)

    async def nothing_is_left() -> bool:
        return (await says(talk, "ps -eo stat,args | grep '^[Tt]\\|[s]leep 82000'"))[1] == ""

    await until_async(nothing_is_left)
    for number in ("TERM", "KILL"):
        with pytest.raises(ResourceError, match="has ended while the command ran"):
            await says(talk, f"kill -{number} $PPID; sleep 0.1")
    assert await says(talk, "kill -CHLD $PPID; kill -CONT $PPID; kill -TSTP $PPID; echo on; exit 3") == (3, "on\n", "")


async def test_few_descriptors(contained: Contained, debian_py: str) -> None:
    talk, _ = await contained(debian_py, "--ulimit", "nofile=20:20")
    await says(talk, "(while :; do echo late; echo late >&2; done) & echo mine")
    for number in range(4):
        assert await says(talk, f"echo {number}; echo e >&2; exit {number}") == (number, f"{number}\n", "e\n")
    with pytest.raises(CommandTimeoutError):
        await says(talk, "exec sleep 8300041", timeout=0.3)
    await many(talk, 4)


async def test_calls_that_are_cancelled_at_any_moment(contained: Contained, debian_py: str) -> None:
    """Later calls get their own answers, and no descriptors are left."""
    talk, session = await contained(debian_py)
    runtime = talk.runtime
    await session.create()

    async def one(number: int) -> None:
        if number % 3 == 0:
            said = await says(talk, f"echo {number}; exit {number}")
            assert said == (number, f"{number}\n", "")
        elif number % 3 == 1:
            await session.gives(f"echo {number}; (exit {number})", f"{number}\n", number)
        else:
            path, text = f"/tmp/swx{number}", f"{number}\n" * 1000
            await runtime.write_file(WriteFileRequest(path=path, content=text))
            assert (await runtime.read_file(ReadFileRequest(path=path))).content == text

    await asyncio.gather(*map(one, range(20)))
    before = len(os.listdir("/proc/self/fd"))
    for number in range(24):
        task = asyncio.create_task(one(number))
        await asyncio.sleep(number * 0.001)  # any moment of a call
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await one(24 + number)
    await asyncio.gather(*map(one, range(20)))
    await until_async(lambda: len(os.listdir("/proc/self/fd")) <= before + 9)  # three shells more may be kept


async def test_two_runtimes_in_one_container(contained: Contained, debian_py: str) -> None:
    """Each of them ends only its own processes."""
    talk, _ = await contained(debian_py)
    other = Target(talk.name, SandboxRuntime(sandbox_of(talk).backend), talk.root)
    for one in (talk, other):
        session = Session(one.runtime, "default")
        await session.create()
        await session.run("sleep 8400041 & sleep 8400042 & :")
        await says(one, "setsid sleep 8400043 >/dev/null 2>&1 & env -i sleep 8400044 >/dev/null 2>&1 & :")
    busy = asyncio.create_task(says(talk, "sleep 1; echo still; exit 6"))
    limit = asyncio.get_running_loop().time() + DEADLINE
    while (count := (await says(talk, "pgrep -fc '^sleep 84000'"))[1]) != "8\n":
        assert asyncio.get_running_loop().time() < limit, count
    with pytest.raises(CommandTimeoutError):
        await says(other, "sleep 8400045", timeout=0.2)
    await other.runtime.close()
    assert await busy == (6, "still\n", "")
    assert (await says(talk, "pgrep -fc '^sleep 84000'"))[1] == "4\n"
    assert "killed" in (await Session(talk.runtime, "default").run("kill %1 && echo killed")).output
