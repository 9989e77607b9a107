"""The benchmark of pools on Ray: what a command costs there, how quickly environments start, and how it scales.

    python benchmarks/ray_pool.py                 all of it, some minutes
    python benchmarks/ray_pool.py --quick         about a minute; the numbers are rough
    python benchmarks/ray_pool.py --json FILE     also writes everything measured
    python benchmarks/ray_pool.py --only throughput --sizes 128

It starts a Ray node of its own on this machine, so that what it says of a network is what loopback says. Beside ours
stand a LocalRuntime in the driver's process, and the same work as Ray tasks that call subprocess.run: a new bash for
each command, without a session. Every answer is checked. The turns of the contenders are interleaved, in random order
in each round. What it measures of the driver and of the head node is what benchmarks/ray.md counts with. The bytes are
those of the whole machine's loopback, so nothing else may use that meanwhile.

Exit status: 0; 1 if an answer of ours was wrong; 2 if Ray is not installed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

os.environ.setdefault("SWE_REX_LOG_STREAM_LEVEL", "ERROR")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

from measure import machine, our_path

if path := our_path():
    sys.path.insert(0, path)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (path, os.environ.get("PYTHONPATH"))))

from swerex_c.deployment.config import LocalDeploymentConfig, RayDeploymentConfig
from swerex_c.pool import Pool
from swerex_c.runtime.abstract import AbstractRuntime, BashAction, CreateBashSessionRequest
from swerex_c.runtime.local import LocalRuntime

SESSION = CreateBashSessionRequest(startup_timeout=60)
CPUS = len(os.sched_getaffinity(0))

Ask = Callable[[int], Awaitable[str]]
"""Runs `echo N` somewhere and gives its output."""


class Wrong(Exception):
    """An answer was not what it has to be."""


def in_session(runtime: AbstractRuntime) -> Ask:
    async def ask(number: int) -> str:
        return (await runtime.run_in_session(BashAction(command=f"echo {number}", check="silent"))).output

    return ask


def in_tasks(share: float) -> Ask:
    """As many at a time as `share` of a processor allows."""
    import ray

    @ray.remote(num_cpus=share, max_retries=0)
    def command(text: str) -> str:
        return subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True).stdout

    async def ask(number: int) -> str:
        answer: str = await command.remote(f"echo {number}")
        return answer

    return ask


async def series(ask: Ask, count: int) -> list[float]:
    """Seconds of each of so many commands, one after the other."""
    times = []
    for number in range(count):
        begin = time.perf_counter()
        answer = await ask(number)
        times.append(time.perf_counter() - begin)
        if answer != f"{number}\n":
            raise Wrong(f"echo {number} gave {answer!r}")
    return times


def percentiles(times: list[float]) -> tuple[float, float]:
    ordered = sorted(times)
    return ordered[len(ordered) // 2] * 1e6, ordered[int(len(ordered) * 0.99)] * 1e6


# What processes use


def cpu_of(pid: int) -> float:
    """Seconds that a process has computed."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def own_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def kilobytes(pid: int | str, file: str, name: str) -> int:
    try:
        for line in Path(f"/proc/{pid}/{file}").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1])
    except OSError:  # it has ended
        pass
    return 0


def environments_kilobytes() -> tuple[int, int]:
    """How many environments run on this machine, and what their actors and all that is below these take of memory."""
    actors: list[int] = []
    children: dict[int, list[int]] = {}
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            title = (directory / "cmdline").read_bytes()
            parent = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(directory.name))
        if title.startswith(b"ray::SwerexEnvironment"):
            actors.append(int(directory.name))
    total, left = 0, list(actors)
    while left:
        pid = left.pop()
        total += kilobytes(pid, "smaps_rollup", "Pss")
        left += children.get(pid, [])
    return len(actors), total


def loopback_bytes() -> int:
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            return int(numbers.split()[0])
    return 0


def sockets() -> int:
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{fd}").startswith("socket:")
        except OSError:
            continue
    return count


class Server:
    """A process of Ray's, by its kind."""

    def __init__(self, kind: str) -> None:
        from ray._private.worker import _global_node

        self.pid = _global_node.all_processes[kind][0].process.pid

    def cpu(self) -> float:
        return cpu_of(self.pid)

    def rss(self) -> int:
        return kilobytes(self.pid, "status", "VmRSS")


# The measurements


def ray_config(share: float, connection: str = "auto") -> RayDeploymentConfig:
    return RayDeploymentConfig(
        environment=LocalDeploymentConfig(), num_cpus=share, connection=connection, startup_timeout=300
    )


