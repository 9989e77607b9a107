"""Time: timeouts, what comes after them, interrupts that overtake, and cancelled callers."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from swerex_c.exceptions import CommandTimeoutError, SessionBusyError
from tests.support.session import Gate, Shell
from tests.support.wait import cancel, quicker_than, settle


@pytest.mark.parametrize("timeout", [0.05, 0.1, 0.5])
def test_a_timeout_is_kept(sh: Shell, timeout: float) -> None:
    start = time.monotonic()
    error = sh.times_out("sleep 1000", timeout=timeout)
    assert timeout <= time.monotonic() - start
    assert str(error) == f"timeout after {timeout} seconds while running command 'sleep 1000'"
    sh.interrupt()


@pytest.mark.idle
@pytest.mark.parametrize("command", ["sleep 1000", "yes"])
def test_a_timeout_is_not_late(sh: Shell, command: str) -> None:
    for timeout in (0.05, 0.1, 0.5):
        with quicker_than(timeout + 0.4):
            sh.times_out(command, timeout=timeout)
        sh.interrupt()


@pytest.mark.parametrize("how", ["timed out", "cancelled", "stream left"])
def test_the_next_command_waits_for_one_that_was_given_up(sh: Shell, gate: Gate, how: str) -> None:
    command = f"echo early; {gate.pass_}; echo late"

    async def give_up() -> None:
        if how == "timed out":
            with pytest.raises(CommandTimeoutError):
                await sh.go(command, timeout=0.1)
        elif how == "cancelled":
            task = asyncio.ensure_future(sh.go(command))
            await gate.is_reached()
            await cancel(task)
        else:
            stream = sh.aio.stream_in_session(sh.action(command))
            assert await anext(stream) == "early\n"
            await stream.aclose()

    async def next_one() -> Any:
        await give_up()
        following = asyncio.ensure_future(sh.go("echo next; (exit 3)"))
        await gate.is_reached()
        await settle()
        assert not following.done()
        gate.open()
        return await following

    seen = sh.wait(next_one())
    assert (seen.output, seen.exit_code) == ("next\n", 3)


def test_a_chain_of_timeouts(sh: Shell, gate: Gate) -> None:
    sh.times_out(f"{gate.pass_}; echo old; (exit 9)", timeout=0.1)
    for i in range(3):
        assert f"new{i}" not in sh.times_out(f"echo new{i}", timeout=0.05).output
    gate.open()
    sh.gives("echo finally $?", "finally 9\n")
    sh.gives("echo $?", "0\n")


@pytest.mark.parametrize("busy", [
    "sleep 1000", "while :; do :; done", "while :; do sleep 0.01; done", "sleep 1000 | cat | cat", "cat",
    "read x", "yes", "yes >/dev/null", "for i in 1 2 3; do sleep 1000; done", "(sleep 1000)", "(while :; do :; done)",
    "f() { sleep 1000; }; f", "sleep 1000 & wait $!", "python3 -c 'import time; time.sleep(1000)'",
    "bash -c 'sleep 1000; true'", "x=$(sleep 1000)", "cat <(sleep 1000)", "eval 'sleep 1000'", "time sleep 1000",
    "! sleep 1000", "{ sleep 1000; }", "true\nsleep 1000\necho not reached", "select x in a; do :; done",
    "tail -f /dev/null", "until false; do :; done", "sleep 1000 || sleep 1000", "coproc sleep 1000; wait $!",
    "exec 9< <(sleep 1000); read -u 9",
])  # fmt: skip
def test_interrupt(sh: Shell, busy: str) -> None:
    """The background is spared."""
    sh.run("kept=yes; sleep 77777 &")
    seen = sh.interrupted(busy, timeout=1, n_retry=60)
    assert "not reached" not in seen.output
    sh.gives("echo $kept; jobs %1 | grep -c Running", "yes\n1\n")
    sh.run("kill %1 %2 %3; exec 9<&-")


@pytest.mark.idle
def test_interrupt_is_quick(sh: Shell) -> None:
    with quicker_than(0.3):
        sh.interrupt()
    for busy in ("sleep 100", "while :; do :; done", "cat", "read x"):
        sh.times_out(busy, timeout=0.1)
        with quicker_than(0.2):
            sh.interrupt()
        sh.gives("echo next", "next\n")
        with quicker_than(0.3):
            sh.interrupt()  # of an idle shell


def test_interrupt_from_another_thread(sh: Shell, gate: Gate) -> None:
    def later() -> None:
        gate.reached()
        asyncio.run(sh.session.interrupt())

    thread = threading.Thread(target=later)
    thread.start()
    seen = sh.run(gate.pass_)
    thread.join()
    assert seen.exit_code == 130


IGNORES = [
    "trap '' INT TERM HUP QUIT TSTP; echo ready; while :; do sleep 1; done",
    "python3 -c 'import os, signal; signal.signal(2, signal.SIG_IGN); os.write(1, b\"ready\"); signal.pause()'",
    'python3 -c \'import os, signal; signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 64)); os.write(1, b"ready"); '
    "signal.pause()'",
    "stty raw -echo; trap '' INT; echo ready; sleep 1000",
    # A ^C that is typed would be swallowed; a signal to the foreground group is not.
    "python3 -c 'import os, tty\ntty.setraw(0)\nos.write(1, b\"ready\")\nwhile 1: os.read(0, 1)'",
]


@pytest.mark.parametrize("command", IGNORES)
def test_interrupt_of_what_ignores_it(sh: Shell, command: str) -> None:
    sh.interrupted(f"({command})", "ready")
    sh.gives("echo next", "next\n")


def test_cancelled_at_every_moment(sh: Shell) -> None:
    """Wherever the cancellation strikes, the next answers are right."""

    async def storm() -> None:
        for i in range(40):
            task = asyncio.ensure_future(sh.go(f"echo x{i}"))
            await settle(i % 8 + 20 * (i % 5))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    sh.wait(storm())
    for i in range(3):
        sh.gives(f"echo y{i}; (exit {i})", f"y{i}\n", i)


def test_interrupt_with_expect(sh: Shell) -> None:
    """An interactive program that answers ^C with its prompt is still there."""
    sh.talk("PYTHON_BASIC_REPL=1 python3 -q", ">>> ")
    seen = sh.interrupt(expect=[">>> "], timeout=1, n_retry=60)
    assert "KeyboardInterrupt" in seen.output
    assert seen.expect_string == ">>> "
    assert sh.talk("6 * 7", ">>> ").output == "42"
    sh.leave("quit()")
    sh.gives("echo out", "out\n")


def test_a_reader_that_outlives_its_parent_gets_nothing_of_the_next_command(sh: Shell, tmp_path: Path) -> None:
    """As less does when git has died: its read began in the foreground and does not notice that it has lost it."""
    reader, parent = tmp_path / "reader.py", tmp_path / "parent.py"
    reader.write_text(
        "import os, signal, tty\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntty.setraw(0)\n"
        "os.write(1, b'reading')\ntry:\n    os.read(0, 1)\nexcept OSError:\n    pass\n"  # it has lost the terminal
    )
    parent.write_text(
        "import signal, subprocess, sys\nchild = subprocess.Popen([sys.executable, sys.argv[1]])\n"
        "signal.signal(signal.SIGINT, signal.SIG_DFL)\nchild.wait()\n"
    )
    for _ in range(3):
        seen = sh.run(f"python3 {parent} {reader}", check="ignore", expect=["reading"])
        assert seen.expect_string == "reading"
        sh.interrupt(timeout=1, n_retry=60)
        sh.gives("echo whole", "whole\n")


@pytest.mark.parametrize("thread", [False, True])
def test_a_reader_left_behind_takes_no_letter_of_the_next_command(sh: Shell, tmp_path: Path, thread: bool) -> None:
    """Nobody interrupted anything: its parent has ended, and its read of one byte goes on in the background."""
    reader, ready = tmp_path / "reader.py", tmp_path / "ready"
    read = "os.read(3, 1)" if not thread else "t = threading.Thread(target=os.read, args=(3, 1)); t.start(); t.join()"
    reader.write_text(f"import os, threading\nopen({str(ready)!r}, 'w').close()\n{read}\n")
    wait = f"while [ ! -e {ready} ]; do sleep 0.01; done; sleep 0.1"
    for _ in range(2):
        sh.gives(f"sh -c 'exec 3<&0; python3 {reader} 2>/dev/null & {wait}; exit 3'; rm {ready}", "", 0)
        sh.gives("echo whole", "whole\n")


def test_a_pipeline_whose_end_hands_the_terminal_back_can_be_interrupted(sh: Shell, tmp_path: Path) -> None:
    """As a child of bash's does that dies of SIGINT at its birth, while another has forgotten its own there."""
    back = tmp_path / "back.py"
    back.write_text(
        "import os, signal\n"
        "def end(*_):\n"
        "    signal.signal(signal.SIGTTOU, signal.SIG_IGN); os.tcsetpgrp(1, os.getppid()); os._exit(0)\n"
        "signal.signal(signal.SIGINT, end)\n"
        "print('ready', flush=True); signal.pause(); signal.pause()\n"
    )
    forgets = "sh -c 'trap \"trap - INT\" INT; while :; do sleep 0.1; done'"
    for _ in range(2):
        seen = sh.talk(f"{forgets} | python3 {back}", "ready")
        assert seen.expect_string == "ready"
        sh.interrupt()
        sh.gives("echo out", "out\n")


