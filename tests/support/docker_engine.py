"""A Docker engine of the tests' own: no systemd, nothing shared with another.

Everything of it is below one directory, and it dies with the process that started it.  Its containers have
`--network none` or `host`, unless it is asked for a bridge.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Self

from tests.support import needs
from tests.support.wait import until

if TYPE_CHECKING:
    import pytest  # not of those who only measure

STOP_SECONDS = 20.0


def check_machine() -> None:
    """Raise `Lacking` where no engine can run."""
    needs.root("a Docker engine")
    needs.capability("CAP_SYS_ADMIN", "a Docker engine")
    programs = {"dockerd": "docker.io", "docker": "docker.io", "containerd": "containerd", "runc": "runc"}
    for name, package in programs.items():
        needs.program(name, package)
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    if not any(line.split()[2].startswith("cgroup") for line in mounts):
        raise needs.Lacking("mounted cgroups, which a Docker engine needs")


def storage_driver(directory: Path) -> str:
    """Return overlay2 where the directory's file system can carry an overlay, else the driver that copies."""
    names = [directory / "probe" / name for name in ("lower", "upper", "work", "merged")]
    for name in names:
        name.mkdir(parents=True)
    options = "lowerdir={},upperdir={},workdir={}".format(*names[:3])
    mount = ["mount", "-t", "overlay", "overlay", "-o", options, str(names[3])]
    done = subprocess.run(["unshare", "--mount", *mount], check=False, capture_output=True)
    needs.remove(directory / "probe")
    return "overlay2" if done.returncode == 0 else "vfs"


class Daemon(ABC):
    """A server of the tests' own below one directory, which dies with the process that started it."""

    def __init__(self, prefix: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=prefix))  # short: a socket's path has at most 107 bytes
        self.log = self.directory / "log"
        self.daemon: subprocess.Popen[bytes] | None = None

    def running(self) -> bool:
        return self.daemon is not None and self.daemon.poll() is None

    @abstractmethod
    def start(self) -> Self:
        """Start the server, and return when it answers."""

    @abstractmethod
    def answers(self) -> bool: ...

    def crash(self) -> None:
        """End the server and all connections at once."""
        if self.daemon is not None:
            needs.kill_tree(self.daemon.pid)
            self.daemon.wait()
            self.daemon = None

    def stop(self) -> None:
        self.crash()
        needs.remove(self.directory)

    def launch(self, argv: list[str], environment: dict[str, str] | None = None) -> bool:
        """Start the server; False if it has ended, or answers nothing in time."""
        with self.log.open("ab") as log:
            self.daemon = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True,
                preexec_fn=needs.die_with_parent,
            )  # fmt: skip
        with contextlib.suppress(AssertionError):  # at the deadline
            until(lambda: not self.running() or self.answers())
        return self.running() and self.answers()

    def fail(self) -> NoReturn:
        said = needs.tail(self.log)
        self.stop()
        raise RuntimeError(f"The {type(self).__name__} does not start:\n{said}")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *error: object) -> None:
        self.stop()


class Engine(Daemon):
    """`with Engine() as engine: engine.docker("ps")`."""

    def __init__(self, *, network: bool = False) -> None:
        """network: with a bridge of its own, on which containers reach each other, and with published ports of this
        machine; nothing beyond it."""
        check_machine()
        super().__init__("swx-engine-")
        self.network = network
        self.bridge = ""
        self.socket = self.directory / "docker.sock"
        self.host = f"unix://{self.socket}"

    @property
    def environment(self) -> dict[str, str]:
        """What a client needs to reach this engine and nothing else, whatever the user has configured."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith("DOCKER_")}
        config = str(self.directory / "client")
        return kept | {"PATH": needs.search_path(), "DOCKER_HOST": self.host, "DOCKER_CONFIG": config}

    def lead(self, patch: pytest.MonkeyPatch) -> None:
        """Lead this process's environment to this engine."""
        for name in ("DOCKER_HOST", "DOCKER_CONFIG", "PATH"):
            patch.setenv(name, self.environment[name])

    def docker(self, *arguments: str, input: bytes | None = None, check: bool = True, seconds: float = 120) -> str:
        """Call the docker client, and return its standard output without the last newline."""
        environment = self.environment | {"DOCKER_BUILDKIT": "0"}
        return needs.said_by("docker", *arguments, environment=environment, input=input, check=check, seconds=seconds)

    def answers(self) -> bool:
        version = ("version", "-f", "{{.Server.Version}}")
        return self.socket.exists() and bool(self.docker(*version, check=False, seconds=10))

    def start(self) -> Self:
        d = self.directory
        (d / "client").mkdir()
        (d / "daemon.json").write_text("{}")
        command = [
            *["dockerd", "--data-root", f"{d}/data", "--exec-root", f"{d}/exec", "--pidfile", f"{d}/docker.pid"],
            *["--host", self.host, "--group", "root", "--config-file", f"{d}/daemon.json"],
            *["--exec-opt", "native.cgroupdriver=cgroupfs", "--storage-driver", storage_driver(d)],
        ]
        # No rules of the firewall: they would be the machine's, and another engine's too.
        command += [f"--bridge={self._make_bridge()}", "--iptables=false", "--ip6tables=false"]
        command += ["--ip-forward=false", "--ip-masq=false"]
        if not self.launch(command, self.environment):
            self.fail()
        return self

    def _make_bridge(self) -> str:
        """Make the bridge if there is to be one, and return its name."""
        if not self.network:
            return "none"
        pid = os.getpid()
        self.bridge = f"swx{pid}"
        address = f"10.{64 + pid // 256 % 128}.{pid % 256}.1/24"
        for words in (
            ["link", "add", "name", self.bridge, "type", "bridge"],
            ["address", "add", address, "dev", self.bridge],
            ["link", "set", self.bridge, "up"],
        ):
            done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
            if done.returncode:
                raise needs.Lacking(f"bridges between devices (ip {' '.join(words)}: {done.stderr.strip()})")
        return self.bridge

    def stop(self) -> None:
        """End the engine and all its containers, and remove its directory."""
        if self.running() and self.daemon is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                containers = self.docker("ps", "-aq", check=False, seconds=10).split()
                if containers:
                    self.docker("rm", "-f", "-v", *containers, check=False, seconds=STOP_SECONDS)
            self.daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.daemon.wait(STOP_SECONDS)
        self.crash()
        needs.kill_all(str(self.directory))  # a dead dockerd leaves containerd, and the shims of both
        needs.remove(self.directory)
        if self.bridge:
            subprocess.run(["ip", "link", "delete", self.bridge], capture_output=True, check=False)