async def latency(rounds: int, count: int, chance: random.Random) -> dict[str, Any]:
    """One command after the other, alone."""
    async with AsyncExitStack() as stack:
        local = LocalRuntime()
        stack.push_async_callback(local.close)
        await local.create_session(SESSION)
        contenders = {"LocalRuntime in the driver": in_session(local)}
        for name, connection in (("Ray, direct connection", "direct"), ("Ray, actor calls", "ray")):
            pool = await stack.enter_async_context(Pool(ray_config(0.001, connection), 1))
            environment = await stack.enter_async_context(pool.environment())
            await environment.runtime.create_session(SESSION)
            contenders[name] = in_session(environment.runtime)
        contenders["Ray task, subprocess.run"] = in_tasks(1)
        times: dict[str, list[float]] = {name: [] for name in contenders}
        for ask in contenders.values():
            await series(ask, 20)
        for _ in range(rounds):
            for name in chance.sample(list(contenders), len(contenders)):
                times[name] += await series(contenders[name], count)
    base = percentiles(times["LocalRuntime in the driver"])[0]
    rows = {}
    for name, found in times.items():
        p50, p99 = percentiles(found)
        rows[name] = {"p50_us": p50, "p99_us": p99, "added_us": p50 - base, "count": len(found)}
    return rows


async def starts(counts: list[int]) -> dict[str, Any]:
    """From nothing to the first answer, all at once; the environments are new each time."""
    import ray

    gcs, rows = Server("gcs_server"), {}

    @ray.remote(num_cpus=0.001)
    class Bare:
        def answer(self, number: int) -> int:
            return number

    async def environments(count: int) -> None:
        async def one(pool: Pool, number: int) -> None:
            async with pool.environment() as environment:
                await environment.runtime.create_session(SESSION)
                await series(in_session(environment.runtime), 1)
                ready.append(number)
                while len(ready) < count:
                    await asyncio.sleep(0.005)

        ready: list[int] = []
        async with Pool(ray_config(0.001), count, starts_at_once=count) as pool:
            begin, before = time.perf_counter(), gcs.cpu()
            await asyncio.gather(*(one(pool, number) for number in range(count)))
            seconds = time.perf_counter() - begin
            rows[f"{count} environments"] = {
                "seconds": seconds,
                "per_second": count / seconds,
                "gcs_cpu_ms_each": (gcs.cpu() - before) * 1e3 / count,
            }

    async def bare(count: int) -> None:
        begin, before = time.perf_counter(), gcs.cpu()
        actors = [Bare.remote() for _ in range(count)]
        answers = await asyncio.gather(*(actor.answer.remote(i) for i, actor in enumerate(actors)))
        if answers != list(range(count)):
            raise Wrong(f"bare actors answered {answers}")
        seconds = time.perf_counter() - begin
        rows[f"{count} bare actors"] = {
            "seconds": seconds,
            "per_second": count / seconds,
            "gcs_cpu_ms_each": (gcs.cpu() - before) * 1e3 / count,
        }
        for actor in actors:
            ray.kill(actor)

    for count in counts:
        await environments(count)
        await bare(count)
    return rows


