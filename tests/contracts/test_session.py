"""Sessions: state that lasts, answers that are the command's own, timeouts, interrupts, streams, and ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from swerex_c.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    InvalidInputError,
    NoExitCodeError,
    NonZeroExitCodeError,
    SessionBusyError,
    SessionDiedError,
    SessionDoesNotExistError,
    SessionExistsError,
    SwerexException,
)
from tests.support.targets import ALL, DEADLINE, Session, Target, seconds, token
from tests.support.wait import cancel, doubled, until_async

wrong = pytest.mark.wrong_in_original

Steps = list[tuple[str, str | None, int]]
"""Commands, each with its output (None: any) and its exit code."""

SHORT = 0.2
"""Timeout of commands that do not end before it."""


def rows(table: dict[str, Any], wrong_in_original: dict[str, str]) -> list[Any]:
    """Return the parameters of a table."""
    return [
        pytest.param(row, id=name, marks=[wrong(wrong_in_original[name])] if name in wrong_in_original else [])
        for name, row in table.items()
    ]


STATE: dict[str, Steps] = {
    "directory": [("cd /", "", 0), ("pwd; echo $OLDPWD | grep -c .", "/\n1\n", 0)],
    "variable": [("x='a  b'; y=1", "", 0), ('echo "$x" $y; unset x', "a  b 1\n", 0), ('echo "$x"', "\n", 0)],
    "exported variable": [("export SWX_X='a b'", "", 0), ("bash -c 'echo \"$SWX_X\"'", "a b\n", 0)],
    "array": [("a=(1 '2 3'); a+=(4)", "", 0), ('echo ${#a[@]} "${a[1]}"', "3 2 3\n", 0)],
    "function": [('f() { echo "<$1>"; return 7; }', "", 0), ("f 'a b'", "<a b>\n", 7)],
    "function of several lines": [("f() {\n  local x=$1\n\n  echo $((x * 2))\n}", "", 0), ("f 21", "42\n", 0)],
    "alias": [("alias greet='echo hello'", "", 0), ("greet", "hello\n", 0)],
    "options": [("set -f", "", 0), ("echo *", "*\n", 0), ("set +f", "", 0)],
    "umask": [("umask 027", "", 0), ("umask", "0027\n", 0)],
    "positional parameters": [("set -- a 'b c'", "", 0), ('echo $# "$2"', "2 b c\n", 0)],
    "status of the last command": [("(exit 5)", "", 5), ("echo $?", "5\n", 0), ("echo $?", "0\n", 0)],
    "background job": [
        ("sleep 1000 &", None, 0), ("jobs %1 | grep -c Running", "1\n", 0), ("kill %1; wait %1; echo $?", None, 0),
        ("jobs", None, 0), ("jobs | grep -c .", "0\n", 1),
    ],
    "descriptor": [("exec 5<<<'a line'", "", 0), ("cat <&5", "a line\n", 0)],
    "prompt": [("PS1='changed> '", "", 0), ("echo on", "on\n", 0), ("PS1= PS2= PROMPT_COMMAND=", "", 0)],
    "prompt command": [("PROMPT_COMMAND='echo never; PS1=mine'", None, 0), ("unset PROMPT_COMMAND", None, 0)],
    "trap": [("trap 'echo caught' USR1", "", 0), ("kill -USR1 $$", "caught\n", 0)],
    "history expansion": [("echo one", "one\n", 0), ("echo !! '!$' \"!e\"", "!! !$ !e\n", 0)],
}  # fmt: skip


@pytest.mark.parametrize(
    "steps",
    rows(
        STATE,
        {
            "status of the last command": "$? is 0",
            "prompt": "every later command times out",
            "prompt command": "the session does not answer",
            "history expansion": "a ! recalls history",
        },
    ),
)
async def test_state_lasts(session: Session, steps: Steps) -> None:
    for command, output, code in steps:
        await session.gives(command, output, code)


test_state_lasts.targets = ALL  # type: ignore[attr-defined]

ANSWERS: dict[str, tuple[str, str | None, int]] = {
    "nothing": ("true", "", 0),
    "empty command": ("", "", 0),
    "blank lines": ("\n  \n", "", 0),
    "comment": ("# nothing", "", 0),
    "line": ("echo 'a  b'", "a  b\n", 0),
    "several lines": ("echo 1\necho 2\n\n(exit 3)", "1\n2\n", 3),
    "no newline at the end": ("printf 'a b'", "a b", 0),
    "only newlines": ("printf '\\n\\n\\n'", "\n\n\n", 0),
    "blanks at both ends": ("printf '  a  '", "  a  ", 0),
    "standard error": ("echo out; echo err >&2; echo out", "out\nerr\nout\n", 0),
    "UTF-8": ("echo 'ä € 漢 😀'", "ä € 漢 😀\n", 0),
    "UTF-8 in pieces": ("printf '\\303'; printf '\\244\\n'", "ä\n", 0),
    "bytes that are no UTF-8": ("printf 'a\\377\\200b'", "a\\xff\\x80b", 0),
    "control characters": ("printf '\\001\\002\\037\\177'", "\x01\x02\x1f\x7f", 0),
    "NUL": ("printf 'a\\0b'", "a\0b", 0),
    "carriage returns": ("printf 'a\\r\\nb\\rc\\r'", "a\r\nb\rc\r", 0),
    "tab in the command": ("echo 'a\tb'", "a\tb\n", 0),
    "quotes": ('echo "it\'s" \'a "b"\' \\\\ "\\$x" `echo c`', 'it\'s a "b" \\ $x c\n', 0),
    "percent and backslash": ("echo '%s\\n%d' '\\x41'", "%s\\n%d \\x41\n", 0),
    "escape sequences": ("printf '\\033[31mred\\033[0m'", None, 0),
    "many lines": ("seq 20000", "".join(f"{i}\n" for i in range(1, 20001)), 0),
    "a long line": ("printf '%0100000d' 7", "7".rjust(100000, "0"), 0),
    "a long command": (f"x='{'y' * 100_000}'; echo ${{#x}}", "100000\n", 0),
    "a long word for a builtin": (f"echo {'z' * 150_000}", "z" * 150_000 + "\n", 0),
    "many lines in a command": ("".join(f"echo {i}\n" for i in range(500)), "".join(f"{i}\n" for i in range(500)), 0),
    "here-document": ("cat <<'E'\na $x\n\tb !c\n\n \\ E\nE", "a $x\n\tb !c\n\n \\ E\n", 0),
    "expanded here-document": ("x=5; cat <<E\n$x $((x + 1)) `echo 7`\nE", "5 6 7\n", 0),
    "here-document with tabs": ("cat <<-E\n\t\tin\n\tE", "in\n", 0),
    "two here-documents": ("cat <<A; cat <<B\n1\nA\n2\nB", "1\n2\n", 0),
    "here-document before a pipe": ("cat <<E | tr a-z A-Z\none\nE\necho two", "ONE\ntwo\n", 0),
    "a long here-document": (
        "cat <<'E'\n" + "".join(f"{i:05} ü\t'!\n" for i in range(6000)) + "E",
        "".join(f"{i:05} ü\t'!\n" for i in range(6000)),
        0,
    ),
    "command substitution": ("echo \"$(printf 'a\\n\\n')\"; echo $(echo $(echo deep))", "a\ndeep\n", 0),
    "loop": ("for i in 1 2 3; do\n  if [ $i = 2 ]; then continue; fi\n  echo $i\ndone", "1\n3\n", 0),
    "pipe status": ("false | true | (exit 3); echo ${PIPESTATUS[*]}", "1 0 3\n", 0),
    "pipe that breaks": ("yes | head -1; echo ${PIPESTATUS[0]}", "y\n141\n", 0),
    "subshell": ('(cd /; x=1; pwd); echo "<$x>"', "/\n<>\n", 0),
    "standard input is a terminal": ("[ -t 0 ] && [ -t 1 ] && [ -t 2 ] && echo terminal", "terminal\n", 0),
    "size of the terminal": ("stty size", "24 80\n", 0),
    "false": ("false", "", 1),
    "exit code 2": ("(exit 2)", "", 2),
    "exit code 126": ("(exit 126)", "", 126),
    "exit code 255": ("bash -c 'exit 255'", "", 255),
    "ended by a signal": ("sh -c 'kill -9 $$'", None, 137),
    "not found": ("no-such-program-at-all", None, 127),
    "not executable": ("/etc/passwd", None, 126),
    "exit code of the last command": ("false; true", "", 0),
    "exit code of a pipe": ("true | false", "", 1),
    "exit code of an and-list": ("false && echo no", "", 1),
    "what looks like a prompt": ("printf '$ \\n# \\n> \\n'; echo 'root@host:/# '", "$ \n# \n> \nroot@host:/# \n", 0),
    "what looks like the original's prompt": ("printf 'SHELLPS1PREFIX'; echo EXITCODESTART0EXITCODEEND", None, 0),
}


@pytest.mark.parametrize(
    "answer",
    rows(
        ANSWERS,
        {
            "tab in the command": "a TAB completes a file name",
            "a long word for a builtin": "E2BIG",
            "here-document": "a TAB completes a file name, and a ! recalls history",
            "here-document with tabs": "a TAB completes a file name",
            "two here-documents": "it is cut off",
            "here-document before a pipe": "it is cut off",
            "a long here-document": "a TAB completes a file name, and a ! recalls history",
            "pipe that breaks": "SIGPIPE is ignored",
        },
    ),
)
async def test_an_answer_is_the_commands_own(session: Session, answer: tuple[str, str | None, int]) -> None:
    await session.gives(*answer)


test_an_answer_is_the_commands_own.targets = ALL  # type: ignore[attr-defined]

# ---- checks


async def test_check_modes(session: Session) -> None:
    assert (await session.run("(exit 3)", check="silent")).exit_code == 3
    assert (await session.run("(exit 3)", check="ignore")).exit_code is None
    assert (await session.run("true", check="raise")).exit_code == 0
    with pytest.raises(NonZeroExitCodeError) as caught:
        await session.run("echo out; (exit 3)", check="raise", error_msg="it broke")
    failed = "Command 'echo out; (exit 3)' failed with exit code 3. Here is the output:\n'out\\n'"
    assert str(caught.value) == f"it broke: {failed}"
    with pytest.raises(NonZeroExitCodeError) as caught:
        await session.run("false", check="raise")
    assert str(caught.value) == "Command 'false' failed with exit code 1. Here is the output:\n''"
    await session.gives("echo $?", "1\n")


@pytest.mark.parametrize("command", [
    "if; fi", "echo (", "echo 'open", "done", "echo a; for; do", "f() {", "cat <(", "echo $((1 +", ")", "a && && b",
    "} ; echo stray; {", "echo a\n}\n{\necho b", "echo a; }",
])  # fmt: skip
async def test_a_syntax_error_is_raised_and_nothing_is_run(session: Session, command: str) -> None:
    """Also where braces around the text would make a command of it."""
    await session.run("false | true | (exit 3)")
    with pytest.raises(BashIncorrectSyntaxError) as caught:
        await session.run(f"x=ran; echo ran; {command}")
    extra = caught.value.extra_info
    assert {"bash_stdout", "bash_stderr"} <= set(extra) and extra["bash_stdout"] + extra["bash_stderr"]
    for part in ("while checking bash command \n", "\n---- Stderr ----\n", "\n---- Stdout ----\n"):
        assert part in str(caught.value)
    await session.gives('echo "${PIPESTATUS[@]}" "<$x>"', "1 0 3 <>\n")


# ---- timeouts, interrupts, cancellation


@pytest.mark.slice
async def test_a_timeout_has_the_output_so_far_and_the_session_goes_on(session: Session) -> None:
    await session.gives("x=kept", "")
    for timeout in doubled(SHORT):
        with pytest.raises(CommandTimeoutError, match="timeout after") as caught:
            await session.run("echo so far; printf part; sleep 1000", timeout=timeout)
        assert isinstance(caught.value, TimeoutError) and "so far\npart".startswith(caught.value.output)
        await session.interrupt()
        if caught.value.output == "so far\npart":
            break
    await session.gives("echo $? $x", "130 kept\n")


async def test_a_busy_session_takes_no_command(session: Session) -> None:
    await session.begin("sleep 1000")
    with pytest.raises(SessionBusyError):
        await session.run("echo never", timeout=SHORT)
    await session.interrupt()
    await session.gives("echo next", "next\n")


@pytest.mark.parametrize("command", [
    "cat", "read -r line", "while :; do :; done", "sleep 1000 | cat", "(sleep 1000; echo no)",
    "bash -c 'trap \"\" INT; while :; do sleep 1; done'", "trap '' INT; sleep 1000", "cat | cat",
    "bash -c 'cat; echo more'", "bash -c 'exec 3<&0 2>/dev/null; read -r x <&3 & exec sleep 1000'",
])  # fmt: skip
async def test_an_interrupt_ends_what_runs(session: Session, command: str) -> None:
    await session.gives("x=kept", "")
    await session.begin(command)
    session.ended = True
    await session.interrupt(**({"timeout": SHORT, "n_retry": 2} if "trap" in command else {}))
    session.ended = False
    await session.gives("trap - INT; echo $x next", "kept next\n")
    await session.gives("read -r x <<<'a line'; echo $x", "a line\n")


async def test_an_interrupt_without_a_command_changes_nothing(session: Session) -> None:
    await session.gives("x=kept; (exit 4)", "", 4)
    await session.interrupt()
    await session.gives("echo $x", "kept\n")


async def test_no_output_timeout(session: Session) -> None:
    chatty = "for i in 1 2 3 4 5; do echo $i; done"
    await session.gives(chatty, "1\n2\n3\n4\n5\n", no_output_timeout=DEADLINE)
    with pytest.raises(CommandTimeoutError):
        await session.run("echo one; sleep 1000", no_output_timeout=SHORT)
    await session.interrupt()


async def test_a_cancelled_command_is_interrupted(session: Session, target: Target) -> None:
    number = seconds()
    running = asyncio.ensure_future(session.run(f"sleep {number}"))
    await target.until_sleeping(number, 1)
    await cancel(running)
    await session.interrupt()
    await session.gives("echo next", "next\n")
    await target.until_sleeping(number, 0)


async def test_commands_of_a_session_wait_for_each_other(session: Session, target: Target) -> None:
    """Also one that is cancelled while it waits: it never begins."""
    mark = target.new()
    first = asyncio.ensure_future(session.run(f"until [ -e {mark} ]; do sleep 0.05; done; echo 0"))
    waiting = [asyncio.ensure_future(session.run(f"echo {i}")) for i in range(1, 6)]
    never = asyncio.ensure_future(session.run(f"touch {mark}.never"))
    await asyncio.sleep(0)
    never.cancel()
    await target.says(["touch", mark])
    assert [said.output for said in await asyncio.gather(first, *waiting)] == [f"{i}\n" for i in range(6)]
    await session.gives(f"[ -e {mark}.never ]", "", 1)


# ---- programs that are talked to


async def test_expect_ends_the_action_before_the_program(session: Session) -> None:
    talk = 'while read -p \'what? \' -r line; do echo "<$line>"; [ "$line" = quit ] && break; done'
    seen = await session.run(talk, is_interactive_command=True, expect=["what\\? "])
    assert (seen.output, seen.expect_string) == ("", "what\\? ")
    for line in ("one", "two  words"):
        seen = await session.run(line, is_interactive_command=True, expect=["never", "what\\? "])
        assert (seen.output.splitlines()[-1], seen.expect_string) == (f"<{line}>", "what\\? ")
    await session.run("quit", is_interactive_quit=True)
    await session.gives("echo on", "on\n")


@pytest.mark.slice
async def test_an_interactive_program_beside_a_job(session: Session) -> None:
    await session.run("sleep 1000 &")
    for _ in range(20):
        seen = await session.run(
            "sh -c 'printf ready; read x; echo got $x'", is_interactive_command=True, expect=["ready"]
        )
        assert seen.expect_string == "ready"
        seen = await session.run("a line", is_interactive_quit=True)
        assert seen.output.strip() == "got a line"


async def test_expect_of_a_command_that_goes_on(session: Session) -> None:
    seen = await session.run("echo up; sleep 1000", expect=["up\n"], check="ignore")
    assert (seen.output, seen.expect_string, seen.exit_code) == ("", "up\n", None)
    await session.interrupt()
    with pytest.raises(NoExitCodeError):
        await session.run("echo up; sleep 1000", expect=["up\n"], check="raise")
    await session.interrupt()
    seen = await session.run("echo other; (exit 3)", expect=["up"])
    assert (seen.output, seen.exit_code) == ("other\n", 3)


async def test_no_key_is_the_clients(session: Session) -> None:
    """Clients of engines and hosts have keys of their own, or hold back what may be the beginning of one."""
    await session.begin("IFS= read -r line; printf '<%q>' \"$line\"")
    seen = await session.run("~.a\x10\x11b", is_interactive_quit=True)
    assert seen.output.replace(r"\021", "").endswith(r"<$'~.a\020b'>")  # ^Q is the terminal's own: it goes on


# ---- streams


async def test_a_stream_has_all_output_and_the_observation(session: Session, target: Target) -> None:
    pieces, seen = await session.stream("seq 30000; echo ä; (exit 3)")
    whole = "".join(f"{i}\n" for i in range(1, 30001)) + "ä\n"
    assert ("".join(pieces), seen.output, seen.exit_code) == (whole, whole, 3)
    assert await session.stream("true") == ([], await session.run("true"))
    with pytest.raises(NonZeroExitCodeError):
        await session.stream("echo a; false", check="raise")
    with pytest.raises(BashIncorrectSyntaxError):
        await session.stream("if")
    with pytest.raises(SessionDoesNotExistError):
        await Session(target.runtime, "none").stream("true")


async def test_a_stream_yields_before_the_end(session: Session, target: Target) -> None:
    """The command ends when its first line has been received; without live streams all of it comes in one piece."""
    mark = target.new()
    wait = f"until [ -e {mark} ]; do sleep 0.05; done" if target.live else ":"
    items = target.runtime.stream_in_session(session.action(f"echo first; {wait}; echo second"))
    first = await asyncio.wait_for(anext(items), DEADLINE)
    await target.says(["touch", mark])
    rest = [item async for item in items]
    wanted = "first\n" if target.live else "first\nsecond\n"
    assert (first, rest[-1].output) == (wanted, "first\nsecond\n")  # type: ignore[union-attr]


async def test_a_stream_that_times_out(session: Session, target: Target) -> None:
    pieces: list[Any] = []
    with pytest.raises(CommandTimeoutError) as caught:
        async for item in target.runtime.stream_in_session(session.action("echo a; sleep 1000", timeout=SHORT)):
            pieces.append(item)
    assert "".join(pieces) == (caught.value.output if target.live else "")
    assert caught.value.output in ("", "a\n")
    await session.interrupt()


# ---- several sessions


async def test_sessions_have_their_own_state_and_do_not_wait_for_each_other(session: Session, target: Target) -> None:
    mark = target.new()
    others = [Session(target.runtime, patience=target.patience) for _ in range(3)]
    await asyncio.gather(*(each.create() for each in others))
    await asyncio.gather(*(each.gives(f"x={each.name}; cd /", "") for each in others))
    blocked = asyncio.ensure_future(session.run(f"until [ -e {mark} ]; do sleep 0.05; done; echo $x."))
    await asyncio.gather(*(each.gives("echo $x; pwd", f"{each.name}\n/\n") for each in others))
    await others[0].gives(f"touch {mark}", "")
    assert (await blocked).output == ".\n"
    await asyncio.gather(*(each.close() for each in others))


async def test_names_of_sessions(session: Session, target: Target) -> None:
    with pytest.raises(SessionExistsError, match=f"session {session.name} already exists"):
        await Session(target.runtime, session.name).create()
    other = Session(target.runtime, f'o\'dd "näme"/{token()}', target.patience)
    for call in (other.run("true"), other.close(), other.interrupt()):
        with pytest.raises(SessionDoesNotExistError) as caught:
            await call
        assert isinstance(caught.value, ValueError) and isinstance(caught.value, SwerexException)
    await other.create()
    await other.gives("echo named", "named\n")
    await other.close()
    with pytest.raises(SessionDoesNotExistError):
        await other.run("true")
    await other.create()
    await other.close()


# ---- starts


async def test_the_request_of_a_session_is_seen_to(target: Target) -> None:
    root = target.new()
    odd = "a'b\"c\\d $x `y` !z ü\n\t"
    await target.says(["mkdir", "-p", f"{root}/a b"])
    name = "it's a\x03\x13\x15\x16\x1a\x7f file\n"  # also keys of a terminal
    source = f"{root}/a b/{name}"
    await target.says(["bash", "-c", "echo 'echo sourced; y=$SWX_ODD' >\"$0\"", source])
    session = Session(target.runtime, patience=target.patience)
    env = {"SWX_ODD": odd, "SWX_EMPTY": "", "SWX_ROOT": root}
    request = {"env": env, "cwd": f"{root}/a b", "rows": 50, "columns": 132}
    sources = [source, name, f"$SWX_ROOT/a b/{name}", f"${{SWX_ROOT}}/a b/{name}"]
    assert (await session.create(startup_source=sources, **request)).endswith("sourced\n" * 4)
    await session.gives('printf %s "$y|$SWX_ODD|${SWX_EMPTY-unset}"', f"{odd}|{odd}|")
    await session.gives("pwd; stty size", f"{root}/a b\n50 132\n")
    await session.close()


@pytest.mark.parametrize(
    "request_",
    [
        *({"cwd": name} for name in ("/no/such", "\0", "\ud800")),
        *({"startup_source": [name]} for name in ("/no/such", "\0", "\ud800")),
        *({"env": env} for env in ({"A=B": "c"}, {"A": "\0"}, {"A": "\ud800"})),
    ],
    ids=ascii,
)
async def test_a_session_that_cannot_be(target: Target, request_: dict[str, Any]) -> None:
    session = Session(target.runtime, patience=target.patience)
    with pytest.raises(InvalidInputError):
        await session.create(**request_)
    await session.create()
    await session.close()


@pytest.mark.parametrize(
    "action",
    [
        *({"command": "a\0b", "is_interactive_command": interactive} for interactive in (False, True)),
        *({name: -1} for name in ("timeout", "no_output_timeout")),
        *({"expect": [pattern]} for pattern in ("", "(")),
    ],
    ids=ascii,
)
async def test_a_command_that_cannot_be(session: Session, action: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError):
        await session.run(**{"command": "true", **action})


# ---- ends

DEATHS: dict[str, tuple[str, int]] = {
    "exit": ("exit 3", 3),
    "exit after output": ("echo bye; exit 0", 0),
    "errexit": ("set -e; echo bye; false; echo no", 1),
    "exec": ("exec sh -c 'echo bye; exit 9'", 9),
    "signal": ("kill -9 $$", 137),
}
"""Commands, each with the shell's exit code."""


