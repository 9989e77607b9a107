"""podman, an ssh server and bubblewrap: each private to the tests, and gone with them."""

from __future__ import annotations

import contextlib
import os
import pwd
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Self

import pytest

from swerex_c.utils.free_port import find_free_port
from tests.support import needs
from tests.support.docker_engine import Daemon
from tests.support.harness import write_script


class Podman:
    """podman with storage, state and locks of its own.  `with Podman() as podman: podman.run("ps")`."""

    def __init__(self) -> None:
        needs.root("podman with storage of its own")
        needs.capability("CAP_SYS_ADMIN", "podman")
        path = needs.program("podman", "podman")
        needs.program("runc", "runc")
        needs.program("conmon", "conmon")
        self.directory = d = Path(tempfile.mkdtemp(prefix="swx-podman-"))
        # crun 1.8 refuses a host with both kinds of cgroups; runc does not care.
        self.argv = [path, "--root", f"{d}/root", "--runroot", f"{d}/run", "--tmpdir", f"{d}/tmp"]
        self.argv += ["--cgroup-manager", "cgroupfs", "--events-backend", "file", "--runtime", "runc"]
        # Without CAP_SYS_RESOURCE podman's default limits, which are above ours, cannot be set.
        (d / "containers.conf").write_text('[containers]\ndefault_ulimits = []\n[engine]\nlock_type = "file"\n')

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"PATH": needs.search_path(), "CONTAINERS_CONF": str(self.directory / "containers.conf")}

    def run(self, *arguments: str, input: bytes | None = None, check: bool = True, seconds: float = 120) -> str:
        """Call podman, and return its standard output without the last newline."""
        words = [*self.argv, *arguments]
        return needs.said_by(*words, environment=self.environment, input=input, check=check, seconds=seconds)

    def start(self, image: str, *arguments: str) -> str:
        """Start a container that waits, and return its id."""
        return self.run("run", "-di", "--ulimit", "host", "--pull", "never", "--network", "none", *arguments, image)

    def lead(self, patch: pytest.MonkeyPatch) -> None:
        """Make this one the command `podman`."""
        command = self.directory / "command" / "podman"
        command.parent.mkdir(exist_ok=True)
        words = " ".join(f"'{word}'" for word in self.argv)
        write_script(command, f'exec {words} "$@"')
        patch.setenv("CONTAINERS_CONF", self.environment["CONTAINERS_CONF"])
        patch.setenv("PATH", f"{command.parent}:{self.environment['PATH']}")

    def __enter__(self) -> Podman:
        return self

    def __exit__(self, *error: object) -> None:
        if self.directory.exists():
            self.run("rm", "-f", "-a", "-t", "0", check=False)
            needs.kill_all(str(self.directory))  # monitors of containers that are half gone
            needs.remove(self.directory)


SERVER = """ListenAddress 127.0.0.1
Port {port}
HostKey {d}/host_key
AuthorizedKeysFile {d}/authorized
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PrintMotd no
UseDNS no
MaxSessions 100
MaxStartups 100
Subsystem sftp internal-sftp
SetEnv HOME={d}/home
"""

CLIENT = """Host {name}
  HostName 127.0.0.1
  Port {port}
  User {user}
  IdentityFile {d}/user_key
  IdentitiesOnly yes
  BatchMode yes
  UserKnownHostsFile {d}/known
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  LogLevel ERROR
"""


class Sshd(Daemon):
    """An ssh server on 127.0.0.1 that lets this user in by a key.  `ssh -F config name` reaches it.

    After `crash`, `start` makes it listen at the same port again.
    """

    name = "place"

    def __init__(self) -> None:
        self._server = needs.program("sshd", "openssh-server")
        self._client = needs.program("ssh", "openssh-client")
        if os.geteuid() == 0:  # any other user's server can let in that user, and needs nothing
            needs.capability("CAP_SETUID", "an ssh server of root's")
            needs.capability("CAP_SYS_CHROOT", "an ssh server of root's")
        self._keygen = needs.program("ssh-keygen", "openssh-client")
        super().__init__("swx-sshd-")
        self.config = self.directory / "client"
        self.port = 0

    @property
    def argv(self) -> list[str]:
        return [self._client, "-F", str(self.config)]

    def start(self) -> Self:
        d = self.directory
        for name in ("host_key", "user_key"):
            if not (d / name).exists():
                subprocess.run([self._keygen, "-q", "-t", "ed25519", "-N", "", "-f", str(d / name)], check=True)
        # Its own: what this user's startup files do takes time, and may leave locks when it is cut short.
        (d / "home").mkdir(exist_ok=True)
        (d / "authorized").write_text((d / "user_key.pub").read_text())
        if os.geteuid() == 0:
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
        for _ in range(10):  # another process may take the port before it does
            if self._listen():
                return self
        self.fail()

    def _listen(self) -> bool:
        d = self.directory
        self.port = self.port or find_free_port()
        user = pwd.getpwuid(os.geteuid()).pw_name
        (d / "server").write_text(SERVER.format(d=d, port=self.port))
        self.config.write_text(CLIENT.format(d=d, port=self.port, user=user, name=self.name))
        key = (d / "host_key.pub").read_text()
        (d / "known").write_text(f"[127.0.0.1]:{self.port} {key}")
        if self.launch([self._server, "-D", "-e", "-f", str(d / "server")]):
            return True
        self.crash()
        self.port = 0
        return False

    def answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 5) as connection:
            return connection.recv(4) == b"SSH-"
        return False


def bubblewrap() -> str:
    """Return the path of a bwrap that works here."""
    path = needs.program("bwrap", "bubblewrap")
    view = ["--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
    for _ in range(20):
        done = subprocess.run(
            [path, "--unshare-all", *view, "true"], check=False, capture_output=True, text=True, timeout=30
        )
        if "No such file or directory" not in done.stderr:
            break
        time.sleep(0.2)  # a container of another test has ended meanwhile, and its mounts with it
    if done.returncode:
        raise needs.Lacking(f"namespaces for bwrap ({done.stderr.strip()})")
    return path
