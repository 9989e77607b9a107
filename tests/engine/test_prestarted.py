"""Sessions from shells that were started before."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import gc
import os
import re
import subprocess
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from swerex_c import _core
from swerex_c.deployment.config import IsolationConfig, LocalDeploymentConfig
from swerex_c.engine import prestarted
from swerex_c.exceptions import InvalidInputError, RuntimeClosedError, SessionDiedError
from swerex_c.runtime.abstract import AbstractRuntime, CloseBashSessionRequest
from swerex_c.runtime.config import LocalRuntimeConfig
from swerex_c.runtime.local import LocalRuntime
from swerex_c.runtime.remote import RemoteRuntime
from tests.support.harness import in_forked_child
from tests.support.original import run_python
from tests.support.processes import Family, alive, state
from tests.support.runtimes import remote
from tests.support.server_process import REMOTE, serving
from tests.support.session import Session
from tests.support.slow_start import Slow
from tests.support.wait import DEADLINE, settle, until_async

SIZE = 2

EVERYTHING = r"""
declare -p | grep -vE '^declare -\S+ (BASHPID|EPOCH|SRANDOM|RANDOM|BASH_LINENO|SECONDS|PPID|_seen)'
declare -f; shopt -p; shopt -po; alias; trap -p; jobs -l; hash; ulimit -a | grep -vE -- "-(R|x)\)"; umask; history
stty -a; pwd; pwd -P; dirs -v; echo "flags $- line $LINENO params $# $* zero $0"
compgen -abk -A function | sort; type builtin; complete -p
ls -l /proc/$$/fd | sed 's/.*\([0-9] ->\)/\1/'; tr '\0' '\n' </proc/$$/environ; tr '\0' ' ' </proc/$$/cmdline
grep -vE '^(Max file locks|Max realtime timeout)' /proc/$$/limits
grep -E '^(Umask|Uid|Gid|Groups|Sig(Ign|Cgt)|Cap|NoNewPrivs|Seccomp|Cpus|Mems)' /proc/$$/status; cat /proc/$$/cgroup
grep SigBlk /proc/self/status
readlink /proc/$$/{cwd,root,exe,ns/*}; ps -o ni=,cls=,stat= -p $$ | sed 's/[DRS]\([^ ]*\)$/S\1/'; tty | tr -d 0-9
"""


@pytest.fixture(autouse=True)
def home(family: Family, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of our own, whose files can change."""
    for name in ("HISTFILE", "TMOUT", "OLDPWD", "PYTEST_CURRENT_TEST"):
        monkeypatch.delenv(name, raising=False)
    return Path(os.environ["HOME"])


def keeping(size: int = SIZE) -> LocalRuntime:
    """Make a runtime whose shells, from the first, are of an environment in which pytest names no test."""
    os.environ.pop("PYTEST_CURRENT_TEST", None)
    return LocalRuntime(warm_sessions=size)


@contextlib.asynccontextmanager
async def kept(size: int = SIZE) -> AsyncIterator[LocalRuntime]:
    """Open a runtime all of whose shells wait."""
    async with keeping(size) as runtime:
        assert await runtime.wait_until_warm()
        yield runtime


def shells(runtime: LocalRuntime) -> prestarted.PrestartedShells:
    assert runtime.warm is not None
    return runtime.warm


def pids(runtime: LocalRuntime) -> list[int]:
    return [shell.core.facts()["pid"] for shell in shells(runtime)._shells]


async def create(runtime: AbstractRuntime, name: str = "s", **fields: Any) -> str:
    return await Session(runtime, name).create(**fields)


async def run(runtime: AbstractRuntime, command: str, name: str = "s") -> str:
    return (await Session(runtime, name).run(command)).output


async def pid_of(runtime: LocalRuntime, name: str = "s") -> int:
    return int((await run(runtime, "echo $$", name)).split()[0])


# -- what a session is


async def described(runtime: LocalRuntime) -> list[str]:
    printed = await create(runtime)
    first = await run(runtime, "echo $? $_ ${PIPESTATUS[@]}")
    text = await run(runtime, EVERYTHING)
    await runtime.close_session(CloseBashSessionRequest(session="s"))
    lines = [printed, first, *text.splitlines()]
    return [re.sub(r"7733;\w+|pts/\d+", "ITS OWN", line) for line in lines]


async def test_it_is_the_session_that_would_be_started_now(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".bashrc").write_text(
        "echo from bashrc $_ $BASH_LINENO $LINENO\nalias ll='ls -l'\nx=$((y+1)); shopt -s extglob; umask 027\n"
        "PS1='mine> '; HISTSIZE=77; f() { echo f; }\ntrap 'echo usr1' USR1; TMOUT=1; PROMPT_COMMAND+=('x=2')\n"
    )
    monkeypatch.setenv("PROMPT_COMMAND", "echo prompt")
    async with kept() as runtime:
        waiting = pids(runtime)
        found = await described(runtime)
        assert waiting[0] not in pids(runtime)
    async with LocalRuntime() as cold:
        expected = await described(cold)
    assert "from bashrc" in expected[0]
    differs = list(difflib.unified_diff(expected, found, "started now", "waited", n=0, lineterm=""))
    assert not differs, "\n".join(differs)


async def test_it_is_one_of_those_that_waited(home: Path) -> None:
    (home / ".bashrc").write_text("echo hello; x=$PPID\n")
    known = f"{os.getpid()}\n    1  echo $$\n    2  echo $x; history\n"
    async with kept() as runtime:
        waiting = pids(runtime)
        assert len(waiting) == SIZE
        for name, pid in zip("st", waiting, strict=True):
            assert await create(runtime, name) == "hello\n"
            assert await pid_of(runtime, name) == pid
            assert await run(runtime, "echo $x; history", name) == known
        assert await runtime.wait_until_warm()
        assert len(pids(runtime)) == SIZE and not set(pids(runtime)) & set(waiting)


# -- when there is none


async def test_a_request_for_something_else_starts_a_shell(home: Path) -> None:
    async with kept() as runtime:
        (home / "more").write_text("y=1\n")
        waiting = pids(runtime)
        others: list[dict[str, Any]] = [
            {"env": {"A": "1"}}, {"cwd": "/"}, {"rows": 30}, {"columns": 100}, {"startup_source": ["~/more"]},
        ]  # fmt: skip
        for number, fields in enumerate(others):
            await create(runtime, str(number), **fields)
            assert await pid_of(runtime, str(number)) not in waiting
        assert await run(runtime, "pwd; echo ${OLDPWD-none}", "1") == "/\nnone\n"
        with pytest.raises(InvalidInputError, match="startup_timeout"):
            await create(runtime, startup_timeout=-1)
        assert pids(runtime) == waiting


@pytest.mark.parametrize("variable, directory", [("yes", ""), ("no", "/usr")])
async def test_shells_of_other_surroundings_are_replaced(
    variable: str, directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with kept() as runtime:
        old = pids(runtime)
        if directory:
            monkeypatch.chdir(directory)
        else:
            monkeypatch.setenv("SWX_TEST_OF_WARM", variable)
        for name in "st":
            new = pids(runtime)
            await create(runtime, name)
            assert (await pid_of(runtime, name) == new[0]) == (name == "t")
            assert await run(runtime, "echo ${SWX_TEST_OF_WARM-no}; pwd", name) == f"{variable}\n{os.getcwd()}\n"
            assert await runtime.wait_until_warm()
            await until_async(lambda: not any(map(alive, old)))


async def test_surroundings_that_change_while_a_shell_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its start does not hold the loop up."""
    slow = Slow(_core.Session)
    monkeypatch.setattr(_core, "Session", slow)
    runtime = keeping()
    await slow.begun()
    monkeypatch.chdir("/usr")
    slow.go_on.set()
    assert await runtime.wait_until_warm()
    assert threading.get_ident() not in slow.threads
    waiting = pids(runtime)
    await create(runtime)
    assert await pid_of(runtime) == waiting[0] and await run(runtime, "pwd") == "/usr\n"
    await runtime.close()


async def test_a_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    async with kept() as runtime:
        waiting = pids(runtime)
        place.rmdir()
        await create(runtime)
        assert await pid_of(runtime) not in waiting
        place.mkdir()  # of the same name, and another one
        monkeypatch.chdir(place)
        await create(runtime, "t")
        assert await pid_of(runtime, "t") not in waiting
        assert await run(runtime, "touch here; ls $PWD", "t") == "here\n"
        monkeypatch.chdir("/")


async def test_startup_files_that_end_the_shell(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    (home / ".bashrc").write_text("exit 3\n")
    runtime = keeping()
    assert not await runtime.wait_until_warm()
    assert len(pids(runtime)) == 0
    with pytest.raises(SessionDiedError, match="startup files") as caught:
        await create(runtime)
    assert caught.value.exit_code == 3
    assert not await runtime.wait_until_warm()  # nor does any read the file while it changes
    (home / ".bashrc").write_text("x=1\n")
    assert await runtime.wait_until_warm()
    await create(runtime)
    assert await run(runtime, "echo $x") == "1\n"
    await runtime.close()


@pytest.mark.parametrize("harm", ["kill -KILL {0}", "kill -HUP {0}", "kill -STOP {0}", "echo hi >/proc/{0}/fd/1"])
async def test_a_shell_that_somebody_ended_stopped_or_wrote_to_is_not_handed_out(harm: str) -> None:
    async with kept() as runtime:
        waiting = pids(runtime)
        for at, pid in enumerate(waiting):
            subprocess.run(["bash", "-c", harm.format(pid)], check=True)
            facts = shells(runtime)._shells[at].core.facts
            await until_async(lambda pid=pid, facts=facts: state(pid) in "XZT" or facts()["late"])
        del facts  # which would keep the shell
        for i in range(3):
            assert await create(runtime, str(i)) == ""
            assert await run(runtime, "echo here", str(i)) == "here\n"
            assert await pid_of(runtime, str(i)) not in waiting
        await until_async(lambda: not any(map(alive, waiting)))
        assert await runtime.wait_until_warm()


async def test_where_no_shell_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **more: Any) -> None:
        raise OSError(24, "openpty: Too many open files")

    with monkeypatch.context() as context:
        context.setattr(_core, "Session", fail)
        runtime = keeping()
        assert not await runtime.wait_until_warm()
        assert len(pids(runtime)) == 0
    assert await runtime.wait_until_warm()
    assert len(pids(runtime)) == SIZE
    await runtime.close()


# -- the end


async def test_close_ends_all_that_wait() -> None:
    """Also those of a deployment, which stops."""
    deployment = LocalDeploymentConfig(warm_sessions=SIZE).get_deployment()
    await deployment.start()
    runtime = deployment.runtime
    assert isinstance(runtime, LocalRuntime) and await runtime.wait_until_warm()
    await create(runtime)
    waiting = [*pids(runtime), await pid_of(runtime)]
    assert len(waiting) > SIZE - 1
    await asyncio.gather(runtime.close(), deployment.stop())
    await runtime.close()
    assert not any(map(alive, waiting))
    with pytest.raises(RuntimeClosedError):
        await create(runtime)
    assert len(pids(runtime)) == 0


async def test_close_while_they_are_started(home: Path) -> None:
    """The first reads its startup files."""
    (home / ".bashrc").write_text("echo $$ >~/pid; sleep 100\n")
    runtime = keeping()
    full = asyncio.ensure_future(runtime.wait_until_warm())
    await until_async(lambda: (home / "pid").exists() and (home / "pid").read_text().endswith("\n"))
    await asyncio.wait_for(runtime.close(), DEADLINE)
    assert not alive(int((home / "pid").read_text()))
    assert not await full and len(pids(runtime)) == 0


async def test_a_runtime_that_is_forgotten_keeps_none() -> None:
    runtime = keeping()
    assert await runtime.wait_until_warm()
    waiting = pids(runtime)
    del runtime
    gc.collect()
    await until_async(lambda: not any(map(alive, waiting)))


KILLED = "os.kill(os.getpid(), signal.SIGKILL)"

PROGRAM = """
import asyncio, os, pathlib, signal
from swerex_c.runtime.local import LocalRuntime
async def main():
    global runtime
    runtime = LocalRuntime(warm_sessions=3)
    {until}
asyncio.run(main())
{end}
"""


@pytest.mark.parametrize(
    "end", ["", *(pytest.param(end, marks=pytest.mark.slow) for end in ("os._exit(0)", KILLED, "1 / 0"))]
)
@pytest.mark.parametrize(
    ("until", "more", "number"),
    [
        ("await runtime.wait_until_warm()", "", 3),
        ("pathlib.Path.home().joinpath('reading').read_text()", "echo >~/reading; sleep 100", 1),
    ],
    ids=["", "while one reads its startup files"],
)
async def test_the_end_of_the_process_leaves_none(end: str, until: str, more: str, number: int, home: Path) -> None:
    os.mkfifo(home / "reading")
    (home / ".bashrc").write_text(f"echo $$ >>~/pids\n{more}\n")
    done = await asyncio.to_thread(run_python, PROGRAM.format(end=end, until=until))
    waiting = [int(word) for word in (home / "pids").read_text().split()]
    assert len(waiting) == number
    assert ("Traceback" in done.stderr) == (end == "1 / 0") and "Exception in thread" not in done.stderr
    await until_async(lambda: not any(map(alive, waiting)))


async def test_a_forked_child_has_its_own() -> None:
    async with kept() as runtime:
        waiting = pids(runtime)

        async def work() -> None:
            await create(runtime)
            assert await run(runtime, "echo $PPID") == f"{os.getpid()}\n"
            assert await runtime.wait_until_warm()
            mine = pids(runtime)
            assert len(mine) == SIZE and not set(mine) & set(waiting)
            await create(runtime, "t")
            assert await pid_of(runtime, "t") == mine[0]
            mine = pids(runtime)
            await runtime.close()
            assert mine and not any(map(alive, mine))

        in_forked_child(lambda: asyncio.run(work()))
        assert pids(runtime) == waiting
        await create(runtime)
        assert await pid_of(runtime) == waiting[0]


# -- the others that run meanwhile


async def test_many_at_once_from_several_threads() -> None:
    async def work(thread: int) -> list[str]:
        names = [f"{thread}-{i}" for i in range(4)]
        await asyncio.gather(*(create(runtime, name) for name in names))
        return list(await asyncio.gather(*(run(runtime, f"echo {name}", name) for name in names)))

    async with kept(6) as runtime:
        waiting = pids(runtime)
        found = await asyncio.gather(*(asyncio.to_thread(asyncio.run, work(thread)) for thread in range(3)))
        assert found == [[f"{thread}-{i}\n" for i in range(4)] for thread in range(3)]
        used = {await pid_of(runtime, name) for name in runtime.sessions}
        assert len(used) == 12 and used >= set(waiting)
        assert await runtime.wait_until_warm()
        assert len(pids(runtime)) == 6


# -- where it is asked for


def test_configuration() -> None:
    with pytest.raises(ValueError):
        LocalRuntimeConfig(warm_sessions=-1)
    assert LocalRuntime().warm is None
    with pytest.raises(ValueError, match="isolation"):
        LocalDeploymentConfig(warm_sessions=1, isolation=IsolationConfig())


@pytest.mark.parametrize("way", ["serve", pytest.param("stdio", marks=pytest.mark.slow)])
async def test_a_server_has_them(way: str, tmp_path: Path, family: Family) -> None:
    flags = ["--warm-sessions", str(SIZE)]
    with contextlib.ExitStack() as stack:
        if way == "stdio":
            client = RemoteRuntime(command=[*REMOTE, "--stdio", *flags], auth_token="")
        else:
            pytest.importorskip("prometheus_client")
            server = stack.enter_context(serving(tmp_path / "log", *flags, "--metrics"))
            client = remote(server, "auto")
        await create(client)
        async with asyncio.timeout(DEADLINE):
            children = "cat $(printf '/proc/%s/comm ' $(cat /proc/$PPID/task/*/children)) 2>&-"
            while await run(client, f"{children} | grep -cx bash") != f"{SIZE + 1}\n":
                await settle()
            while way == "serve" and f"\nswerex_warm_sessions {SIZE}.0\n" not in server.get("/metrics").text:
                await settle()
        await client.close()
    assert not family.left()
