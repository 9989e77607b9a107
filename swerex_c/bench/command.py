"""What `swerex-c bench` does with its options."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError
from rich.console import Console

from swerex_c.bench import report
from swerex_c.bench.rows import ORIGINAL, OURS, PLACE, PROGRAMS, PTY, ROWS, WARM, chosen
from swerex_c.bench.run import Found, MissingError, Setting, measure
from swerex_c.deployment.config import DockerDeploymentConfig, RemoteDeploymentConfig
from swerex_c.examples._tasks import deployment_config
from swerex_c.exceptions import InvalidInputError
from swerex_c.remote import key

__all__ = ["Place", "Wanted", "place_of", "run"]

Place = tuple[dict[str, Any], str]
"""The configuration of a deployment, and its name for people."""


@dataclass
class Wanted:
    """What the user asks for."""

    seconds: float
    only: list[str]
    as_json: Path | None
    original_python: Path | None
    place: Place | None
    seed: int


def place_of(
    host: str | None,
    port: int | None,
    auth_token: str | None,
    image: str | None,
    container_runtime: str,
    deployment: str | None,
) -> Place | None:
    """The place that the options name, if they name one.

    Raises:
        InvalidInputError: if they name several, or none that could be.
    """
    if auth_token:
        key.take_from_environment()  # what is measured must not inherit it
        key.hide(auth_token)
    server = host or ("http://127.0.0.1" if port is not None else None)
    if sum(it is not None for it in (server, image, deployment)) > 1:
        raise InvalidInputError("Give a server, an image or a deployment, not several")
    try:
        if server is not None:
            if not auth_token:
                raise InvalidInputError("A server wants --auth-token, or SWEREX_AUTH_TOKEN in the environment")
            # A machine that is busy with this may take longer than a fraction of a second to answer.
            remote = RemoteDeploymentConfig(host=server, port=port, auth_token=auth_token, timeout=30)
            return remote.model_dump(mode="json"), "server"
        if image is not None:
            fields = {"image": image, "container_runtime": container_runtime}
            return DockerDeploymentConfig(**fields).model_dump(mode="json"), image
        if deployment is not None:
            config = deployment_config(deployment)
            # As in SWE-ReX, only that of Daytona does not say its type by itself.
            return {"type": "daytona", **config.model_dump(mode="json")}, json.loads(deployment)["type"]
    except ValidationError as error:
        raise InvalidInputError(str(error)) from None
    return None


def run(wanted: Wanted) -> int:
    """Measure, show, and return the exit status: 1 if something answered wrong, 128 and more after a signal.

    Raises:
        InvalidInputError: if there is no such row or interpreter, or the file cannot be written.
    """
    if unknown := [name for name in wanted.only if name not in ROWS]:
        raise InvalidInputError(f"There is no row {unknown[0]}, but {', '.join(ROWS)}")
    engines = [OURS, WARM, PTY, PROGRAMS, ORIGINAL] + ([PLACE] if wanted.place else [])
    setting = Setting(wanted.seconds, seed=wanted.seed, begin=_process_began())
    if wanted.original_python is not None:
        setting.original_python = str(wanted.original_python)
        setting.needed += (ORIGINAL,)
    if wanted.place is not None:
        setting.deployment, setting.place_name = wanted.place
        setting.needed += (PLACE,)
    try:
        out = wanted.as_json and (sys.stdout if str(wanted.as_json) == "-" else wanted.as_json.open("w"))
    except OSError as error:
        raise InvalidInputError(f"{wanted.as_json}: {error.strerror}") from None
    try:
        found = _measured(setting, chosen(wanted.only, engines))
    except KeyboardInterrupt:
        print("swerex-c: interrupted", file=sys.stderr)
        return 128 + signal.SIGINT
    except MissingError as error:
        if error.engine == ORIGINAL:
            raise InvalidInputError(f"--original-python: {error}") from None
        print(f"swerex-c: {setting.place_name}: {error}", file=sys.stderr)
        return 1
    if out is not sys.stdout:
        report.print_table(found, setting)
    if out:
        print(json.dumps(report.as_data(found, setting), indent=1), file=out, flush=True)
    return 0 if report.is_good(found) else 1


def _process_began() -> float:
    """When this process did, by `time.perf_counter`: importing the command's modules is part of what it takes."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.perf_counter() - age


def _measured(setting: Setting, rows: Any) -> Found:
    """The run, with a line on the terminal that says what is going on; ended in good order by the usual signals."""

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
