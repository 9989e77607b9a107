"""Sessions whose shell is in another place: a BashSession that only says how to reach a bash there."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from swerex_c.engine.session import TRANSPORT_BASH, TRANSPORT_VARIABLES, BashSession
from swerex_c.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    InvalidInputError,
    NonZeroExitCodeError,
    SessionDiedError,
)
from swerex_c.runtime.abstract import BashAction, BashInterruptAction, BashObservation, CreateBashSessionRequest
from tests.support.docker_engine import Engine


class Carried(BashSession):
    """A session behind any argv that is followed by a command, with an environment of its own."""

    def __init__(self, argv: Sequence[str], environment: dict[str, str], **request: Any) -> None:
        super().__init__(CreateBashSessionRequest(**{"startup_timeout": 20, **request}))
        self.argv = list(argv)
        self.variables = {**environment, "TERM": "xterm"}

    def _spawn(self) -> tuple[list[bytes] | None, list[bytes], bytes | None]:
        argv = [os.fsencode(word) for word in self.argv]
        return argv, [os.fsencode(f"{name}={value}") for name, value in self.variables.items()], None

    async def say(self, command: str, **action: Any) -> BashObservation:
        return await self.run(BashAction(command=command, **{"timeout": 20, "check": "silent", **action}))


def docker_exec(docker: Engine, container: str, *bash: str, **request: Any) -> Carried:
    passed = [word for name in TRANSPORT_VARIABLES for word in ("-e", name)]
    argv = ["docker", "exec", "-it", *passed, container, *(bash or TRANSPORT_BASH)]
    return Carried(argv, docker.environment, **request)


async def check_a_day(session: Carried) -> None:
    """What every place has to do the same."""
    said = await session.say("echo 'a  b'; (exit 3)")
    assert (said.output, said.exit_code) == ("a  b\n", 3)
    assert (await session.say("echo $?")).output == "3\n"
    await session.say("cd /; x='a variable'")
    assert (await session.say('pwd; echo "$x"; echo ${PS1:+set} ${PS2-unset}')).output == "/\na variable\nset\n"
    said = await session.say(
        "while IFS= read -r line; do echo \"<$line>\"; done <<'E'\none $x\n\ttwo !y\n\nE\nfalse | true"
    )
    assert said.output == "<one $x>\n<\ttwo !y>\n<>\n"
    assert (await session.say('echo "${PIPESTATUS[@]}"')).output == "1 0\n"
    long = "".join(f"{i:07} ü\t!\n" for i in range(3000))
    assert (await session.say(f"t='{long}'; printf %s \"$t\"")).output == long
    line = "x" * 30000
    assert (await session.say(f"printf %s {line}")).output == line
    assert (await session.say("printf '\\r\\n\\r.\\n'")).output == "\r\n\r.\n"
    with pytest.raises(BashIncorrectSyntaxError):
        await session.say("echo (")
    with pytest.raises(NonZeroExitCodeError, match="exit code 7"):
        await session.say("(exit 7)", check="raise")
    for change in ("PS1='(venv) '", "eval 'PS1=$ PS2=x'", "unset PS0 PS1", "PROMPT_COMMAND='PS1=mine'"):
        await session.say(change)
        assert (await session.say("echo lives")).output == "lives\n"
    await session.say("unset PROMPT_COMMAND[0]")
    with pytest.raises(CommandTimeoutError) as late:
        await session.say("echo part; while :; do :; done", timeout=0.3)
    assert late.value.output == "part\n"
    stopped = await session.run(BashInterruptAction(timeout=1))
    assert stopped.exit_code == 0
    assert (await session.say("echo $? next")).output == "130 next\n"
    with pytest.raises(CommandTimeoutError):
        await session.say('read -r line; echo "read $line"', timeout=0.3)
    said = await session.say("a line", is_interactive_command=True)
    assert said.output == "read a line"
    assert [said.output for said in await asyncio.gather(*(session.say(f"echo {i}") for i in range(20)))] == [
        f"{i}\n" for i in range(20)
    ]


async def test_an_image_with_nothing_but_bash(docker: Engine, bash_only: str, container: Callable[..., str]) -> None:
    """There is no stty: the terminal echoes and makes "\\r\\n" all the time."""
    session = docker_exec(docker, container(bash_only))
    await session.start()
    await check_a_day(session)
    pieces = [piece async for piece in session.stream(BashAction(command="for i in {1..5}; do echo $i; done"))]
    assert "".join(piece for piece in pieces if isinstance(piece, str)) == "1\n2\n3\n4\n5\n"
    said = await session.say("echo one; echo two; read -t 5 x", expect=["two\n$", "one\ntwo\n"], timeout=5)
    assert said.expect_string
    await session.close()


async def test_a_benchmark_image(
    docker: Engine, swebench: str, swebench_user: str, container: Callable[..., str]
) -> None:
    for image, user in ((swebench, "0"), (swebench_user, "1001")):
        session = docker_exec(docker, container(image), startup_source=["~/.bashrc"])
        assert "Welcome to this image!" in (await session.start()).output
        said = await session.say('id -u; pwd; echo "$ODD_VALUE|$EMPTY_VALUE"; type python')
        assert said.output == f"{user}\n/testbed\na 'b' \"c\" \\ d|\npython is /opt/conda/envs/testbed/bin/python\n"
        for before in ("", "set -o vi", "conda activate testbed", "grep -v emacs ~/.bashrc >/tmp/rc; source /tmp/rc"):
            await session.say(before)
            said = await session.say("git status --short; echo $?; (exit 4)")
            assert (said.output, said.exit_code) == ("0\n", 4)
        await session.close()


async def test_the_request_is_seen_to_inside(docker: Engine, bash_min: str, container: Callable[..., str]) -> None:
    name = container(bash_min)
    files = "mkdir -p '/a b' && echo 'echo sourced; y=$x' >'/a b/it' && echo 'echo rc' >~/.bashrc"
    docker.docker("exec", name, "bash", "-c", files)
    value = "line\n'quoted' \"$x\" ü " + "y" * 6000
    session = docker_exec(
        docker, name, cwd="/a b", env={"x": value, "PS1": "no"}, startup_source=["/a b/it", "~/.bashrc"]
    )
    assert (await session.start()).output == "rc\nsourced\nrc\n"
    assert (await session.say('printf %s "$y"; pwd; echo ${OLDPWD-none}')).output == f"{value}/a b\nnone\n"
    assert (await session.say("env", check="ignore")).output.count("PS1=") == 0
    await session.close()
    for request, message in (
        ({"cwd": "/no/such"}, "The directory '/no/such'"),
        ({"startup_source": ["/a b/it", "~/no such"]}, "The startup file '~/no such'"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            await docker_exec(docker, name, **request).start()
    await docker_exec(docker, name, startup_source=["/no/such/.bashrc"]).start()


async def test_programs_that_leave_the_terminal_raw(
    docker: Engine, debian_py: str, container: Callable[..., str]
) -> None:
    session = docker_exec(docker, container(debian_py))
    await session.start()
    modes = (await session.say("stty -a")).output
    leave = "import os, tty; tty.setraw(0); print('\\x1b[?1049hdrawn\\x1b[?1049l')"
    await session.say(f'python3 -c "{leave}"')
    assert (await session.say("stty -a")).output == modes
    await session.say("stty -icanon opost echo ixany")
    after = (await session.say("stty -a")).output
    assert after == modes.replace("-ixany", "ixany")  # an echo could not be told from output
    await session.close()


async def test_ends_of_containers(docker: Engine, bash_min: str, container: Callable[..., str]) -> None:
    for end in (("kill",), ("stop", "-t", "0"), ("rm", "-f")):
        name = container(bash_min)
        session = docker_exec(docker, name)
        await session.start()
        running = asyncio.ensure_future(session.say("echo before; read -t 60", check="ignore"))
        await asyncio.sleep(0.3)
        docker.docker(*end, name)
        said = await running
        assert said.output == "before\n" and said.failure_reason
        with pytest.raises(SessionDiedError):
            await session.say("true")
        await session.close()
        with pytest.raises(SessionDiedError, match="(?i)no such container|is not running"):
            await docker_exec(docker, name).start()


async def test_no_bash(docker: Engine, ash_min: str, container: Callable[..., str]) -> None:
    with pytest.raises(SessionDiedError, match="executable file not found"):
        await docker_exec(docker, container(ash_min)).start()


async def test_a_frozen_container(docker: Engine, bash_min: str, container: Callable[..., str]) -> None:
    name = container(bash_min)
    session = docker_exec(docker, name)
    await session.start()
    docker.docker("pause", name)
    with pytest.raises(CommandTimeoutError):
        await session.say("echo thawed", timeout=0.3)
    docker.docker("unpause", name)
    assert (await session.say("echo next")).output == "next\n"
    await session.close()
