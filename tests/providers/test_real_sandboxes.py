"""The sandboxes of the tests' own: nothing is left of them, also of one that is cut short."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import hosts, images, needs
from tests.support.docker_engine import Engine
from tests.support.processes import alive, command_line
from tests.support.wait import until


def traces(directory: Path) -> list[str]:
    """Whatever is left of a sandbox: processes, mounts, files."""
    left = [f"process {pid}" for pid in needs.mentioning(str(directory))]
    left += needs.mounts_below(directory)
    return left + ([str(directory)] if directory.exists() else [])


def test_an_engine_stops_with_its_containers(docker: Engine, bash_min: str) -> None:
    with Engine() as engine:
        assert engine.start() is engine and engine.socket != docker.socket
        assert engine.docker("image", "ls", "-q") == "", "two engines share nothing"
        image = images.provide(engine, "bash-min")
        container = engine.docker("run", "-d", "--pull", "never", "--network", "none", image, "sleep", "4242")
        inside = int(engine.docker("inspect", "-f", "{{.State.Pid}}", container))
        assert alive(inside) and traces(engine.directory)
    assert traces(engine.directory) == [] and not alive(inside)
    engine.stop()


def test_an_engine_ends_with_the_process_that_started_it(bash_min: str) -> None:
    program = (
        "import time; from tests.support import images; from tests.support.docker_engine import Engine;"
        "engine = Engine().start();"
        "image = images.provide(engine, 'bash-min');"
        "run = 'run -d --pull never --network none --stop-timeout 1'.split();"
        "engine.docker(*run, image, 'sleep', '99');"
        "print(engine.directory, flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, cwd=needs.ROOT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as owner:
        assert owner.stdout is not None
        directory = Path(owner.stdout.readline().decode().strip())
        try:
            assert needs.mentioning(str(directory))
            owner.send_signal(signal.SIGKILL)
            until(lambda: not needs.mentioning(str(directory)))
            assert needs.mounts_below(directory) == []
        finally:
            owner.kill()
            needs.remove(directory)


def test_what_makes_a_debian_leaves_nothing_mounted_when_it_is_cut_short(tmp_path: Path) -> None:
    """What stands for debootstrap does what matters of it: it mounts /proc, starts others, and takes long."""
    program = tmp_path / "debootstrap"
    program.write_text(
        '#!/bin/bash\nmkdir -p "$4/proc"; mount -t proc proc "$4/proc" || exit\n'
        'cp /proc/mounts "$4/mounts"; setsid sleep 4244 & sleep 600\n'
    )
    program.chmod(0o755)
    environment = os.environ | {"PATH": f"{tmp_path}:{needs.search_path()}", "SWX_PLACES_CACHE": str(tmp_path)}
    make = "from tests.support import images, needs\ntry: images.debian_tar()\nexcept needs.Lacking as it: print(it)"
    tree = tmp_path / "debian-py"
    with subprocess.Popen(
        [sys.executable, "-c", make], cwd=needs.ROOT, env=environment, stdout=subprocess.PIPE
    ) as maker:
        assert maker.stdout is not None
        try:
            until(lambda: (tree / "mounts").exists() or maker.poll() is not None)
            if maker.poll() is not None:
                pytest.skip(f"this machine lacks {maker.stdout.read().decode()}")
            until(lambda: f" {tree}/proc " in (tree / "mounts").read_text())
            assert needs.mounts_below(tmp_path) == [] and os.listdir(tree / "proc") == []
        finally:
            maker.kill()
    until(lambda: not needs.mentioning(str(tree)))
    assert not any("sleep 4244" in command_line(pid) for pid in needs.pids())
    assert needs.mounts_below(tmp_path) == []


@pytest.mark.parametrize("kind", [hosts.Podman, hosts.Sshd])
def test_a_host_is_gone_when_it_is_stopped(kind: Callable[[], Any], request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(kind.__name__.lower())  # skips where there can be none
    with kind() as other:
        if kind is hosts.Podman:
            pids = [int(other.run("inspect", "-f", "{{.State.Pid}}", other.start(other.provide("bash-only"))))]
        else:
            pids = needs.mentioning(str(other.directory))
        assert pids and all(map(alive, pids))
    assert traces(other.directory) == [] and not any(map(alive, pids))
    other.stop()
