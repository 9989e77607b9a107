"""Checks of a machine for sessions and deployments, for `swerex-c doctor`."""

from __future__ import annotations

import asyncio
import json
import os
import platform
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import typer

from swerex_c.cli.sessions import quiet_runtime
from swerex_c.exceptions import SwerexException
from swerex_c.utils.visible import visible

__all__ = ["examine"]

_PATIENCE = 10.0
"""Timeout in seconds for each program that is run."""


@dataclass(frozen=True)
class Finding:
    """The result of one check of the machine."""

    name: str
    value: str
    good: bool | None = None
    """True if the value is good; None if it is neither good nor bad."""

    note: str = ""
    """Explanation or consequence, for people."""

    needed: bool = False
    """True if sessions can run only if this is good."""


def examine(*, as_json: bool) -> bool:
    """Run all checks, print their findings as a table or as JSON, and return whether sessions can run.

    The checks start a few short programs and, as the last ones, sessions.
    """
    checks = (_package, _core, _bash, _machine, _clients, _swap, _sessions)
    findings = [finding for check in checks for finding in check()]
    can_run = all(finding.good for finding in findings if finding.needed)
    if as_json:
        data = [asdict(finding) for finding in findings]
        print(json.dumps({"ok": can_run, "findings": {it.pop("name"): it for it in data}}, indent=2))
        return can_run
    width = shutil.get_terminal_size((80, 24)).columns
    names = max(len(finding.name) for finding in findings)
    for finding in findings:
        told = visible(f"{finding.value}: {finding.note}" if finding.note else finding.value, one_line=True)
        first, *rest = textwrap.wrap(told, max(width - names - 7, 20), break_long_words=False, break_on_hyphens=False)
        typer.echo(f"{_sign(finding)}  {finding.name:{names}}  {first}")
        for line in rest:
            typer.echo(" " * (names + 7) + line)
    typer.echo("Sessions can run." if can_run else typer.style("Sessions cannot run.", fg="red"))
    return can_run


def _sign(finding: Finding) -> str:
    if finding.good is None:
        return "   "
    if finding.good:
        return typer.style("yes", fg="green")
    return typer.style("no ", fg="red" if finding.needed else "yellow")


def _package() -> Iterator[Finding]:
    from swerex_c._version import API_VERSION as api
    from swerex_c._version import __version__ as own

    yield Finding("swerex-c", own, note=f"SWE-ReX API {api}, in {Path(__file__).parent.parent}")
    version = f"{platform.python_implementation()} {platform.python_version()}"
    yield Finding("python", version, sys.version_info[:2] >= (3, 11), note=sys.executable, needed=True)


def _core() -> Iterator[Finding]:
    try:
        from swerex_c import _core as core
    except ImportError as error:
        yield Finding("core", "missing", False, f"The extension cannot be imported: {error}", needed=True)
        return
    yield Finding("core", Path(core.__file__).name, True, needed=True)
    runs = os.access(Path(core.__file__).with_name("_supervisor"), os.X_OK)
    note = "Commands end when their program is killed" if runs else "Commands may outlive a program that is killed"
    yield Finding("supervisor", "executable" if runs else "missing", runs, note)
    yield Finding("msgpack-c", core.msgpack_version)


def _bash() -> Iterator[Finding]:
    path = shutil.which("bash")
    if path is None:
        yield Finding("bash", "not found", False, "Install bash", needed=True)
        return
    version, _ = _ask([path, "-c", 'echo "$BASH_VERSION"'])
    numbers = re.match(r"(\d+)\.(\d+)", version)
    recent = numbers is not None and tuple(map(int, numbers.groups())) >= (4, 4)
    note = path if recent else f"{path}: 4.4 or later is needed"
    yield Finding("bash", version or "does not answer", recent, note, needed=True)