async def throughput(sizes: list[int], rounds: int, commands: int, chance: random.Random) -> dict[str, Any]:
    """So many environments at once, each one command after the other."""
    rows: dict[str, Any] = {}
    gcs, raylet = Server("gcs_server"), Server("raylet")
    for size in sizes:
        async with AsyncExitStack() as stack:
            before = sockets(), gcs.rss()
            pool = await stack.enter_async_context(Pool(ray_config(0.001), size, starts_at_once=size))
            held = await asyncio.gather(*(stack.enter_async_context(pool.environment()) for _ in range(size)))
            await asyncio.gather(*(environment.runtime.create_session(SESSION) for environment in held))
            after = sockets(), gcs.rss()
            count, memory = environments_kilobytes()
            fleets = {
                "ours": [in_session(environment.runtime) for environment in held],
                "Ray tasks": [in_tasks(min(1.0, int((CPUS - 0.2) / size * 1e4) / 1e4))] * size,
            }
            for asks in fleets.values():
                await asyncio.gather(*(series(ask, 3) for ask in asks))
            found: dict[str, list[tuple[float, float, float]]] = {name: [] for name in fleets}
            each = max(5, commands // size)
            for _ in range(rounds):
                for name in chance.sample(list(fleets), len(fleets)):
                    begin, cpu, wire = time.perf_counter(), own_cpu(), loopback_bytes()
                    await asyncio.gather(*(series(ask, each) for ask in fleets[name]))
                    total = each * size
                    seconds = time.perf_counter() - begin
                    found[name].append(
                        (total / seconds, (own_cpu() - cpu) * 1e6 / total, (loopback_bytes() - wire) / total)
                    )
            begin, cpus = time.perf_counter(), (gcs.cpu(), raylet.cpu(), own_cpu())
            await asyncio.sleep(3)
            idle = time.perf_counter() - begin
            row: dict[str, Any] = {
                name: {
                    "per_second": statistics.median(rate for rate, _, _ in turns),
                    "driver_cpu_us": statistics.median(cpu for _, cpu, _ in turns),
                    "bytes": statistics.median(wire for _, _, wire in turns),
                }
                for name, turns in found.items()
            }
            row["driver_sockets_each"] = (after[0] - before[0]) / size
            row["gcs_rss_kb_each"] = (after[1] - before[1]) / size
            row["environment_mb_each"] = memory / 1e3 / max(count, 1)
            row["idle_cpu_percent"] = {
                "gcs": (gcs.cpu() - cpus[0]) / idle * 100,
                "raylet": (raylet.cpu() - cpus[1]) / idle * 100,
                "driver": (own_cpu() - cpus[2]) / idle * 100,
            }
            rows[str(size)] = row
            show_throughput({str(size): row})  # at once: the next one takes longer
    return rows


# The tables, each printed when it is measured


def show_latency(rows: dict[str, Any]) -> None:
    print("\n| one command after the other | p50 | p99 | added to LocalRuntime's p50 |\n|---|---|---|---|")
    for name, row in rows.items():
        print(f"| {name} | {row['p50_us']:.0f} us | {row['p99_us']:.0f} us | {row['added_us']:.0f} us |")


def show_starts(rows: dict[str, Any]) -> None:
    print("\n| started at once, to the first answer | seconds | a second | GCS's CPU each |\n|---|---|---|---|")
    for name, row in rows.items():
        print(f"| {name} | {row['seconds']:.1f} | {row['per_second']:.1f} | {row['gcs_cpu_ms_each']:.1f} ms |")


def show_throughput(rows: dict[str, Any]) -> None:
    for size, row in rows.items():
        idle = row["idle_cpu_percent"]
        print(f"\n| {size} environments | commands/s | driver's CPU each | bytes each |\n|---|---|---|---|")
        for name in ("ours", "Ray tasks"):
            of = row[name]
            print(f"| {name} | {of['per_second']:,.0f} | {of['driver_cpu_us']:.0f} us | {of['bytes']:,.0f} |")
        print(f"each: {row['driver_sockets_each']:.1f} sockets of the driver,", end=" ")
        print(f"{row['environment_mb_each']:.0f} MB of the node, {row['gcs_rss_kb_each']:.0f} kB of the GCS;", end=" ")
        print(f"idle: GCS {idle['gcs']:.1f} %, raylet {idle['raylet']:.1f} %, driver {idle['driver']:.1f} %")
        sys.stdout.flush()


async def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    chance = random.Random(arguments.seed)
    quick = arguments.quick
    measured: dict[str, Any] = {}
    for name, work, show in (
        ("latency", latency(2 if quick else 10, 50 if quick else 200, chance), show_latency),
        ("starts", starts([4] if quick else [1, 8, 16]), show_starts),
        (
            "throughput",
            throughput(arguments.sizes, 2 if quick else 3, 100 if quick else 2000, chance),
            lambda rows: None,
        ),
    ):
        if name in arguments.only.split(","):
            measured[name] = await work
            show(measured[name])
            sys.stdout.flush()
        else:
            work.close()
    return measured


def main() -> int:
    parser = argparse.ArgumentParser(description="See the head of this file.")
    parser.add_argument("--quick", action="store_true", help="few of everything")
    parser.add_argument("--json", type=Path, help="write what was measured there")
    parser.add_argument("--seed", type=int, default=1, help="of the order of turns")
    parser.add_argument("--only", default="latency,starts,throughput", help="the parts to measure")
    parser.add_argument("--sizes", type=int, nargs="*", help="how many environments at once for the throughput")
    arguments = parser.parse_args()
    arguments.sizes = arguments.sizes or ([1, 4] if arguments.quick else [1, 4, 16, 64])
    try:
        import ray
    except ImportError:
        print("Ray is not installed: pip install 'ray>=2.40'", file=sys.stderr)
        return 2
    ray.init(
        address="local", num_cpus=CPUS, include_dashboard=False, log_to_driver=False, object_store_memory=80 << 20
    )
    about = machine("ray_pool.py", arguments.seed)
    print(f"{about['date']}, {about['cpu']}, {about['processors']} processors, load before {about['load_before']:.1f}")
    print(f"{about['python']}, Ray {ray.__version__}, commit {about['commit']}: {about['command']}", flush=True)
    try:
        measured = {"machine": about, **asyncio.run(measure(arguments))}
    except Wrong as error:
        print(f"wrong: {error}", file=sys.stderr)
        return 1
    finally:
        ray.shutdown()
    if arguments.json:
        arguments.json.write_text(json.dumps(measured, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
