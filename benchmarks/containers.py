"""The benchmark of containers: ours, the original's DockerDeployment, and the engine's own commands, in one run.

    python benchmarks/containers.py                 the whole table, a few minutes
    python benchmarks/containers.py --quick         under two minutes; the numbers are rough
    python benchmarks/containers.py --check         also says which targets are met
    python benchmarks/containers.py --json FILE     also writes everything measured

It needs what tests/places needs: root, Docker's programs, a source of packages for the image; the engine is one of its
own, the image a small Debian with the original's server in it, for all. Rounds and ratios are those of measure.py, and
every answer is checked.

Exit status: 0; 1 if an answer of ours was wrong or, with --check, a target was missed; 2 if it could not run.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from measure import (
    LEFT_OUT,
    ROOT,
    BenchError,
    Floor,
    Run,
    Worker,
    build_floor,
    machine,
    make_file,
    original_python,
    our_errors,
    our_path,
    work_directory,
)
from rows import Result, Target, Turn, Workload
from tables import print_targets, print_workload

sys.path.insert(0, str(ROOT / "tests"))
from places import images
from places.engine import Engine
from places.needs import Lacking

SIZE = 16
"""Megabytes of the file that is written and read."""

SHELL = ["bash", "--noprofile", "--norc", "--noediting", "-i"]


class Containers(Run):
    always = ("docker", "bare C")

    def __init__(self, arguments: argparse.Namespace, directory: Path, engine: Engine, image: str) -> None:
        super().__init__(arguments, directory)
        self.environment |= {key: value for key, value in engine.environment.items() if key.startswith("DOCKER_")}
        self.environment["PATH"] = engine.environment["PATH"]
        self.environment["SWE_REX_LOG_STREAM_LEVEL"] = "ERROR"
        self.image = image
        self.container = engine.docker("run", "-di", "--pull", "never", "--network", "none", image)

    def start(self, name: str) -> Floor | Worker:
        if name == "bare C":
            return Floor(build_floor(self.directory), self.environment)
        python, environment = sys.executable, self.environment
        if name == "original":
            found = original_python(may_install=not self.arguments.no_install)
            if found is None:
                raise BenchError("no environment with the original (SWX_ORIGINAL_PYTHON, or run without --no-install)")
            python = found
        elif path := our_path():
            environment = {**environment, "PYTHONPATH": path}
        worker = Worker(name, python, environment, "containers_worker.py")
        answer = worker.ask("prepare", image=self.image, container=self.container)
        if "error" in answer:
            worker.close()
            raise BenchError(answer["error"])
        return worker

    def ask(self, contender: Floor | Worker, request: Result) -> Result:
        if isinstance(contender, Floor):
            names = [word for name in ("PS1", "PS2", "TERM") for word in ("-e", name)]
            carrier = ["docker", "exec", "-it", *names, self.container, *SHELL]
            return contender.ask("carried", request["count"], "true", *carrier)
        return contender.ask(**request)


def workloads(quick: bool, file: str) -> Iterator[Workload]:
    """Every row of the table."""
    few = 0.2 if quick else 1.0

    def turns(operation: str, counts: dict[str, int], **more: object) -> list[Turn]:
        return [
            Turn(name, {"operation": operation, "count": max(1, int(count * few)), **more})
            for name, count in counts.items()
        ]

    rows = [
        Workload(
            "start",
            "DockerDeployment.start() and the first command's answer (docker: run -d, then exec)",
            turns("start", {"docker": 3, "ours": 3, "original": 1}),
            "docker",
            "remote",
        ),
        Workload(
            "true",
            'true (run_in_session, check="silent") in a container',
            turns("true", {"bare C": 2000, "ours": 2000, "original": 10}),
            "bare C",
            "remote",
        ),
        Workload(
            "execute",
            'execute(Command("true", shell=True)) in a container, one after the other (docker: exec)',
            turns("execute", {"docker": 10, "ours": 10, "original": 50}),
            "docker",
            "remote",
        ),
        Workload(
            "execute-rested",
            "the same, half a second apart",
            turns("execute", {"docker": 5, "ours": 5, "original": 5}, rest_us=500_000),
            "docker",
            "remote",
        ),
        *(
            Workload(
                how,
                f"{how}_file of {SIZE} MB (docker: exec -i, cat)",
                turns(how, {"docker": 3, "ours": 3, "original": 1}, path=file),
                "docker",
                "transfer",
            )
            for how in ("write", "read")
        ),
    ]
    for row in rows:
        row.rounds = 1 if quick else 5
        yield row


def targets(rows: dict[str, Workload]) -> Iterator[Target]:
    def value(row: str, name: str, key: str) -> float | None:
        found = rows[row].summary(name).get(key) if row in rows else None
        return float(found) if isinstance(found, int | float) else None

    def inverse(number: float | None) -> float | None:
        return 1 / number if number else None

    def times(row: str) -> float | None:
        ours, theirs = value(row, "ours", "p50_us"), value(row, "original", "p50_us")
        return theirs / ours if ours and theirs else None

    yield Target("start: by docker run and exec", value("start", "ours", "ratio"), 1.5, True, "x")
    yield Target("true: by the C loop over docker exec", value("true", "ours", "ratio"), 1.3, True, "x")
    yield Target("true: times faster than the original", times("true"), 100, False, "x")
    for how in ("write", "read"):
        rate = inverse(value(how, "ours", "ratio"))
        yield Target(f"{how}_file: bytes/s by those of docker exec and cat", rate, 0.7, False, "x")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="containers: ours, the original's, the engine's own")
    parser.add_argument("--quick", action="store_true", help="few rounds; for CI")
    parser.add_argument("--check", action="store_true", help="compare with the targets; exit 1 if one is missed")
    parser.add_argument("--json", metavar="FILE", help="write all results there")
    parser.add_argument("--only", metavar="ROW,...", help="these workloads only (start, true, write, ...)")
    parser.add_argument("--contenders", metavar="NAME,...", help="these only, besides what they are compared with")
    parser.add_argument("--no-install", action="store_true", help="do not make an environment for the original")
    parser.add_argument("--seed", type=int, default=1, help="for the order of turns")
    return parser.parse_args()


def run(arguments: argparse.Namespace, directory: Path, engine: Engine) -> int:
    image = images.provide(engine, "debian-rex")
    about = machine("containers.py", arguments.seed)
    for key, value in about.items():
        print(f"{key:12} {value}")
    only = set(arguments.only.split(",")) if arguments.only else None
    rows: dict[str, Workload] = {}
    containers = Containers(arguments, directory, engine, image)
    try:
        for workload in workloads(arguments.quick, make_file(directory, SIZE)):
            if only and workload.key not in only:
                continue
            containers.run(workload)
            print_workload(workload)
            sys.stdout.flush()
            rows[workload.key] = workload
    finally:
        containers.close()
    return report(arguments, about, containers, rows)


def report(arguments: argparse.Namespace, about: Result, containers: Containers, rows: dict[str, Workload]) -> int:
    found = [target for target in targets(rows) if target.value is not None]
    if arguments.check and found:
        print_targets(found)
    table: dict[str, dict[str, Any]] = {
        key: {turn.name: row.summary(turn.name) for turn in row.turns} for key, row in rows.items()
    }
    wrong = [f"{key}, {name}" for key, lines in table.items() for name, line in lines.items() if line.get("wrong")]
    for text in wrong:
        print(f"wrong answers: {text}")
    if arguments.json:
        goals = [{**vars(target), "met": target.met} for target in found]
        document = {"machine": about, "rows": table, "targets": goals, "absent": containers.absent}
        Path(arguments.json).write_text(json.dumps(document, indent=1) + "\n")
    failed = [f"{key}: {name}: {error}" for key, row in rows.items() for name, error in our_errors(row, ("ours",))]
    failed += [
        f"{key}: {name}: {row.errors[name]}"
        for key, row in rows.items()
        for name in containers.always
        if row.errors.get(name, LEFT_OUT) != LEFT_OUT
    ]
    for text in failed:
        print(f"failed: {text}")
    missed = arguments.check and any(not target.met for target in found)
    return 1 if any("ours" in text for text in wrong) or failed or missed else 0


def main() -> int:
    arguments = parse()
    try:
        with work_directory() as directory, Engine() as engine:
            return run(arguments, directory, engine)
    except (BenchError, Lacking, subprocess.CalledProcessError) as error:
        print(f"containers: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