@pytest.mark.parametrize("prompt", ["PS1", "PS0", "OTHER"])
def test_a_reader_that_a_short_command_leaves_behind_takes_nothing(sh: Shell, prompt: str) -> None:
    """Neither of the next command nor, where the prompts are gone, of the question how this one has ended."""
    for _ in range(3):
        sh.gives(f"{prompt}=; (exec 3<&0; read -rn1 <&3 2>/dev/null & sleep .005; exit 3)", "", 3)  # EIO if late
        sh.gives("echo whole", "whole\n")


@pytest.mark.parametrize("pattern", ["PAT", r"P\w\w"])
def test_the_output_ends_where_the_match_begins(sh: Shell, pattern: str) -> None:
    """However the output is cut, and whether or not the command has ended when the match is seen."""
    text = r"aaa PAT bbb\n"
    pieces = [f"printf '{text[:i]}'; sleep 0.01; printf '{text[i:]}'; sleep 0.0{i % 3}; (exit 3)" for i in range(12)]
    for command in [*pieces, *["printf 'aaa PAT bbb'; (exit 3)"] * 20]:
        seen = sh.run(command, expect=[pattern])
        assert (seen.output, seen.expect_string) == ("aaa ", pattern) and seen.exit_code in (3, None), command
    sh.synced()