BY_SSH = pytest.mark.known(29, "the end of a shell by a signal is told as the exit code 255", ("ssh",))
BY_KUBECTL = pytest.mark.known(29, "kubectl's words on an exit code other than 0 are in the output", ("kubectl",))


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[BY_SSH] * (name == "signal") + [BY_KUBECTL] * (code != 0))
        for name, (_, code) in DEATHS.items()
    ],
)
async def test_a_command_that_ends_the_shell(session: Session, target: Target, name: str) -> None:
    session.ended = True
    command, code = DEATHS[name]
    seen = await session.run(command)
    output = seen.output.removesuffix("exit\n")  # an interactive shell's farewell
    assert (seen.exit_code, output) == (code, "bye\n" if "bye" in command else "") and seen.failure_reason
    for _ in range(2):
        with pytest.raises(SessionDiedError) as caught:
            await session.run("true")
        how = caught.value.exit_code, caught.value.signal  # a client tells a signal by an exit code
        assert how == (code, None) or (name, how) == ("signal", (None, 9))
    with pytest.raises(SessionDiedError):
        await session.interrupt()
    await session.close()
    await session.create()
    await session.synced()
    await session.close()


LEFT = (
    "sleep {} &", "setsid sleep {} &", "(trap '' HUP; exec sleep {}) & disown", "(setsid sleep {} &)",
    "env -i setsid $(type -P sleep) {} & disown -a", "bash -c 'trap \"\" HUP TERM INT; sleep {} & wait' &",
    "coproc sleep {}", "(exec -a 'a ) R 1 1 (' bash -c 'sleep {}; :' &)", "(while :; do sleep {}; done &)",
)  # fmt: skip


async def test_close_ends_everything_that_the_session_started(session: Session, target: Target) -> None:
    """And nothing of another session."""
    number, others = seconds(), seconds()
    other = Session(target.runtime, patience=target.patience)
    await other.create()
    await other.run(f"sleep {others} &")
    for command in LEFT:
        await session.run(command.format(number))
    await target.until_sleeping(number, len(LEFT))
    session.ended = True
    await session.close()
    assert await target.sleeping(number) == 0
    assert await target.sleeping(others) == 1
    await other.close()
    assert await target.sleeping(others) == 0


async def test_close_under_a_command(session: Session, target: Target) -> None:
    """It ends with an error, and so does what stands in line behind it."""
    number = seconds()
    calls = [asyncio.ensure_future(session.run(command)) for command in (f"sleep {number}", "echo never")]
    await target.until_sleeping(number, 1)
    session.ended = True
    await session.close()
    for call in calls:
        with pytest.raises(SwerexException):
            await asyncio.wait_for(call, DEADLINE)
    await until_async(lambda: target.is_sleeping(number, 0))
