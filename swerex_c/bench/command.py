"""Command `swerex-c bench`: handle its options, prepare the peers, measure, and show the results."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from rich.console import Console

from swerex_c.deployment.config import DeploymentConfig
from swerex_c.exceptions import InvalidInputError

from . import report, rows
from .measure import Contender, Run

__all__ = ["contenders", "peers_python", "run", "with_status"]

PEERS = ["aiohttp", "pexpect==4.9.0", "ptyprocess==0.7.0", "swe-rex==1.4.0"]
"""Requirements of the peers' environment; SWE-ReX imports aiohttp without requiring it."""

ENGINES = "swerex_c.bench.engines:"

T = TypeVar("T")


def peers_python(directory: Path, show: Callable[[str], None]) -> str:
    """Return the interpreter of an environment with the peers, which is made in `directory` if it is not there.

    Raises:
        InvalidInputError: if it cannot be made.
    """
    requirements = "\n".join(PEERS) + "\n"
    python, ready = directory / "bin" / "python", directory / "requirements.txt"
    if ready.exists() and ready.read_text() == requirements:
        return str(python)
    show(f"installing {', '.join(PEERS)} in {directory}")
    for command in (
        [sys.executable, "-m", "venv", "--clear", str(directory)],
        [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PEERS],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["it says nothing"]
            raise InvalidInputError(
                f"The peers' environment in {directory} cannot be made: {lines[-1]}. "
                "Name an interpreter that has them with --peers-python."
            )
    ready.write_text(requirements)
    return str(python)


def contenders(peers: str | None, target: DeploymentConfig | None = None, **options: Any) -> list[Contender]:
    """Return the engines that a run has.

    Args:
        peers: interpreter that has the peers, if they are measured.
        options: keyword arguments of `LocalRuntime`.
    """
    found = [
        Contender(rows.OURS, f"{ENGINES}Ours", options),
        Contender(rows.PRESTARTED, f"{ENGINES}Ours", {**options, "warm_sessions": 8}),
        Contender(rows.LIMIT, f"{ENGINES}BareTerminal"),
        Contender(rows.SUBPROCESS, f"{ENGINES}Subprocess"),
    ]
    if target is not None:
        # As in SWE-ReX, only the configuration of Daytona has no type field.
        deployment = {"type": "daytona", **target.model_dump(mode="json")}
        found.append(Contender(rows.TARGET, f"{ENGINES}Ours", {"deployment": deployment}, variables=None))
    if peers is not None:
        kinds = {rows.PTYPROCESS: "Ptyprocess", rows.TUNED: "TunedPexpect", rows.PEXPECT: "Pexpect"}
        kinds[rows.SWEREX] = "SweRex"
        swap = {"SWEREX_C_SWAP": "0"}
        found += [Contender(name, f"{ENGINES}{kind}", python=peers, variables=swap) for name, kind in kinds.items()]
    return found


def run(
    seconds: float,
    only: list[str],
    *,
    as_json: Path | None,
    peers: bool,
    peers_interpreter: Path | None,
    target: tuple[DeploymentConfig, str] | None,
) -> int:
    """Run the benchmark with the options of `swerex-c bench`, show its results, and return the exit status.

    Args:
        target: deployment to measure additionally, and its name for display.

    Raises:
        InvalidInputError: if a row does not exist, the peers cannot be had, or the file cannot be written.
    """
    if unknown := [name for name in only if name not in rows.KEYS]:
        raise InvalidInputError(f"There is no row {unknown[0]}, but {', '.join(rows.KEYS)}")
    try:
        out = as_json and (sys.stdout if str(as_json) == "-" else as_json.open("w"))
    except OSError as error:
        raise InvalidInputError(f"{as_json}: {error.strerror}") from None
    python = None if peers_interpreter is None else str(peers_interpreter)
    if python and not shutil.which(python):
        raise InvalidInputError(f"--peers-python: {python} is no program that can be run.")
    if python is None and peers:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        python = with_status(lambda show: peers_python(cache / "swerex-c" / "peers", show))
    config, name = target or (None, "")
    found = Run(contenders(python, config), seconds, rounds=5 if seconds >= 30 else 3 if seconds >= 10 else 1)
    chosen = [row for row in rows.all_rows() if row.key in (only or rows.KEYS)]
    with_status(lambda show: found.measure(chosen, show))
    if target and rows.TARGET in found.absent:
        print(f"swerex-c: {name}: {found.absent[rows.TARGET]}", file=sys.stderr)
    if out is not sys.stdout:
        print(*report.lines(found, name), sep="\n")
    if out:
        print(json.dumps(report.as_data(found, target=name), indent=1), file=out, flush=True)
    if found.interrupted:
        print("swerex-c: interrupted; the results are those until then", file=sys.stderr)
        return 128 + signal.SIGINT
    if not report.is_good(found):
        print("swerex-c: an answer was wrong, or an engine of this package failed: see above", file=sys.stderr)
        return 1
    return 0


def with_status(work: Callable[[Callable[[str], None]], T]) -> T:
    """Do some work with a progress line on the terminal. SIGTERM and SIGHUP end it with cleanup.

    Args:
        work: gets a function that shows a text.
    """

    def end(number: int, _frame: Any) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    console = Console(stderr=True)
    try:
        if not console.is_terminal:
            return work(lambda _: None)
        with console.status("starting") as status:
            return work(status.update)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