def test_what_comes_behind_a_match_begins_the_next_answer(sh: Shell) -> None:
    """It is a program's last prompt, or what it prints in between; patterns are searched for in what is new."""
    sh.talk("bash -c 'echo a PAT b PAT; read x; echo got $x PAT c; read y; echo $y'", "PAT")
    assert (sh.talk("one", "PAT").output, sh.talk("two").output) == ("b PAT\ngot one", "c\ntwo")


@pytest.mark.idle
def test_the_code_after_a_match_is_waited_for(sh: Shell) -> None:
    """As long as SWE-ReX waits for it: 0.2 s where no code is raised."""
    for delay in ("0", "0.01", "0.05") * 20:
        seen = sh.run(f"printf 'aaa PAT bbb'; sleep {delay}; (exit 3)", expect=["PAT"])
        assert (seen.output, seen.exit_code) == ("aaa ", 3)


def test_the_code_after_a_match_is_the_commands_own(sh: Shell, gate: Gate) -> None:
    """Another command waits for this one's end: it does not begin before the exit code is known."""

    async def both() -> None:
        first = asyncio.ensure_future(sh.go(f"printf 'aaa PAT bbb'; {gate.pass_}; (exit 3)", expect=["PAT"]))
        second = asyncio.ensure_future(sh.go("echo second; (exit 5)"))
        seen = await first
        assert (seen.output, seen.exit_code) == ("aaa ", None)
        await gate.is_reached()
        assert not second.done()
        gate.open()
        seen = await second
        assert (seen.output, seen.exit_code) == ("second\n", 5)

    sh.wait(both())
    seen = sh.run("echo PAT; exit 4", expect=["PAT"])
    assert (seen.output, seen.exit_code) == ("", None)
    sh.ended = True


def test_a_timeout_while_the_syntax_is_checked(sh: Shell) -> None:
    """It is not said to have waited for an earlier command."""
    with pytest.raises(CommandTimeoutError, match="syntax") as caught:
        sh.run("coproc cat; wait", 0.0001)
    assert not isinstance(caught.value, SessionBusyError)
