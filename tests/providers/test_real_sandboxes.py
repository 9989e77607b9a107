"""The places themselves: what they promise to the tests that use them, and that nothing is left of them."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import engine_fixtures, hosts, needs
from tests.support.docker_engine import Engine
from tests.support.wait import until


def traces(directory: Path) -> list[str]:
    """Whatever is left of a place: processes, mounts, files."""
    left = [f"process {pid}" for pid in needs.mentioning(str(directory))]
    left += needs.mounts_below(directory)
    return left + ([str(directory)] if directory.exists() else [])


def in_container(docker: Engine, container: str, *command: str) -> str:
    return docker.docker("exec", container, *command)


def test_an_engine_starts_once_and_stops_once(docker: Engine, bash_min: str) -> None:
    engine = Engine()
    assert engine.start() is engine.start()
    assert engine.socket.exists() and engine.socket != docker.socket
    assert engine.docker("image", "ls", "-q") == "", "two engines share nothing"
    directory = engine.directory
    assert traces(directory)
    engine.stop()
    assert traces(directory) == []
    engine.stop()


def test_an_engine_stops_with_its_containers(bash_min: str) -> None:
    from tests.support import images

    for arguments in [(), ("--live-restore",)]:
        with Engine(*arguments) as engine:
            image = images.provide(engine, "bash-min")
            container = engine.docker("run", "-d", "--pull", "never", "--network", "none", image, "sleep", "4242")
            inside = int(engine.docker("inspect", "-f", "{{.State.Pid}}", container))
            assert needs.alive(inside)
        assert traces(engine.directory) == []
        assert not needs.alive(inside)


def test_containers_survive_a_crashed_engine_when_they_shall() -> None:
    from tests.support import images

    try:
        engine = Engine("--live-restore")
    except needs.Lacking as lack:
        pytest.skip(f"this machine lacks {lack}")
    with engine:
        image = images.provide(engine, "bash-min")
        container = engine.docker("run", "-d", "--pull", "never", "--network", "none", image, "sleep", "4243")
        pid = int(engine.docker("inspect", "-f", "{{.State.Pid}}", container))
        engine.crash()
        assert needs.alive(pid) and not engine.answers()
        engine.start()
        assert engine.docker("inspect", "-f", "{{.State.Running}}", container) == "true"
    assert traces(engine.directory) == [] and not needs.alive(pid)


def test_an_engine_ends_with_the_process_that_started_it(bash_min: str) -> None:
    program = (
        "import time; from tests.support import images; from tests.support.docker_engine import Engine;"
        "engine = Engine().start();"
        "image = images.provide(engine, 'bash-min');"
        "run = 'run -d --pull never --network none --stop-timeout 1'.split();"
        "engine.docker(*run, image, 'sleep', '99');"
        "print(engine.directory, flush=True); time.sleep(600)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program], cwd=needs.ROOT, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL
    )
    assert owner.stdout is not None
    directory = Path(owner.stdout.readline().decode().strip())
    try:
        assert needs.mentioning(str(directory))
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        until(lambda: not needs.mentioning(str(directory)))
        assert needs.mounts_below(directory) == []
    finally:
        owner.kill()
        owner.stdout.close()
        needs.remove(directory)


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


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
    assert not any("sleep\0004244" in command_of(pid) for pid in needs.pids())
    assert needs.mounts_below(tmp_path) == []


def test_clients_need_nothing_but_the_environment(docker: Engine) -> None:
    assert docker.environment["DOCKER_HOST"] == docker.host
    version = subprocess.run(
        ["docker", "version", "-f", "{{.Server.Os}}"],
        env=docker.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert version.stdout.strip() == "linux"


def test_bash_only(docker: Engine, bash_only: str, container: Callable[..., str]) -> None:
    name = container(bash_only)
    assert in_container(docker, name, "bash", "-c", "echo /bin/*") == "/bin/bash"
    assert in_container(docker, name, "bash", "-c", "type -P cat sh ls; echo $?") == "1"


def test_bash_min(docker: Engine, bash_min: str, container: Callable[..., str]) -> None:
    name = container(bash_min)
    assert in_container(docker, name, "bash", "-c", "echo $BASH_VERSION").startswith("5.")
    found = in_container(docker, name, "bash", "-c", "type -P cat stty python3 python tar; :").split()
    assert found == ["/bin/cat", "/bin/stty"]


def test_ash_min(docker: Engine, ash_min: str, container: Callable[..., str]) -> None:
    name = container(ash_min)
    assert in_container(docker, name, "sh", "-c", "which tar bash || :") == "/bin/tar"
    refused = subprocess.run(["docker", "exec", name, "bash", "-c", ":"], env=docker.environment, capture_output=True)
    assert refused.returncode in (126, 127)


def test_debian(docker: Engine, debian_py: str, container: Callable[..., str]) -> None:
    name = container(debian_py)
    assert in_container(docker, name, "python3", "-c", "print(6 * 7)") == "42"
    assert in_container(docker, name, "git", "--version").startswith("git version")


def test_a_benchmark_image_is_as_difficult_as_it_shall_be(
    docker: Engine, swebench: str, swebench_user: str, container: Callable[..., str]
) -> None:
    for image, user in [(swebench, "0"), (swebench_user, "1001")]:
        name = container(image)
        said = in_container(
            docker, name, "bash", "-ic", 'id -u; pwd; type python; echo $CONDA_PREFIX; printf %s "$PS1"'
        )
        assert "Welcome to this image!" in said
        lines = said.splitlines()
        assert lines[-5:-1] == [
            user,
            "/testbed",
            "python is /opt/conda/envs/testbed/bin/python",
            "/opt/conda/envs/testbed",
        ]
        assert lines[-1].startswith("(testbed) ")
        assert in_container(docker, name, "bash", "-c", 'echo "$ODD_VALUE|$EMPTY_VALUE"') == "a 'b' \"c\" \\ d|"
        assert in_container(docker, name, "git", "-C", "/testbed", "status", "--short") == ""


def test_containers_are_removed(docker: Engine, bash_only: str) -> None:
    """What the fixture `container` starts is gone after the test."""
    start = inspect.unwrap(engine_fixtures.container)
    life = start(docker)
    name = next(life)(bash_only)
    assert docker.docker("inspect", "-f", "{{.State.Running}}", name) == "true"
    assert next(life, None) is None
    assert docker.docker("inspect", name, check=False) == "[]"


def test_podman(podman: hosts.Podman) -> None:
    image = podman.provide("bash-min")
    name = podman.start(image)
    assert podman.run("exec", name, "bash", "-c", "echo $((6 * 7))") == "42"
    assert podman.provide("bash-min") == image
    podman.run("rm", "-f", "-t", "0", name)


def test_podman_is_gone_when_stopped(podman: hosts.Podman) -> None:
    with hosts.Podman() as other:
        pid = int(other.run("inspect", "-f", "{{.State.Pid}}", other.start(other.provide("bash-only"))))
        assert needs.alive(pid) and other.directory != podman.directory
    assert traces(other.directory) == [] and not needs.alive(pid)
    other.stop()


def test_sshd(sshd: hosts.Sshd) -> None:
    done = subprocess.run(
        [*sshd.argv, sshd.name, "echo $SSH_CONNECTION; id -u"], capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[2:] == ["127.0.0.1", str(sshd.port), str(os.geteuid())]


def test_sshd_is_gone_when_stopped(sshd: hosts.Sshd) -> None:
    with hosts.Sshd() as other:
        port = other.port
        assert port != sshd.port
        client = subprocess.Popen(
            [*other.argv, "-tt", other.name, "echo up; exec sleep 4244"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert client.stdout is not None and b"up" in client.stdout.readline()
        other.crash()
        assert client.wait(10) == 255
        assert other.start().port == port
    assert traces(other.directory) == []
    client.communicate()


def test_bubblewrap(bwrap: str) -> None:
    view = ["--unshare-all", "--ro-bind", "/", "/", "--tmpfs", "/tmp", "--dev", "/dev", "--proc", "/proc"]
    done = subprocess.run([bwrap, *view, "bash", "-c", "echo $$; ls /tmp"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "2"
