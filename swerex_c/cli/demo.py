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
from typing import Any, NamedTuple

from swerex_c.exceptions import CommandTimeoutError, SwerexException
from swerex_c.models import BashAction, BashInterruptAction, CreateBashSessionRequest
from swerex_c.runtime.local import LocalRuntime
from swerex_c.utils.child_signal import restore_child_signal
from swerex_c.utils.visible import visible

__all__ = ["main"]

_LONGEST_LINE = 71
"""Characters of a line to print, which fit 80 columns behind the indentation."""

_BIG = 10_000_000


class Step(NamedTuple):
    """One action in the session, and its expected result."""

    title: str
    action: BashAction | BashInterruptAction
    output: str | Callable[[str], bool]
    result: str = "exit code 0"


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
        Step("a command that fails", _run("ls no-such-file 2>/dev/null"), "", "exit code 2"),
        Step("its exit code is kept", _run("echo $?"), "2\n"),
        Step("a timeout keeps the output", _run("echo one; sleep 60; echo two", timeout=0.5), "one\n", "timeout"),
        Step("interrupt the running command", BashInterruptAction(), lambda output: "two" not in output),
        Step("the session still works", _run("echo ready"), "ready\n"),
        Step("start an interactive program", _run(python, **asks), ""),
        Step("send it a line", _run("6 * 7", **asks), "42"),
        Step("quit it", _run("exit()", is_interactive_quit=True), lambda output: True),
        Step("10 MB of output", _run(big), "x" * _BIG),
        Step("printing the prompt ends no command", _run(forged), lambda output: output.endswith("\nSHELLPS1PREFIX\n")),
    ]


def _lines(text: str) -> list[str]:
    """Return the lines of a text as they are printed: control characters are visible, and long lines are cut."""
    lines = visible(text.replace("\t", "    ")).splitlines()
    return [it if len(it) <= _LONGEST_LINE else f"{it[:40]} ... ({len(it):,} characters)" for it in lines]


async def _do(runtime: LocalRuntime, step: Step) -> bool:
    """Do a step, show it, and return whether it gave the expected result."""
    begin = time.perf_counter()
    try:
        answer = await runtime.run_in_session(step.action)
        output, result = answer.output, f"exit code {answer.exit_code}"
    except CommandTimeoutError as e:
        output, result = e.output, "timeout"
    except SwerexException as e:
        output, result = str(e), type(e).__name__
    spent = time.perf_counter() - begin
    right = output == step.output if isinstance(step.output, str) else step.output(output)
    right = right and result == step.result
    shown_time = f"{spent * 1e3:.2f} ms" if spent < 0.1 else f"{spent:.2f} s"
    print(f"{'ok' if right else 'WRONG':5}  {step.title} ({result}, {shown_time})")
    command = "(interrupt)" if isinstance(step.action, BashInterruptAction) else step.action.command
    print("       $ " + "\n       > ".join(_lines(command)))
    for line in _lines(output):
        print(f"         {line}".rstrip())
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
