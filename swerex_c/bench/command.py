"""Command `swerex-c bench`: handle its options, measure, and show the results."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console

from swerex_c.deployment.config import DeploymentConfig
from swerex_c.exceptions import InvalidInputError

from . import summary
from .rows import ORIGINAL, OURS, PLACE, PROGRAMS, PTY, ROWS, WARM, Row, chosen
from .run import Found, MissingError, Setting, measure

__all__ = ["Place", "run"]

Place = tuple[DeploymentConfig, str]
"""A deployment to measure, and its name for display."""


def run(
    seconds: float,
    only: list[str],
    *,
    as_json: Path | None,
    original_python: Path | None,
    place: Place | None,
    seed: int,
) -> int:
    """Run the benchmark, show its results, and return the exit status.

    Args:
        only: keys of the rows to measure; empty means all rows.
        as_json: file to write the results to as JSON; with "-", only JSON is printed.
        original_python: interpreter that has SWE-ReX, if it must be measured.
        place: deployment to measure additionally.

    Returns:
        0; 1 after a wrong answer or a failure, 130 after SIGINT.

    Raises:
        InvalidInputError: if a row or the interpreter does not exist, or the file cannot be written.
    """
    if unknown := [name for name in only if name not in ROWS]:
        raise InvalidInputError(f"There is no row {unknown[0]}, but {', '.join(ROWS)}")
    engines = [OURS, WARM, PTY, PROGRAMS, ORIGINAL] + ([PLACE] if place else [])
    setting = Setting(seconds, seed=seed, begin=_process_began())
    if original_python is not None:
        setting.original_python = str(original_python)
        setting.needed += (ORIGINAL,)
    if place is not None:
        config, setting.place_name = place
        # As in SWE-ReX, only the configuration of Daytona has no type field.
        setting.deployment = {"type": "daytona", **config.model_dump(mode="json")}
        setting.needed += (PLACE,)
    try:
        out = as_json and (sys.stdout if str(as_json) == "-" else as_json.open("w"))
    except OSError as error:
        raise InvalidInputError(f"{as_json}: {error.strerror}") from None
    try:
        found = _measured(setting, chosen(only, engines))
    except KeyboardInterrupt:
        print("swerex-c: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except MissingError as error:
        if error.engine == ORIGINAL:
            raise InvalidInputError(f"--original-python: {error}") from None
        print(f"swerex-c: {setting.place_name}: {error}", file=sys.stderr)
        return 1
    if out is not sys.stdout:
        summary.print_tables(found, setting)
    if out:
        print(json.dumps(summary.as_data(found, setting), indent=1), file=out, flush=True)
    return 0 if summary.is_good(found) else 1


def _process_began() -> float:
    """Return the start of this process by `time.perf_counter`, so that the budget includes imports."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.perf_counter() - age


def _measured(setting: Setting, rows: list[Row]) -> Found:
    """Run the benchmark with a status line on the terminal. SIGTERM and SIGHUP end it with cleanup."""

    def end(number: int, _frame: Any) -> NoReturn:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    console = Console(stderr=True)
    try:
        if not console.is_terminal:
            return measure(setting, rows)
        with console.status("starting") as status:
            return measure(setting, rows, status.update)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
