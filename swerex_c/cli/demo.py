"""Demonstrate a session step by step: `python -m swerex_c.cli.demo`.

Each step states the expected result. The demo exits with 1 if a result differs.
"""

from __future__ import annotations

import asyncio
import shlex
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from swerex_c.exceptions import CommandTimeoutError, SwerexException
from swerex_c.models import BashAction, BashInterruptAction, CreateBashSessionRequest
from swerex_c.runtime.local import LocalRuntime
from swerex_c.utils.child_signal import restore_child_signal
from swerex_c.utils.visible import visible

__all__ = ["main"]

_LONGEST_SHOWN = 80
"""Characters of a text above which only its beginning is shown."""

_LONGEST_LINE = 71
"""Characters of a line to print, which fit 80 columns behind the indentation."""

_BIG = 10_000_000


@dataclass
class Step:
    """One action in the session, and its expected result."""

    title: str
    action: BashAction | BashInterruptAction
    output: str | Callable[[str], bool]
    code: int | None = 0
    error: str = ""


def _run(command: str, **more: Any) -> BashAction:
    return BashAction(command=command, check="silent", timeout=more.pop("timeout", 60.0), **more)


def _steps(directory: str) -> list[Step]:
    here_document = "cat > notes.txt <<'END'\nfirst $HOME\n\tsecond `line`\nEND\nwc -l < notes.txt"
    python = f"PYTHON_BASIC_REPL=1 PYTHONSTARTUP= TERM=dumb {shlex.quote(sys.executable)} -q"
    asks: dict[str, Any] = {"is_interactive_command": True, "expect": [">>> "]}
    big = f"head -c {_BIG} /dev/zero | tr '\\0' x"
    forged = "printf '%s\\n' \"$PS1\" SHELLPS1PREFIX"
    return [
        Step("change the directory", _run(f"cd {directory}"), ""),
        Step("the change persists", _run("pwd"), directory + "\n"),
        Step("set a variable", _run("export GREETING='hello from C'"), ""),
        Step("the variable persists", _run('echo "$GREETING"'), "hello from C\n"),
        Step("a here-document", _run(here_document), "2\n"),
        Step("read the file it wrote", _run("cat notes.txt"), "first $HOME\n\tsecond `line`\n"),
        Step("a command that fails", _run("ls no-such-file 2>/dev/null"), "", 2),
        Step("its exit code is kept", _run("echo $?"), "2\n"),
        Step("a timeout keeps the output", _run("echo one; sleep 60; echo two", timeout=0.5), "one\n", None, "timeout"),
        Step("interrupt the running command", BashInterruptAction(), lambda output: "two" not in output),
        Step("the session still works", _run("echo ready"), "ready\n"),
        Step("start an interactive program", _run(python, **asks), ""),
        Step("send it a line", _run("6 * 7", **asks), "42"),
        Step("quit it", _run("exit()", is_interactive_quit=True), lambda output: True),
        Step("10 MB of output", _run(big), lambda output: output == "x" * _BIG),
        Step("printing the prompt ends no command", _run(forged), lambda output: output.endswith("\nSHELLPS1PREFIX\n")),
    ]


def _cut(text: str) -> str:
    if len(text) > _LONGEST_SHOWN:
        return visible(text[: _LONGEST_SHOWN // 2]) + f" ... ({len(text):,} characters)"
    return visible(text.rstrip("\n").replace("\t", "    "))


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds < 0.1 else f"{seconds:.2f} s"


async def _do(runtime: LocalRuntime, step: Step) -> bool:
    """Do a step, show it, and return whether it gave the expected result."""
    begin = time.perf_counter()
    output, code, error = "", None, ""
    try:
        answer = await runtime.run_in_session(step.action)
        output, code = answer.output, answer.exit_code
    except CommandTimeoutError as e:
        output, error = e.output, "timeout"
    except SwerexException as e:
        error = f"{type(e).__name__}: {e}"
    spent = _time(time.perf_counter() - begin)
    right = output == step.output if isinstance(step.output, str) else step.output(output)
    right = right and (code, error) == (step.code, step.error)
    how = f"{error.partition(':')[0]}, " if error else "" if code is None else f"exit code {code}, "
    print(f"{'ok' if right else 'WRONG':5}  {step.title} ({how}{spent})")
    command = "(interrupt)" if isinstance(step.action, BashInterruptAction) else step.action.command
    for sign, text in (("$", _cut(command)), (" ", _cut(output or error.removeprefix("timeout")))):
        for line in text.splitlines():
            shown = line if len(line) <= _LONGEST_LINE else line[: _LONGEST_LINE - 4] + " ..."
            print(f"       {sign} {shown}".rstrip())
            sign = ">" if sign == "$" else sign
    return right


async def _run_steps(directory: str) -> list[bool]:
    async with LocalRuntime() as runtime:
        await runtime.create_session(CreateBashSessionRequest())
        return [await _do(runtime, step) for step in _steps(directory)]


def main() -> int:
    """Run the demo; return 0 if all results are as expected, else 1."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="swerex-c-demo-") as directory:
        try:
            right = asyncio.run(_run_steps(directory))
        except SwerexException as e:
            print(f"Cannot create a session: {e}\nRun `swerex-c doctor` to see what is missing.", file=sys.stderr)
            return 1
    seconds = time.perf_counter() - begin
    print(f"\n{sum(right)} of {len(right)} steps gave the expected result, in {seconds:.1f} s.")
    return 0 if all(right) else 1


if __name__ == "__main__":
    restore_child_signal()
    sys.exit(main())
