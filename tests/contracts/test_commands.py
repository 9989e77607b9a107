"""Commands outside of sessions: `execute` as `subprocess.run` would, and nothing of it left."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from swerex_c.exceptions import CommandTimeoutError, InvalidInputError, NonZeroExitCodeError, SwerexException
from swerex_c.models import Command
from tests.contracts.test_program import ODD
from tests.support.results import WrongAnswer
from tests.support.targets import ALL, DEADLINE, Target, seconds, token
from tests.support.wait import cancel, doubled

TARGETS = [*(name for name in ALL if name != "original"), "cat", "no-cat"]

MEGABYTE = 1 << 20

WORDS = [ODD, "", " ", "-x", "-n", "@", "\\", "\\x41", "\n", "*", "€", "%s", "x" * 100_000]

ANSWERS: dict[str, tuple[str | list[str], dict[str, Any], tuple[str, str, int]]] = {
    "streams apart": ("echo out; echo err >&2; echo out; exit 3", {}, ("out\nout\n", "err\n", 3)),
    "streams merged": (
        "for i in 1 2 3; do echo o$i; echo e$i >&2; done",
        {"merge_output_streams": True},
        ("o1\ne1\no2\ne2\no3\ne3\n", "", 0),
    ),
    "nothing": (["true"], {}, ("", "", 0)),
    "no newline at the end": ("printf 'a b'; printf err >&2", {}, ("a b", "err", 0)),
    "words": (["printf", "<%s>", *WORDS], {}, ("".join(f"<{word}>" for word in WORDS), "", 0)),
    "arguments of a shell's text": (['echo "$0 $1"', "zero", "one"], {"shell": True}, ("zero one\n", "", 0)),
    "UTF-8": ("echo 'ä € 漢 😀'", {}, ("ä € 漢 😀\n", "", 0)),
    "control characters": ("printf 'a\\tb\\r\\n\\033[31mred'", {}, ("a\tb\r\n\033[31mred", "", 0)),
    "half a character": ("printf 'x\\346\\274'", {}, ("x\\xe6\\xbc", "", 0)),
    "bytes": ("printf 'a\\000\\377\\n'; printf '\\200' >&2", {}, ("a\0\\xff\n", "\\x80", 0)),
    "standard input is at its end": (["cat"], {}, ("", "", 0)),
    "standard input of a shell is at its end": ("read x; echo $?", {}, ("1\n", "", 0)),
    "without an environment it is the runtime's own": ("echo ${PATH:+set}", {}, ("set\n", "", 0)),
    "descriptors": (["ls", "/proc/self/fd"], {}, ("0\n1\n2\n3\n", "", 0)),  # the fourth is that of the directory
    "output that is left open": ("(sleep 5 >&2) & printf out; exec 1>&-; exit 3", {}, ("out", "", 3)),
    "directory": (["pwd"], {"cwd": "/"}, ("/\n", "", 0)),
    "no terminal": ("[ -t 0 ] || [ -t 1 ] || [ -t 2 ] || echo none", {}, ("none\n", "", 0)),
    "here-document": ("cat <<'E'\na $x\n\tb\nE\necho c", {}, ("a $x\n\tb\nc\n", "", 0)),
    "a long text": (f": {'y' * 300_000}; echo done", {}, ("done\n", "", 0)),
    "much output": (f"head -c {3 * MEGABYTE} /dev/zero | tr '\\0' x", {}, ("x" * 3 * MEGABYTE, "", 0)),
    "much of both": (
        f"zeros() {{ head -c {MEGABYTE} /dev/zero | tr '\\0' $1; }}; for i in 1 2 3; do zeros o; zeros e >&2; done",
        {},
        ("o" * 3 * MEGABYTE, "e" * 3 * MEGABYTE, 0),
    ),
    "not found by the shell": ("no-such-program-at-all 2>/dev/null", {}, ("", "", 127)),
    "signal": ("kill -9 $$", {}, ("", "", -9)),
    "signal of a program": (["sh", "-c", "kill -TERM $$"], {}, ("", "", -15)),
    "signal of the group": ("kill -INT 0", {}, ("", "", -2)),
    "a trap of SIGCHLD": (["bash", "-c", "trap '' CHLD; exit 255"], {}, ("", "", 255)),
    "stopped and continued": ("(sleep 0.2; kill -CONT $$) & kill -STOP $$; exit 5", {}, ("", "", 5)),
    **{f"exit code {code}": (f"exit {code}", {}, ("", "", code)) for code in (1, 2, 125, 126, 127, 137, 143, 255)},
}


@pytest.mark.parametrize("name", ANSWERS)
async def test_an_answer_is_the_commands_own(target: Target, name: str) -> None:
    command, fields, wanted = ANSWERS[name]
    answer = await target.execute(command, **fields)
    gave = answer.stdout, answer.stderr, answer.exit_code
    if gave != wanted:
        raise WrongAnswer(f"{command!r:.200} gave {gave!r:.2000}, not {wanted!r:.2000}")


@pytest.mark.slice
async def test_an_answer_after_another_has_nothing_of_it(target: Target) -> None:
    """Neither what a child of the earlier one prints, nor its directory or variables."""
    number = seconds()
    noisy = "trap '' PIPE; while :; do echo noise; echo noise >&2; done"
    left = f"({noisy}) & (sleep 0.05; echo late) & setsid sh -c 'trap \"\" PIPE; echo late; exec sleep {number}' &"
    answer = await target.execute(f"{left} cd /; x=1; echo mine")
    assert answer.stdout.startswith(("mine\n", "noise\n", "late\n")) and answer.exit_code == 0
    for count in range(15):
        answer = await target.execute(f'echo {count} "<$x>"; echo e{count} >&2; exit {count}')
        assert (answer.stdout, answer.stderr, answer.exit_code) == (f"{count} <>\n", f"e{count}\n", count)


ENVIRONMENTS: dict[str, dict[str, str]] = {
    "empty": {},
    "plain": {"A": "x y", "B": ""},
    "odd values": {"A": "a'b\"c\\d $x `y` !z %s ü\n\t\x01", "B": "=", "C": " "},
    "odd names": {"a.b": "2", "-i": "", "BASH_FUNC_f%%": "() { :; }"},
    "what a shell sets": {"UID": "5", "SHLVL": "7", "_": "u", "PWD": "p", "IFS": "1", "RANDOM": "x", "LC_ALL": "xx"},
}


@pytest.mark.parametrize("name", ENVIRONMENTS)
async def test_the_environment_is_complete(target: Target, name: str) -> None:
    """`env` is all that a program has, and nothing in it is changed."""
    program = (await target.says("command -v env")).strip()
    environment = ENVIRONMENTS[name]
    answer = await target.execute([program, "-0"], env=environment)
    assert sorted(answer.stdout.split("\0")) == sorted(["", *(f"{key}={value}" for key, value in environment.items())])


# ---- errors


async def test_check(target: Target) -> None:
    assert (await target.execute("exit 3", check=False)).exit_code == 3
    assert (await target.execute("true", check=True)).exit_code == 0
    with pytest.raises(NonZeroExitCodeError) as caught:
        await target.execute("echo out; echo err >&2; exit 3", check=True, error_msg="it broke")
    assert str(caught.value) == (
        "it broke: Command 'echo out; echo err >&2; exit 3' failed with exit code 3. "
        "Stdout:\n'out\\n'\nStderr:\n'err\\n'"
    )
    with pytest.raises(NonZeroExitCodeError) as caught:
        await target.execute(["false"], check=True)
    assert str(caught.value) == "Command ['false'] failed with exit code 1. Stdout:\n''\nStderr:\n''"


CANNOT_BE_RUN: dict[str, tuple[list[str], dict[str, Any], type[OSError], str]] = {
    "no program": (["no-such-program-at-all"], {}, FileNotFoundError, "no-such-program-at-all"),
    "no name": ([""], {}, FileNotFoundError, ""),
    "no program at a path": (["/no/such/program"], {}, FileNotFoundError, "/no/such/program"),
    "not executable": (["/etc/passwd"], {}, PermissionError, "/etc/passwd"),
    "a directory": (["/etc"], {}, PermissionError, "/etc"),
    "below a file": (["/etc/passwd/x"], {}, NotADirectoryError, "/etc/passwd/x"),
    "no directory to run in": (["true"], {"cwd": "/no/such/directory"}, FileNotFoundError, "/no/such/directory"),
    "a directory without a name": (["true"], {"cwd": ""}, FileNotFoundError, ""),
    "a file to run in": (["true"], {"cwd": "/etc/passwd"}, NotADirectoryError, "/etc/passwd"),
}


@pytest.mark.parametrize("name", CANNOT_BE_RUN)
async def test_what_cannot_be_run_raises_an_os_error(target: Target, name: str) -> None:
    command, fields, kind, path = CANNOT_BE_RUN[name]
    with pytest.raises(OSError) as caught:
        await target.execute(command, **fields)
    assert (type(caught.value), caught.value.filename, bool(caught.value.errno)) == (kind, path, True)


@pytest.mark.parametrize(("text", "kind"), [("#!/no/such\n", FileNotFoundError), ("echo hi\n", OSError), ("", OSError)])
async def test_a_file_that_is_no_program_raises_an_os_error(target: Target, text: str, kind: type[OSError]) -> None:
    path = target.new()
    await target.says(["sh", "-c", 'printf %s "$1" >"$0"; chmod 755 "$0"', path, text])
    with pytest.raises(kind) as caught:
        await target.execute([path])
    assert (type(caught.value), caught.value.filename, bool(caught.value.errno)) == (kind, path, True)


INVALID: dict[str, dict[str, Any]] = {
    "no words": {"command": []},
    "NUL in the command": {"command": "a\0b"},
    "NUL in the directory": {"cwd": "\0"},
    "a directory that is no text": {"cwd": "\ud800"},
    "name of a variable": {"env": {"A=B": "c"}},
    "NUL in a variable": {"env": {"A": "\0"}},
    "negative timeout": {"timeout": -1},
    "a word that is too long": {"command": ["true", "x" * 200_000]},
    "an environment that is too long": {"env": {"A": "x" * 3_000_000}},
}


@pytest.mark.parametrize("name", INVALID)
async def test_an_invalid_request_is_refused(target: Target, name: str) -> None:
    with pytest.raises(InvalidInputError, match="^(?!.*cannot be run)"):  # which is not one sentence with the reason
        await target.runtime.execute(Command(**{"command": ["true"], **INVALID[name]}))


# ---- timeouts and cancellation

TREES: dict[str, tuple[str, int]] = {
    "child": ("sleep {0}; echo late", 1),
    "background": ("sleep {0} & sleep {0}", 2),
    "own session": ("setsid sleep {0} & sleep {0}", 2),
    "own session and no parent": ("(setsid sleep {0} &); sleep {0}", 2),
    "no environment": ("env -i setsid $(command -v sleep) {0} & sleep {0}", 2),
    "signals ignored": ("trap '' TERM INT HUP; sleep {0} & sleep {0}", 2),
    "behind a pipe": ("sleep {0} | cat", 1),
}


@pytest.mark.parametrize("name", TREES)
async def test_a_timeout_ends_the_whole_tree(target: Target, name: str) -> None:
    number = seconds()
    command, _ = TREES[name]
    slow = f"printf 'so far\\377'; {command.format(number)}"
    for timeout in doubled(0.3):
        with pytest.raises(CommandTimeoutError, match=f"{timeout}") as caught:
            await target.execute(slow, timeout=timeout)
        assert caught.value.output in ("", "so far\\xff")
        if caught.value.output:
            break
    assert await target.sleeping(number) == 0


@pytest.mark.parametrize("name", TREES)
async def test_a_cancellation_ends_the_whole_tree(target: Target, name: str) -> None:
    number = seconds()
    command, count = TREES[name]
    running = asyncio.ensure_future(target.execute(command.format(number), timeout=10 * DEADLINE))
    await target.until_sleeping(number, count)
    await cancel(running)
    await target.until_sleeping(number, 0)


async def test_an_end_does_not_wait_for_what_runs_on(target: Target) -> None:
    """A command that has ended leaves its children alone, and a timeout spares what earlier commands left."""
    number, file = seconds(), target.new()
    left = f"sleep {number} & echo $! >{file}; (exec >/dev/null 2>&1; exec sleep {number}) & echo $! >>{file}"
    answer = await target.execute(f"{left}; echo mine")
    assert (answer.stdout, answer.exit_code) == ("mine\n", 0)
    await target.until_sleeping(number, 2)
    with pytest.raises(CommandTimeoutError):
        await target.execute("sleep 1000", timeout=0.2)
    assert await target.sleeping(number) == 2
    await target.says(f"kill -9 $(cat {file})")
    await target.until_sleeping(number, 0)


async def test_many_at_once(target: Target) -> None:
    """None waits for another: two of them need each other."""
    mark, text = target.new(), token()
    waiting = f"until [ -e {mark} ]; do sleep 0.05; done; echo {text}"
    first = asyncio.ensure_future(target.execute(waiting))
    answers = await asyncio.gather(*(target.execute(f"echo {n}; echo e{n} >&2; exit {n}") for n in range(20)))
    assert [(a.stdout, a.stderr, a.exit_code) for a in answers] == [(f"{n}\n", f"e{n}\n", n) for n in range(20)]
    await target.says(["touch", mark])
    assert (await asyncio.wait_for(first, DEADLINE)).stdout == f"{text}\n"


async def test_one_failure_fails_no_other(target: Target) -> None:
    """Also a command that kills whatever is above it."""
    commands = ["exit 1", "kill -9 $$", "kill -9 0", "exec /no/such", "echo fine", "sleep 1000"]
    calls = [target.execute(command, timeout=0.3 if "1000" in command else DEADLINE) for command in commands]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    codes = [getattr(answer, "exit_code", type(answer)) for answer in answers]
    assert codes == [1, -9, -9, 127, 0, CommandTimeoutError]
    assert all(not isinstance(answer, BaseException) or isinstance(answer, SwerexException) for answer in answers)
    assert await target.says("echo next") == "next\n"