def _machine() -> Iterator[Finding]:
    yield Finding("kernel", f"{platform.system()} {platform.release()}", note=platform.machine())
    try:
        for descriptor in os.openpty():
            os.close(descriptor)
    except OSError as error:
        yield Finding("terminals", "none available", False, f"openpty: {error.strerror}", needed=True)
    else:
        yield Finding("terminals", "available", True, note="Each session needs one", needed=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    note = f"can be raised to {_limit(hard)}" if soft != hard else ""
    yield Finding("open files", f"at most {_limit(soft)}", soft == resource.RLIM_INFINITY or soft >= 1024, note)
    yield Finding("processes", f"at most {_limit(resource.getrlimit(resource.RLIMIT_NPROC)[0])}")


_CLIENTS = (
    ("docker", "--version", "DockerDeployment"),
    ("podman", "--version", 'DockerDeployment(container_runtime="podman")'),
    ("ssh", "-V", "SSHDeployment"),
    ("bwrap", "--version", "LocalDeployment(isolation=...)"),
    ("kubectl", "version --client", "KubectlBackend"),
)
"""Client programs of deployments and isolation: name, arguments for the version, and the class that needs it."""


def _clients() -> Iterator[Finding]:
    for name, asks, user in _CLIENTS:
        path = shutil.which(name)
        if path is None:
            yield Finding(name, "not found", note=f"required by {user}")
            continue
        engine = [path, "version", "--format", "{{.Server.Version}}"]
        problem = _ask(engine)[1] if name == "docker" else ""
        version = _ask([path, *asks.split()])[0] or "does not answer"
        yield Finding(name, version, False if problem else None, problem or path)


def _swap() -> Iterator[Finding]:
    from swerex_c.swap import status

    now = status()
    where = now.original_path or ""
    yield Finding("original", now.original_version or ("found" if where else "not installed"), note=where)
    how = [*map(str, now.enabled), *(["swerex-c run"] if now.run else [])]
    if now.switched_off:
        how.append("SWEREX_C_SWAP is 0")
    yield Finding("swap", "on" if now.active else "off", note=", ".join(how))


_HOOKS = """\
for i in "${!PROMPT_COMMAND[@]}"; do (( i > 7000 )) || printf '%s\\n' "PROMPT_COMMAND is ${PROMPT_COMMAND[i]@Q}"; done
trap -p DEBUG"""
"""Command that names what runs with each command; beyond 7000 the elements of PROMPT_COMMAND are the session's own."""

_SWITCH = (
    "unset PROMPT_COMMAND in a file of `startup_source`, run `trap - DEBUG` first in the session, "
    "or set HOME in `env` to a directory without a .bashrc"
)
"""Advice about a costly hook. Bash restores a DEBUG trap that a sourced file removes."""

_TIMES = 21
"""Number of commands that are timed in each session."""


def _sessions() -> Iterator[Finding]:
    findings: list[Finding] = []
    try:
        asyncio.run(_try_sessions(findings))
    except (SwerexException, ImportError, OSError) as error:
        if not findings:
            yield Finding("session", "failed", False, f"{type(error).__name__}: {error}", needed=True)
    yield from findings


async def _try_sessions(findings: list[Finding]) -> None:
    """Add what a session tells, and how much the hooks that its startup files set slow a command down."""
    from swerex_c.engine.prompt_hook import COSTLY_SECONDS
    from swerex_c.models import CreateBashSessionRequest
    from swerex_c.runtime.local import BashSession

    with_hooks, without = "default", "without hooks"
    async with quiet_runtime() as runtime:
        began = time.perf_counter()
        await runtime.create_session(CreateBashSessionRequest(session=with_hooks, startup_timeout=_PATIENCE))
        answer = await runtime.run("echo $((6 * 7))", timeout=_PATIENCE)
        if answer.output != "42\n":
            raise SwerexException(f"a session answered {answer.output!r} instead of '42\\n'")
        milliseconds = (time.perf_counter() - began) * 1000
        findings.append(Finding("session", f"started and answered in {milliseconds:.1f} ms", True, needed=True))
        session = runtime.sessions[with_hooks]
        if isinstance(session, BashSession) and session.core.facts()["kernel_proof"]:
            told = "The output of a program cannot fake the end of a command"
            findings.append(Finding("completion", "confirmed by the kernel", True, told))
        else:
            told = "/proc/PID/syscall is closed or shows no system call"
            findings.append(Finding("completion", "shown by the prompt only", False, told))

        with tempfile.NamedTemporaryFile("w", suffix=".bash") as switch:
            switch.write("unset PROMPT_COMMAND\n")
            switch.flush()
            request = CreateBashSessionRequest(session=without, startup_source=[switch.name], startup_timeout=_PATIENCE)
            await runtime.create_session(request)
        await runtime.run("trap - DEBUG", timeout=_PATIENCE, session=without)
        hooks = (await runtime.run(_HOOKS, timeout=_PATIENCE, check="silent")).output.splitlines()
        times: dict[str, list[float]] = {with_hooks: [], without: []}
        for _ in range(_TIMES):
            for name, seconds in times.items():
                began = time.perf_counter()
                await runtime.run("true", timeout=_PATIENCE, session=name)
                seconds.append(time.perf_counter() - began)
    difference = statistics.median(times[with_hooks]) - statistics.median(times[without])
    if hooks and difference > COSTLY_SECONDS:
        value, note = f"add {difference * 1000:.1f} ms to each command", f"{'; '.join(hooks)}: {_SWITCH}"
        findings.append(Finding("startup files", value, False, note))
    else:
        findings.append(Finding("startup files", "do not slow commands down", True, "; ".join(hooks)))


def _ask(command: list[str]) -> tuple[str, str]:
    """Return the first line that a program prints, and why it failed; one of them is empty."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=_PATIENCE
        )
    except subprocess.TimeoutExpired:
        return "", f"No answer within {_PATIENCE:g} seconds"
    except OSError as error:
        return "", str(error)
    if done.returncode:
        return "", " ".join(done.stderr.split()) or f"It ended with {done.returncode}"
    return (done.stdout.strip() or done.stderr.strip()).partition("\n")[0].strip(), ""


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)
