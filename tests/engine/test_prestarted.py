"""Sessions from shells that were started before: the same as others, or not used."""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import re
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from swerex_c import _core
from swerex_c.deployment.config import IsolationConfig, LocalDeploymentConfig
from swerex_c.engine import prestarted, start_conditions
from swerex_c.exceptions import CommandTimeoutError, InvalidInputError, RuntimeClosedError, SessionDiedError
from swerex_c.runtime.abstract import BashAction, CloseBashSessionRequest, CreateBashSessionRequest
from swerex_c.runtime.config import LocalRuntimeConfig
from swerex_c.runtime.local import LocalRuntime
from swerex_c.runtime.remote import RemoteRuntime
from tests.support.wait import DEADLINE, settle, until, until_async

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
cat /proc/$$/{oom_score_adj,coredump_filter,sched,loginuid,personality} 2>/dev/null | grep -E '^(policy|prio|[0-9]+$)'
readlink /proc/$$/{cwd,root,exe,ns/*}; ps -o ni=,cls=,stat= -p $$; tty | tr -d 0-9
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of our own, whose files can change."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("SHELL", "/bin/bash")
    for name in ("HISTFILE", "TMOUT", "PROMPT_COMMAND", "OLDPWD"):
        monkeypatch.delenv(name, raising=False)
    return home


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.slow)], ids=["fresh", "ahead"])
def ahead(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def with_runtime(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Gives a test its `runtime`, from within: around it pytest changes a variable of the environment."""

    async def run_test(**fixtures: Any) -> None:
        runtime = LocalRuntime(warm_sessions=SIZE)
        assert await runtime.wait_until_warm()
        try:
            await test(runtime, **fixtures)
        finally:
            await runtime.close()

    signature = inspect.signature(test)
    others = [parameter for name, parameter in signature.parameters.items() if name != "runtime"]
    run_test.__signature__ = signature.replace(parameters=others)  # type: ignore[attr-defined]
    run_test.__name__, run_test.__doc__ = test.__name__, test.__doc__
    return run_test


def shells(runtime: LocalRuntime) -> prestarted.PrestartedShells:
    assert runtime.warm is not None
    return runtime.warm


def pids(runtime: LocalRuntime) -> list[int]:
    return [shell.pid for shell in shells(runtime)._pool.shells]


async def create(runtime: LocalRuntime, name: str = "s", **fields: Any) -> str:
    fields.setdefault("startup_timeout", DEADLINE)
    return (await runtime.create_session(CreateBashSessionRequest(session=name, **fields))).output


async def run(runtime: LocalRuntime, command: str, name: str = "s") -> str:
    action = BashAction(session=name, command=command, timeout=DEADLINE, check="silent")
    return (await runtime.run_in_session(action)).output


async def pid_of(runtime: LocalRuntime, name: str = "s") -> int:
    return int(await run(runtime, "echo $$", name))


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def ended_or_stopped(pid: int) -> bool:
    return state(pid) in "XZT"


def lives(pid: int) -> bool:
    return state(pid) not in "XZ"


async def settled(home: Path) -> None:
    """Wait until the startup files are old enough for a change to be seen by their times."""
    stamps = [path.stat() for path in home.iterdir()]
    newest = max((max(stamp.st_mtime_ns, stamp.st_ctime_ns) for stamp in stamps), default=0)
    await until_async(lambda: time.time_ns() - newest > start_conditions.RACY_SECONDS * 1e9)


# -- what a session is


async def described(runtime: LocalRuntime, **fields: Any) -> list[str]:
    printed = await create(runtime, **fields)
    first = await run(runtime, "echo $? $_ ${PIPESTATUS[@]}")
    text = await run(runtime, EVERYTHING)
    pid = str(await pid_of(runtime))
    await runtime.close_session(CloseBashSessionRequest(session="s"))
    lines = [printed, first, *text.splitlines()]
    return [re.sub(r"7733;\w+|pts/\d+", "ITS OWN", re.sub(rf"\b{pid}\b", "PID", line)) for line in lines]


@with_runtime
async def test_it_is_the_session_that_would_be_started_now(runtime: LocalRuntime, home: Path) -> None:
    """Also where the startup files, and all that they look at, came after the shell."""
    (home / ".bashrc").write_text(
        "echo from bashrc $_ $BASH_LINENO $LINENO $(date +%Y)\nalias ll='ls -l'\nx=$((y+1)); shopt -s extglob\n"
        "[[ -f ~/other ]] && . ~/other\nPS1='mine> '; HISTSIZE=77\n"
    )
    (home / "other").write_text("echo from other\nf() { echo f; }\ntrap 'echo usr1' USR1\n")
    (home / "source").write_text("echo source $_ $BASH_LINENO $#\ncd /\n")
    fields = {"startup_source": ["~/source"]}
    found = await described(runtime, **fields)
    assert shells(runtime).taken == 1
    cold = LocalRuntime()
    expected = await described(cold, **fields)
    await cold.close()
    assert "from bashrc" in expected[0] and "from other" in expected[0] and "source" in expected[0]
    assert found == expected


@pytest.mark.parametrize("sources", [[], ["~/more", "~/it's more"]], ids=["none", "two"])
async def test_what_was_read_ahead_is_what_would_be_read_now(home: Path, sources: list[str]) -> None:
    """But for the numbers of lines."""
    (home / ".bashrc").write_text(
        "echo from bashrc; alias ll='ls -l'; shopt -s extglob; set -H; umask 027; ulimit -c 0\n"
        "PS1='mine> '; f() { :; }\n"
    )
    (home / "more").write_text("echo more $#; x=1; false\n")
    (home / "it's more").write_text("echo $x; alias la='ls -a'; TMOUT=1; shopt -u extglob\n")
    await settled(home)
    runtime = LocalRuntime(warm_sessions=SIZE, warm_startup_files=True)
    assert await runtime.wait_until_warm()
    found = await described(runtime, startup_source=sources)
    assert shells(runtime).taken == 1
    await runtime.close()
    cold = LocalRuntime()
    expected = await described(cold, startup_source=sources)
    await cold.close()
    assert expected[0] == "from bashrc\n" + ("more 0\n1\n" if sources else "")
    lines = re.compile(r"\bline \d+|LINENO=.*|HISTCMD=.*")
    assert [lines.sub("", line) for line in found] == [lines.sub("", line) for line in expected]


async def test_startup_source_that_ends_the_shell(ahead: bool, home: Path) -> None:
    (home / "more").write_text("echo ran >>~/log; exit 3\n")
    runtime = LocalRuntime(warm_sessions=SIZE, warm_startup_files=ahead)
    assert await runtime.wait_until_warm()
    with pytest.raises(SessionDiedError, match="startup files") as caught:
        await create(runtime, startup_source=["~/more"])
    assert caught.value.exit_code == 3
    assert (home / "log").read_text() == "ran\n"
    assert shells(runtime).taken == 1
    await runtime.close()


@pytest.mark.parametrize("ahead", [False, True])
async def test_it_is_one_of_those_that_waited(ahead: bool, home: Path) -> None:
    (home / ".bashrc").write_text("echo hello; x=$PPID\n")
    (home / "more").write_text("echo more $x; y=1\n")
    await settled(home)
    runtime = LocalRuntime(warm_sessions=SIZE, warm_startup_files=ahead)
    assert await runtime.wait_until_warm()
    waiting = pids(runtime)
    assert len(waiting) == SIZE == shells(runtime).waiting
    assert await create(runtime) == "hello\n"
    assert await create(runtime, "t", startup_source=["~/more"]) == f"hello\nmore {os.getpid()}\n"
    assert await pid_of(runtime) == waiting[0]
    assert await run(runtime, "echo $x") == f"{os.getpid()}\n"
    assert await pid_of(runtime, "t") == waiting[1]
    assert await run(runtime, "echo $y; history", "t") == "1\n    1  echo $$\n    2  echo $y; history\n"
    assert (shells(runtime).taken, shells(runtime).missed) == (2, 0)
    await runtime.wait_until_warm()
    assert shells(runtime).waiting == SIZE and not set(pids(runtime)) & set(waiting)
    await runtime.close()


@pytest.mark.idle
@pytest.mark.slow
@with_runtime
async def test_the_time_of_the_shell_begins_when_it_is_asked_for(runtime: LocalRuntime) -> None:
    await asyncio.sleep(2.1)
    await create(runtime)
    assert shells(runtime).taken == 1
    assert await run(runtime, "echo $SECONDS; declare -p SECONDS") in (
        '0\ndeclare -i SECONDS="0"\n',
        '1\ndeclare -i SECONDS="1"\n',
    )
    assert abs(int(await run(runtime, "printf '%(%s)T' -2")) - time.time()) < 2


# -- when there is none


@with_runtime
async def test_a_request_for_something_else_starts_a_shell(runtime: LocalRuntime) -> None:
    waiting = pids(runtime)
    others: list[dict[str, Any]] = [{"env": {"A": "1"}}, {"cwd": "/"}, {"rows": 30}, {"columns": 100}]
    for number, fields in enumerate(others):
        await create(runtime, str(number), **fields)
        assert await pid_of(runtime, str(number)) not in waiting
    assert await run(runtime, "echo $A", "0") == "1\n"
    assert await run(runtime, "pwd; echo ${OLDPWD-none}", "1") == "/\nnone\n"
    assert await run(runtime, "stty size", "2") == "30 80\n"
    assert pids(runtime) == waiting
    assert (shells(runtime).taken, shells(runtime).missed) == (0, 4)


def set_umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


def set_limit() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[0] - 1, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def set_variable() -> Iterator[None]:
    os.environ["SWX_TEST_OF_WARM"] = "yes"
    yield
    del os.environ["SWX_TEST_OF_WARM"]


def set_directory() -> Iterator[None]:
    before = os.getcwd()
    os.chdir("/usr")
    yield
    os.chdir(before)


def set_processors() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    if len(before) < 2:
        pytest.skip("there is one processor")
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


SHOWS = "umask; ulimit -n; echo ${SWX_TEST_OF_WARM-no}; pwd; grep Cpus_allowed_list /proc/$$/status"


@pytest.mark.parametrize("change", [set_umask, set_limit, set_variable, set_directory, set_processors])
async def test_a_change_of_the_process_starts_a_shell(change: Callable[[], Iterator[None]], ahead: bool) -> None:
    runtime = LocalRuntime(warm_sessions=SIZE, warm_startup_files=ahead)
    assert await runtime.wait_until_warm()
    waiting = pids(runtime)
    steps = change()
    next(steps)
    try:
        await create(runtime)
        assert await pid_of(runtime) not in waiting
        assert shells(runtime).taken == 0
        cold = LocalRuntime()
        await create(cold)
        shown = await run(runtime, SHOWS)
        assert shown == await run(cold, SHOWS)
        await cold.close()
    finally:
        assert next(steps, None) is None
    await create(runtime, "t")
    assert await run(runtime, SHOWS, "t") != shown
    await runtime.close()


@with_runtime
async def test_shells_of_another_environment_are_replaced(
    runtime: LocalRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = pids(runtime)
    monkeypatch.setenv("SWX_TEST_OF_WARM", "new")
    await create(runtime)
    await until_async(lambda: shells(runtime).waiting == SIZE and not set(pids(runtime)) & set(old))
    assert not any(map(lives, old))
    await create(runtime, "t")
    assert await run(runtime, "echo $SWX_TEST_OF_WARM", "t") == "new\n"
    assert shells(runtime).taken == 1


@with_runtime
async def test_a_thread_that_is_unlike_the_others_wastes_nothing(runtime: LocalRuntime) -> None:
    """Its sessions are started as it is; those that wait are for the others."""
    waiting, result = pids(runtime), []

    def work() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 5)
        asyncio.run(create(runtime, "other"))
        result.append(asyncio.run(run(runtime, "ps -o ni= -p $$", "other")).strip())

    thread = threading.Thread(target=work)
    thread.start()
    await asyncio.to_thread(thread.join)
    assert result == ["5"]
    assert await runtime.wait_until_warm()
    assert sorted(pids(runtime)) == sorted(waiting)


@pytest.mark.parametrize("name, value", [("TMOUT", "1"), ("PROMPT_COMMAND", "echo prompt"), ("SECONDS", "100")])
async def test_variables_that_act_while_a_shell_waits(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv(name, value)
    runtime = LocalRuntime(warm_sessions=SIZE)
    assert not await runtime.wait_until_warm()
    await create(runtime)
    assert (await run(runtime, "echo here")).startswith("here\n")
    assert (shells(runtime).waiting, shells(runtime).taken) == (0, 0)
    await runtime.close()


async def test_a_directory_that_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "place"
    place.mkdir()
    monkeypatch.chdir(place)
    runtime = LocalRuntime(warm_sessions=SIZE)
    assert await runtime.wait_until_warm()
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
    await runtime.close()


async def test_startup_files_that_were_read_and_have_changed(home: Path) -> None:
    (home / ".bashrc").write_text("echo old\n")
    await settled(home)
    runtime = LocalRuntime(warm_sessions=SIZE, warm_startup_files=True)
    assert await runtime.wait_until_warm()
    (home / ".bashrc").write_text("echo new\n")
    assert await create(runtime) == "new\n"
    assert shells(runtime).taken == 0
    await settled(home)
    assert await runtime.wait_until_warm()
    assert await create(runtime, "t") == "new\n"
    assert shells(runtime).taken == 1
    (home / ".bashrc").unlink()
    assert await create(runtime, "u") == ""
    await runtime.close()


@pytest.mark.slow
async def test_startup_files_that_were_read_and_take_too_long(home: Path) -> None:
    (home / ".bashrc").write_text("sleep 0.6; echo slow\n")
    await settled(home)
    runtime = LocalRuntime(warm_sessions=1, warm_startup_files=True)
    assert await runtime.wait_until_warm()
    with pytest.raises(CommandTimeoutError, match="startup files"):
        await create(runtime, startup_timeout=0.1)
    assert await create(runtime, startup_timeout=60) == "slow\n"
    assert shells(runtime).taken == 1
    await runtime.close()


# -- dead ones


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGSTOP])
async def test_a_shell_that_was_ended_or_stopped_is_not_handed_out(ahead: bool, number: int) -> None:
    runtime = LocalRuntime(warm_sessions=SIZE, warm_startup_files=ahead)
    assert await runtime.wait_until_warm()
    waiting = pids(runtime)
    for pid in waiting:
        os.kill(pid, number)
        await until_async(partial(ended_or_stopped, pid))
    for i in range(3):
        await create(runtime, str(i))
        assert await run(runtime, "echo here", str(i)) == "here\n"
        assert await pid_of(runtime, str(i)) not in waiting
    await until_async(lambda: not any(map(lives, waiting)))
    assert await runtime.wait_until_warm()
    await runtime.close()


@with_runtime
async def test_a_shell_that_ends_while_it_is_handed_out(runtime: LocalRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the startup files has run in it, so that another one may run them."""
    waiting = pids(runtime)
    take = prestarted.PrestartedShells.take

    def killed(pool: prestarted.PrestartedShells, request: Any) -> prestarted.PrestartedShell | None:
        shell = take(pool, request)
        assert shell is not None
        os.kill(shell.pid, signal.SIGKILL)
        until(lambda: shell.core.facts()["dead"])
        return shell

    monkeypatch.setattr(prestarted.PrestartedShells, "take", killed)
    await create(runtime)
    assert await pid_of(runtime) not in waiting
    assert not lives(waiting[0])


@with_runtime
async def test_startup_files_that_end_the_shell(runtime: LocalRuntime, home: Path) -> None:
    """They have run, and are not run again."""
    (home / ".bashrc").write_text("echo ran >>~/log; exit 3\n")
    with pytest.raises(SessionDiedError, match="startup files") as caught:
        await create(runtime)
    assert caught.value.exit_code == 3
    assert (home / "log").read_text() == "ran\n"
    (home / ".bashrc").write_text("echo ran >>~/log; kill -9 $$\n")
    with pytest.raises(SessionDiedError, match="signal 9"):
        await create(runtime)
    assert (home / "log").read_text() == "ran\nran\n"


@with_runtime
async def test_a_shell_that_somebody_wrote_to_is_not_handed_out(runtime: LocalRuntime) -> None:
    first = pids(runtime)[0]
    with open(os.readlink(f"/proc/{first}/fd/1"), "w") as terminal:
        terminal.write("good morning\n")
    await until_async(lambda: shells(runtime)._pool.shells[0].core.facts()["late"])
    assert await create(runtime) == ""
    assert await pid_of(runtime) != first


@with_runtime
async def test_errors_are_those_of_any_session(runtime: LocalRuntime, home: Path) -> None:
    with pytest.raises(InvalidInputError, match="does not exist"):
        await create(runtime, startup_source=["/nonexistent/file"])
    (home / "slow").write_text("sleep 100\n")
    with pytest.raises(CommandTimeoutError, match="startup files"):
        await create(runtime, startup_source=["~/slow"], startup_timeout=0.2)
    assert "s" not in runtime.sessions


# -- the end


async def test_close_ends_all_that_wait(ahead: bool) -> None:
    runtime = LocalRuntime(warm_sessions=3, warm_startup_files=ahead)
    await runtime.wait_until_warm()
    await create(runtime)
    waiting, nodes = [*pids(runtime), await pid_of(runtime)], _core.node_count()
    assert nodes
    await runtime.close()
    await runtime.close()
    assert not any(map(lives, waiting))
    assert not [t for t in threading.enumerate() if t.name == "swerex-warm" and not shells(runtime)._pool.closed]
    with pytest.raises(RuntimeClosedError):
        await create(runtime)
    assert shells(runtime).waiting == 0


async def test_close_while_they_are_started() -> None:
    runtime = LocalRuntime(warm_sessions=50)
    await until_async(lambda: shells(runtime).waiting > 1)
    full = asyncio.ensure_future(runtime.wait_until_warm())
    await asyncio.sleep(0)
    waiting = pids(runtime)
    await runtime.close()
    assert not await full
    assert shells(runtime).waiting == 0 and not any(map(lives, waiting))


async def test_a_runtime_that_is_forgotten_keeps_none() -> None:
    runtime = LocalRuntime(warm_sessions=SIZE)
    await runtime.wait_until_warm()
    waiting = pids(runtime)
    del runtime
    gc.collect()
    await until_async(lambda: not any(map(lives, waiting)))


KILLED = "os.kill(os.getpid(), signal.SIGKILL)"

PROGRAM = """
import asyncio, os, signal, sys
from swerex_c.runtime.local import LocalRuntime
async def main():
    global runtime
    runtime = LocalRuntime(warm_sessions=3)
    await runtime.wait_until_warm()
    print(*[shell.pid for shell in runtime._warm._pool.shells], flush=True)
asyncio.run(main())
{end}
"""


@pytest.mark.parametrize(
    "end", ["", *(pytest.param(end, marks=pytest.mark.slow) for end in ("os._exit(0)", KILLED, "1 / 0"))]
)
async def test_the_end_of_the_process_leaves_none(end: str) -> None:
    program = PROGRAM.format(end=end)
    done = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    waiting = [int(word) for word in done.stdout.split()]
    assert len(waiting) == 3
    assert ("Traceback" in done.stderr) == (end == "1 / 0") and "Exception in thread" not in done.stderr
    await until_async(lambda: not any(map(lives, waiting)))


@with_runtime
async def test_a_forked_child_has_its_own(runtime: LocalRuntime) -> None:
    waiting = pids(runtime)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:

            async def work() -> None:
                await create(runtime)
                assert await run(runtime, "echo $PPID") == f"{os.getpid()}\n"
                assert await runtime.wait_until_warm()
                assert len(pids(runtime)) == SIZE and not set(pids(runtime)) & set(waiting)
                await create(runtime, "t")
                assert shells(runtime).taken == 1
                os.write(write_end, " ".join(map(str, pids(runtime))).encode())
                await runtime.close()

            asyncio.new_event_loop().run_until_complete(asyncio.wait_for(work(), DEADLINE))
            code = 0
        finally:
            os._exit(code)
    os.close(write_end)
    status = (await asyncio.to_thread(os.waitpid, child, 0))[1]
    assert os.waitstatus_to_exitcode(status) == 0
    with os.fdopen(read_end) as pipe:
        others = [int(word) for word in pipe.read().split()]
    assert others and not any(map(lives, others))
    assert pids(runtime) == waiting
    await create(runtime)
    assert await pid_of(runtime) == waiting[0]


# -- the others that run meanwhile


async def test_many_at_once_from_several_threads() -> None:
    runtime = LocalRuntime(warm_sessions=6)
    assert await runtime.wait_until_warm()

    async def work(thread: int) -> list[str]:
        names = [f"{thread}-{i}" for i in range(4)]
        await asyncio.gather(*(create(runtime, name) for name in names))
        return list(await asyncio.gather(*(run(runtime, f"echo {name}", name) for name in names)))

    def in_thread(thread: int) -> list[str]:
        return asyncio.run(work(thread))

    found = await asyncio.gather(*(asyncio.to_thread(in_thread, thread) for thread in range(3)))
    assert found == [[f"{thread}-{i}\n" for i in range(4)] for thread in range(3)]
    used = [await pid_of(runtime, name) for name in runtime.sessions]
    assert len(set(used)) == 12 and shells(runtime).taken >= 6
    assert shells(runtime).taken + shells(runtime).missed == 12
    await runtime.close()


@with_runtime
async def test_never_more_than_asked_for_and_none_after_the_last(runtime: LocalRuntime) -> None:
    most = 0
    for i in range(6):
        await create(runtime, str(i))
        most = max(most, shells(runtime).waiting)
    assert await runtime.wait_until_warm()
    assert most <= SIZE and shells(runtime).waiting == SIZE


@pytest.mark.idle
@with_runtime
async def test_nothing_ticks_while_they_wait(runtime: LocalRuntime) -> None:
    (thread,) = [t for t in threading.enumerate() if t.name == "swerex-warm" and t.is_alive()][-1:]
    tasks = [thread.native_id, *pids(runtime)]

    def switches(task: int | None) -> int:
        text = Path(f"/proc/{task}/status").read_text()
        return sum(int(line.split()[1]) for line in text.splitlines() if "ctxt_switches" in line)

    await asyncio.sleep(0.05)
    before = [switches(task) for task in tasks]
    await asyncio.sleep(0.3)
    assert [switches(task) for task in tasks] == before


async def test_a_start_does_not_hold_the_loop_up(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, threads, start = threading.Event(), [], _core.Session

    def slow(*arguments: Any, **more: Any) -> _core.Session:
        threads.append(threading.get_ident())
        assert go_on.wait(DEADLINE)
        return start(*arguments, **more)

    monkeypatch.setattr(_core, "Session", slow)
    runtime = LocalRuntime(warm_sessions=SIZE)
    full = asyncio.ensure_future(runtime.wait_until_warm())
    await until_async(lambda: threads)
    await settle()
    go_on.set()
    assert await full
    assert threading.get_ident() not in threads
    await runtime.close()


async def test_it_rests_between_starts_unless_somebody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prestarted, "_SHARE", 10000)
    monkeypatch.setattr(prestarted, "_LONGEST_REST", 1000.0)
    runtime = LocalRuntime(warm_sessions=3)
    await until_async(lambda: shells(runtime).waiting)
    await settle()
    assert shells(runtime).waiting == 1
    assert await runtime.wait_until_warm()
    assert shells(runtime).waiting == 3
    await create(runtime)
    await settle()
    await runtime.close()


@with_runtime
async def test_sessions_that_are_asked_for_at_once_are_not_disturbed(
    runtime: LocalRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prestarted, "_QUIET", 1000.0)
    await create(runtime)
    await settle()
    assert shells(runtime).waiting == SIZE - 1
    assert await runtime.wait_until_warm()
    assert shells(runtime).waiting == SIZE


@pytest.mark.slow
async def test_close_while_startup_files_are_read(home: Path) -> None:
    (home / ".bashrc").write_text("echo $$ >~/pid; sleep 100\n")
    await settled(home)
    runtime = LocalRuntime(warm_sessions=SIZE, warm_startup_files=True)
    await until_async((home / "pid").exists)
    await asyncio.wait_for(runtime.close(), DEADLINE)
    await until_async(lambda: not lives(int((home / "pid").read_text())))


async def test_where_no_shell_can_be_started(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*arguments: Any, **more: Any) -> None:
        raise OSError(24, "openpty: Too many open files")

    with monkeypatch.context() as context:
        context.setattr(_core, "Session", fail)
        runtime = LocalRuntime(warm_sessions=SIZE)
        assert not await runtime.wait_until_warm()
        assert not await runtime.wait_until_warm()
        assert shells(runtime).waiting == 0
    assert await runtime.wait_until_warm()
    assert shells(runtime).waiting == SIZE
    await runtime.close()


async def test_where_the_kernel_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a look at what a shell has inherited none is handed out."""

    def closed(pid: int) -> bytes:
        raise PermissionError(13, "open(/proc): Permission denied")

    monkeypatch.setattr(_core, "inherited", closed)
    runtime = LocalRuntime(warm_sessions=SIZE)
    assert not await runtime.wait_until_warm()
    await create(runtime)
    assert await run(runtime, "echo here") == "here\n"
    assert shells(runtime).taken == 0
    await runtime.close()


# -- where it is asked for


def test_configuration() -> None:
    assert LocalRuntimeConfig().warm_sessions == 0 and not LocalRuntimeConfig().warm_startup_files
    with pytest.raises(ValueError):
        LocalRuntimeConfig(warm_sessions=-1)
    assert LocalRuntime().warm is None
    with pytest.raises(ValueError, match="isolation"):
        LocalDeploymentConfig(warm_sessions=1, isolation=IsolationConfig())


async def test_a_deployment_has_them(ahead: bool) -> None:
    deployment = LocalDeploymentConfig(warm_sessions=SIZE, warm_startup_files=ahead).get_deployment()
    await deployment.start()
    runtime = deployment.runtime
    assert isinstance(runtime, LocalRuntime) and await runtime.wait_until_warm()
    assert len(pids(runtime)) == SIZE and (shells(runtime)._pool.script is not None) == ahead
    waiting = pids(runtime)
    await deployment.stop()
    assert not any(map(lives, waiting))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["serve", "stdio"])
async def test_a_server_has_them(way: str, tmp_path: Path) -> None:
    socket = tmp_path / "socket"
    flags = ["--warm-sessions", str(SIZE), "--warm-startup-files"]
    if way == "stdio":
        command = [sys.executable, "-m", "swerex_c.server", "--stdio", *flags]
        remote = RemoteRuntime(command=command, auth_token="")
        server = None
    else:
        command = [sys.executable, "-m", "swerex_c.server", "--unix", str(socket), "--auth-token", "k", *flags]
        server = await asyncio.create_subprocess_exec(*command, stderr=subprocess.DEVNULL)
        remote = RemoteRuntime(host=f"unix://{socket}", auth_token="k")
    await remote.wait_until_alive(timeout=DEADLINE)
    await remote.create_session(CreateBashSessionRequest(startup_timeout=60))
    action = BashAction(command="pgrep -P $PPID -x bash | wc -l", timeout=DEADLINE)
    async with asyncio.timeout(DEADLINE):
        while (await remote.run_in_session(action)).output != f"{SIZE + 1}\n":
            await settle()
    shells_there = (await remote.run_in_session(BashAction(command="pgrep -P $PPID -x bash"))).output.split()
    await remote.close()
    if server is not None:
        server.terminate()
        await server.wait()
    await until_async(lambda: not any(lives(int(pid)) for pid in shells_there))


def test_metrics_name_them() -> None:
    pytest.importorskip("prometheus_client")
    from starlette.requests import Request

    from swerex_c.remote.server.metrics import endpoint
    from swerex_c.remote.server.service import Service

    runtime = LocalRuntime(warm_sessions=SIZE)

    async def use() -> None:
        assert await runtime.wait_until_warm()
        await create(runtime)
        await create(runtime, "t", cwd="/")
        assert await runtime.wait_until_warm()

    asyncio.run(use())
    metrics = endpoint(Service(SimpleNamespace(runtime=runtime, AUTH_TOKEN="")))
    answer = asyncio.run(metrics(Request({"type": "http", "headers": []})))
    lines = bytes(answer.body).decode().splitlines()
    assert {
        "swerex_warm_sessions 2.0",
        "swerex_warm_sessions_taken_total 1.0",
        "swerex_warm_sessions_missed_total 1.0",
    } <= {*lines}
    asyncio.run(runtime.close())
