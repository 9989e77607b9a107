"""Programs and places that do what nobody should, by accident or not: answers are right, or an error says why not."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from swerex_c.exceptions import CommandTimeoutError, ResourceError
from swerex_c.runtime.abstract import (
    Command,
    CommandResponse,
    ReadFileRequest,
    WriteFileRequest,
)
from swerex_c.runtime.sandbox import SandboxRuntime
from swerex_c.sandbox.backend import Backend
from swerex_c.sandbox.session import SandboxSession
from tests.support.docker_engine import Engine
from tests.support.sandboxes import DockerPlace
from tests.support.targets import Session
from tests.support.wait import DEADLINE, until_async

Open = Callable[..., Awaitable["Talk"]]


class Talk:
    """A runtime in a container, in few words."""

    def __init__(self, backend: Backend) -> None:
        self.runtime = SandboxRuntime(backend)
        self.container: str = getattr(backend, "container", "")

    async def run(self, command: str | list[str], **fields: Any) -> CommandResponse:
        fields.setdefault("timeout", DEADLINE)
        return await self.runtime.execute(Command(command=command, shell=isinstance(command, str), **fields))

    async def sh(self, command: str, **fields: Any) -> tuple[int | None, str, str]:
        answer = await self.run(command, **fields)
        return answer.exit_code, answer.stdout, answer.stderr

    async def many(self, count: int) -> None:
        """So many at once, each of which has to have its own answer."""
        answers = await asyncio.gather(*(self.sh(f"echo {n}; echo e{n} >&2; exit {n}") for n in range(count)))
        assert answers == [(n, f"{n}\n", f"e{n}\n") for n in range(count)]


@pytest.fixture
async def attacked(docker_place: DockerPlace) -> AsyncIterator[Open]:
    """`await attacked(image, *arguments of docker run)` is a runtime in a container of its own."""
    opened: list[Talk] = []

    async def start(image: str, *arguments: str) -> Talk:
        opened.append(Talk(await asyncio.to_thread(docker_place, image, *arguments)))
        return opened[-1]

    yield start
    for talk in opened:
        await talk.runtime.close()


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
async def test_an_odd_environment_changes_no_answer(attacked: Open, debian_py: str, user: str) -> None:
    variables = [word for name, value in ODD.items() for word in ("-e", f"{name}={value}")]
    talk = await attacked(debian_py, "-u", user, *variables)
    for code in (0, 3, 137, 145, 255):
        assert await talk.sh(f"echo out; echo err >&2; exit {code}") == (code, "out\n", "err\n")
    for number in (2, 9, 15, 17, 34):
        assert (await talk.sh(f"kill -{number} $$; exit 5"))[0] == (5 if number == 17 else -number)
    seen = (await talk.run(["env"])).stdout.splitlines()
    for name in ("POSIXLY_CORRECT", "LC_ALL", "BASH_ENV", "ENV", "FUNCNEST", "TMOUT"):
        assert f"{name}={ODD[name]}" in seen
    with pytest.raises(FileNotFoundError):
        await talk.run(["no-such-program"])
    await talk.sh(r"printf '#!/no/such/thing\n' >/tmp/odd; chmod +x /tmp/odd")
    with pytest.raises(FileNotFoundError):
        await talk.run(["/tmp/odd"])
    with pytest.raises(CommandTimeoutError):
        await talk.sh("setsid sleep 8100042 & exec sleep 8100041", timeout=0.5)
    await talk.runtime.write_file(WriteFileRequest(path="/tmp/swx/a/b", content="text\n"))
    assert (await talk.runtime.read_file(ReadFileRequest(path="/tmp/swx/a/b"))).content == "text\n"
    session = Session(talk.runtime)
    await session.create()
    await session.gives("echo in; (exit 4)", "in\n", 4)
    await talk.run(["sleep", "1.5"])  # a shell with that TMOUT ends itself when nobody says anything for a second
    await session.gives("echo $?", "4\n")
    assert "81000" not in (await talk.sh("ps -eo args | grep '[s]leep 81000'"))[1], "what was overdue has ended"


async def test_a_cat_that_does_not_copy(attacked: Open, docker: Engine, debian_py: str) -> None:
    fake = await attacked(debian_py)
    script = r"mv /bin/cat /bin/dog; printf '#!/bin/sh\nexec tr a-z A-Z\n' >/bin/cat; chmod +x /bin/cat"
    await asyncio.to_thread(docker.docker, "exec", fake.container, "sh", "-c", script)
    await fake.many(3)
    await fake.many(3)


async def test_what_stops_its_shell_leaves_nothing(attacked: Open, debian_py: str) -> None:
    talk = await attacked(debian_py)
    for _ in range(2):
        with pytest.raises(CommandTimeoutError):
            await talk.sh("kill -STOP $PPID; exec sleep 8200041", timeout=0.3)

    async def nothing_is_left() -> bool:
        return (await talk.sh("ps -eo stat,args | grep '^[Tt]\\|[s]leep 82000'"))[1] == ""

    await until_async(nothing_is_left)
    killed = [talk.sh(f"kill -{signal} $PPID; sleep 0.1") for signal in ("TERM", "KILL")]
    for error in await asyncio.gather(*killed, return_exceptions=True):
        assert isinstance(error, ResourceError), error
        assert "has ended while the command ran" in str(error)
    assert await talk.sh("kill -CHLD $PPID; kill -CONT $PPID; kill -TSTP $PPID; echo on; exit 3") == (3, "on\n", "")


async def test_few_descriptors(attacked: Open, debian_py: str) -> None:
    talk = await attacked(debian_py, "--ulimit", "nofile=20:20")
    await talk.sh("(while :; do echo late; echo late >&2; done) & echo mine")
    for number in range(4):
        assert await talk.sh(f"echo {number}; echo e >&2; exit {number}") == (number, f"{number}\n", "e\n")
    with pytest.raises(CommandTimeoutError):
        await talk.sh("exec sleep 8300041", timeout=0.3)
    await talk.many(4)


async def test_writers_that_are_left_are_not_heard(attacked: Open, debian_py: str) -> None:
    """By whoever comes next: not what is in a full pipe, and not through the pipes of the shell above them."""
    talk = await attacked(debian_py)
    answer = await talk.run("(while :; do echo noise; echo noise >&2; done) & (exec yes) & echo mine; exit 4")
    assert answer.exit_code == 4
    assert "mine\n" in answer.stdout
    assert set(answer.stdout) <= set("mine noise y\n")
    await talk.many(12)
    unblocked = (
        "import os\nfor fd in 0, 1, 2: os.set_blocking(fd, False)\nfor fd in 1, 2:\n while True:\n"
        "  try: os.write(fd, b'x' * 70000)\n  except BlockingIOError: break\nos._exit(5)"
    )
    full = await talk.run(["python3", "-c", unblocked])
    assert full.exit_code == 5
    assert set(full.stdout + full.stderr) == {"x"}
    await talk.many(12)
    with pytest.raises(CommandTimeoutError):
        await talk.sh("yes 0123456789abcdef", timeout=0.3)
    counted = await talk.run(["head", "-c", "30000001", "/dev/zero"])
    assert (len(counted.stdout), counted.exit_code) == (30_000_001, 0)
    await talk.many(12)


async def test_calls_that_are_cancelled_at_any_moment(attacked: Open, debian_py: str) -> None:
    """The next ones have their own answers, and neither files nor threads nor processes are left of them."""
    talk = await attacked(debian_py)
    runtime, session = talk.runtime, Session(talk.runtime)
    await session.create()

    async def one(number: int) -> None:
        if number % 3 == 0:
            said = await talk.sh(f"echo {number}; exit {number}")
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


async def test_two_runtimes_in_one_container(attacked: Open, debian_py: str) -> None:
    """Neither ends what is the other's, nor what is nobody's."""
    talk = await attacked(debian_py)
    other = Talk(talk.runtime.sandbox.backend)
    for one in (talk, other):
        session = Session(one.runtime, "default")
        await session.create()
        await session.run("sleep 8400041 & sleep 8400042 & :")
        await one.sh("setsid sleep 8400043 >/dev/null 2>&1 & env -i sleep 8400044 >/dev/null 2>&1 & :")
    busy = asyncio.create_task(talk.sh("sleep 1; echo still; exit 6"))
    limit = asyncio.get_running_loop().time() + DEADLINE
    while (count := (await talk.sh("pgrep -fc '^sleep 84000'"))[1]) != "8\n":
        assert asyncio.get_running_loop().time() < limit, count
    with pytest.raises(CommandTimeoutError):
        await other.sh("sleep 8400045", timeout=0.2)
    await other.runtime.close()
    assert await busy == (6, "still\n", "")
    assert (await talk.sh("pgrep -fc '^sleep 84000'"))[1] == "4\n"
    assert "killed" in (await Session(talk.runtime, "default").run("kill %1 && echo killed")).output


@pytest.mark.parametrize("image", ["bash_min", "debian_py"])
async def test_a_shell_whose_standard_error_goes_elsewhere(
    attacked: Open, image: str, request: pytest.FixtureRequest
) -> None:
    """Its prompts go there too."""
    session = Session((await attacked(request.getfixturevalue(image))).runtime)
    await session.create()
    for command, output, code in [
        ("false | true | false", "", 1),
        ("echo $? ${PIPESTATUS[@]}; exec 2>/tmp/errors", "1 1 0 1\n", 0),
        ("echo out; echo gone >&2; (exit 3)", "out\n", 3),
        ("echo $?", "3\n", 0),
        ("cat /tmp/errors", "gone\n", 0),
        ("f() {\necho deep\nreturn 5\n}\nf", "deep\n", 5),
        ("exec 3>&1 >/tmp/log 2>&1", "", 0),
        ("echo hidden", "", 0),
        ("exec 1>&3 2>&1", "", 0),
        ("cat /tmp/log; no-such-program-x || echo $?", "hidden\nbash: no-such-program-x: command not found\n127\n", 0),
    ]:
        await session.gives(command, output, code)


PROMPTS_GONE = [
    ". /tmp/swx-redirects; (exit 7)",
    "readonly PS1='mine> '; (exit 7)",
    "unset PROMPT_COMMAND PS0 PS1; (exit 7)",
    "unset PROMPT_COMMAND; readonly PS0=x PS1='mine> ' PS2=y; (exit 7)",
]


@pytest.mark.parametrize("command", PROMPTS_GONE)
@pytest.mark.parametrize("image", ["bash_min", "debian_py"])
async def test_a_shell_whose_prompts_are_gone(
    attacked: Open, image: str, command: str, request: pytest.FixtureRequest
) -> None:
    """It is seen at its prompt from within, and heard again then; nothing of its prompts is taken for output."""
    talk = await attacked(request.getfixturevalue(image))
    await talk.sh("echo 'echo begun; exec 2>/tmp/errors' >/tmp/swx-redirects; echo PS1=later >/tmp/swx-activate")
    session = Session(talk.runtime)
    await session.create()
    shell = talk.runtime.sessions[session.name]
    assert isinstance(shell, SandboxSession)
    await until_async(lambda: shell._prompt is not None)  # it is learned beside
    if not shell._prompt:
        pytest.skip("this machine lacks a /proc/PID/syscall that can be read in its containers")
    await session.gives(command, "begun\n" if "redirects" in command else "", 7)
    for command, output, code in [
        ("echo $? ${PIPESTATUS[@]}", "7 7\n", 0),
        ("true | false", "", 1),
        ("echo $? ${PIPESTATUS[@]}; (exit 3)", "1 0 1\n", 3),
        ("exec 2>&1; . /tmp/swx-activate 2>/dev/null; :", "", 0),
        ("echo a", "a\n", 0),
        ("echo b; (exit 5)", "b\n", 5),
        ("cat /dev/null; echo $?", "0\n", 0),
    ]:
        await session.gives(command, output, code)


async def test_what_reads_is_not_taken_for_the_prompt(attacked: Open, debian_py: str) -> None:
    """Nothing is ever typed to a command, however long it waits."""
    session = Session((await attacked(debian_py)).runtime)
    await session.create()
    for waits in ("read -r -t 4 x", "read -r -e -t 4 x", "head -n 1", "wait", "sleep 4"):
        with pytest.raises(CommandTimeoutError) as late:
            await session.run(f'sleep 4 & {waits}; echo "<$x>"', timeout=3)
        assert "7733" not in late.value.output and "printf" not in late.value.output, waits
        await session.interrupt(timeout=2, n_retry=5)
        assert (await session.run("echo next")).output.endswith("next\n"), waits
