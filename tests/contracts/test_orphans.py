"""What a dead process left in an engine or a cloud is pruned, and nothing else."""

from __future__ import annotations

import asyncio
import pickle

from tests.support.cli import cli
from tests.support.original import run_python
from tests.support.targets import Target

TARGETS = ["docker", "podman", "kubernetes", "modal", "daytona"]

DYING = """
import asyncio, os, pickle, sys
deployments = pickle.loads(bytes.fromhex(sys.argv[1]))
async def main():
    await asyncio.gather(*(it.start() for it in deployments))
    print(os.getpid(), flush=True)
    os._exit(0)
asyncio.run(main())
"""


def prune(target: Target, *words: str) -> list[str]:
    """Return what the command tells, by lines."""
    option = "--container-runtime" if target.name in ("docker", "podman") else "--cloud"
    done = cli("prune", option, target.name, *words, **target.variables)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


async def test_what_a_dead_process_left_is_pruned_and_nothing_else(target: Target) -> None:
    assert target.make is not None
    before = set(target.left())
    several = pickle.dumps([target.make(), target.make()])
    pid = (await asyncio.to_thread(run_python, DYING, several.hex())).stdout.strip()
    for dry in (True, False):
        assert pid and len(set(target.left()) - before) == 2
        told = await asyncio.to_thread(prune, target, *(["--dry-run"] if dry else []))
        assert len(told) == 2 and all("removed: " in line and f"of the dead process {pid})" in line for line in told)
    assert set(target.left()) == before and await target.says("echo lives") == "lives\n"
    assert (await asyncio.to_thread(prune, target))[0].startswith(f"{target.name} has no ")
