"""Backend for an isolated view of this machine, made by bubblewrap."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from swerex_c.exceptions import InvalidInputError, SandboxLostError, SwerexException
from swerex_c.providers.ownership import start_time
from swerex_c.sandbox.clients import ClientProcess, CommandBackend
from swerex_c.utils.temporary import make_temporary
from swerex_c.utils.threads import in_thread_to_its_end
from swerex_c.utils.wait import settle

__all__ = ["HIDDEN", "VARIABLES", "BwrapBackend"]

HIDDEN = (
    "/etc/NetworkManager/system-connections",
    "/etc/docker",
    "/etc/gshadow",
    "/etc/gshadow-",
    "/etc/krb5.keytab",
    "/etc/kubernetes",
    "/etc/letsencrypt",
    "/etc/pki/tls/private",
    "/etc/rancher",
    "/etc/security/opasswd",
    "/etc/shadow",
    "/etc/shadow-",
    "/etc/ssh",
    "/etc/ssl/private",
    "/etc/sudoers",
    "/etc/sudoers.d",
    "/etc/wireguard",
    "/home",
    "/root",
    "/run",
    "/tmp",
    "/var/backups",
    "/var/lib/cloud",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/docker",
    "/var/lib/kubelet",
    "/var/lib/lxd",
    "/var/lib/rancher",
    "/var/run",
    "/var/snap/lxd",
    "/var/tmp",
)
"""Paths that a view hides by default: homes, sockets of container engines and services, credentials.

The home of this process's user is hidden too, wherever it is. Files created there later stay hidden."""

VARIABLES = ("HOME", "LANG", "LANGUAGE", "LOGNAME", "PATH", "SHELL", "TERM", "TZ", "USER")
"""Variables of this process's environment that programs in a view get, besides all that begin with LC_."""

_NEEDED = ("/etc/resolv.conf", "/run/current-system")
"""Paths in /run, or links to it, that are still shown: DNS settings, and the programs of NixOS."""

_MOST_ENTRIES = 5000
"""Maximum number of other entries in the directory of a hidden file; each of them becomes a mount."""

# Capabilities of root as in a container, without making devices: change owners, switch users, read and write other
# users' files. None of them can change the view itself.
_ROOT_CAPABILITIES = sum(1 << bit for bit in (0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 31))
_CAP_SYS_ADMIN = 21

_READY = b"ready\n"
"""Line that the view prints behind bwrap's report of its processes."""

_HOLD = "PATH=/usr/bin:/bin:$PATH; chmod 1777 /tmp /var/tmp; echo ready; read -r line"
"""Main script of the view. It exits when all holders of its standard input have closed it.

The system's directories come first: this process's PATH may lack them, or have other programs of that name."""

_MOUNT_GONE = re.compile("apply mount flags: .*(No such file or directory|Invalid argument)")
"""Message of bwrap if a mount, such as a container's, vanishes while bwrap copies the mounts."""

_PYTHON = sys.executable or "python3"  # it is empty in a program with a Python inside

_PRIVATE = ("/proc", "/dev")
"""Directories that are private to a view."""

_TRIES, _AGAIN_SECONDS = 10, 0.1
"""Maximum number of attempts to make a view when a mount vanishes, and seconds between them."""

_WORDS = 500
"""Maximum number of characters of bubblewrap's output in an error message."""

_END_SECONDS = 5.0
"""Maximum seconds to wait for the end of the processes of a view that was killed."""


class BwrapBackend(CommandBackend):
    """A view of this machine's files, with private /tmp, /var/tmp and processes.

    `open` makes the view, which ends with `close` or with this process. All clients share one view: they see the same
    files and each other's processes. The view protects against mistakes, not attacks. A hostile program may escape,
    above all through sockets: those of services in directories that are not hidden, and, while the network is shared,
    the abstract sockets of all programs, which cannot be hidden because they are not files.
    """

    def __init__(
        self,
        *,
        writable: Sequence[str | os.PathLike[str]] = (),
        network: bool = True,
        root: Literal["read-only", "overlay"] = "read-only",
        hidden: Sequence[str | os.PathLike[str]] = (),
        shown: Sequence[str | os.PathLike[str]] = (),
        variables: Sequence[str] = (),
        directory: str | os.PathLike[str] | None = None,
        command: str = "bwrap",
    ) -> None:
        """Prepare a view, which `open` makes.

        Args:
            writable, network, root, hidden, shown, variables, directory: the fields of `IsolationConfig`.
            command: the bubblewrap program.

        Raises:
            InvalidInputError: if a path is not absolute.
        """
        self.name = "isolated view of this machine"
        self._writable = [_absolute(path) for path in writable]
        self._hidden = [_absolute(path) for path in hidden]
        self._shown = [_absolute(path) for path in shown]
        self._variables = {*VARIABLES, *variables}
        self._directory = None if directory is None else _absolute(directory)
        self._network, self._root, self._command = network, root, command
        self._process: ClientProcess | None = None
        self._layers: str | None = None
        self._enter: list[str] | None = None
        self._init = 0
        self._owner = os.getpid()

    def environment(self) -> dict[str, str]:
        return {k: v for k, v in os.environ.items() if k in self._variables or k.startswith("LC_")}

    def command(self, argv: Sequence[str], names: Sequence[str], terminal: bool) -> list[str]:
        enter = self._enter
        if enter is None:
            raise SandboxLostError(f"The {self.name} was not opened, or is closed")
        return [*enter, *argv]

    async def why_lost(self) -> str | None:
        process = self._process
        if process is None:
            return f"The {self.name} was not opened, or is closed"
        code = process.process.poll()
        return None if code is None else f"The {self.name} has ended: bwrap's exit code is {code}"

    async def open(self) -> None:
        if self._process is not None:
            return
        for tries_left in reversed(range(_TRIES)):
            try:
                await self._make()
                return
            except SwerexException as error:
                if not _MOUNT_GONE.search(str(error)) or not tries_left:
                    raise
            except OSError as error:
                raise SandboxLostError(f"Cannot create the {self.name}: {error}") from error
            await asyncio.sleep(_AGAIN_SECONDS)

    async def close(self) -> None:
        if self._owner == os.getpid():
            await settle(self._unmake())

    async def _make(self) -> None:
        try:
            line = await in_thread_to_its_end(self._line)
            process = self._process = await ClientProcess.start(lambda: line, self.environment())
            printed = {1: bytearray(), 2: bytearray()}
            while not printed[1].endswith(_READY):
                output = await process.receive()
                if output is None:
                    words = " ".join(printed[2].decode(errors="replace").split())[-_WORDS:]
                    msg = f"Cannot create the {self.name}: {words or 'bwrap ended without an error message'}"
                    raise SandboxLostError(msg)
                printed[output[0]] += output[1]
            try:
                pid = self._init = int(json.loads(printed[1].removesuffix(_READY))["child-pid"])
            except (ValueError, LookupError, TypeError):
                text = bytes(printed[1])[:_WORDS]
                msg = f"Cannot create the {self.name}: {self._command!r} does not report its processes, but {text!r}"
                raise SandboxLostError(msg) from None
            numbers = [str(os.stat(f"/proc/{pid}/ns/{name}").st_ino) for name in ("mnt", "pid")]
            directory = self._directory or os.getcwd()
            kept = _ROOT_CAPABILITIES if os.geteuid() == 0 else 0
            script = str(Path(__file__).with_name("enter.py"))
            self._enter = [_PYTHON, "-I", "-S", script, str(pid), *numbers, f"{kept:x}", directory]
        except BaseException:
            await self.close()
            raise

    async def _unmake(self) -> None:
        process, self._process = self._process, None
        layers, self._layers = self._layers, None
        init, self._init = self._init, 0
        self._enter = None
        if process is not None:
            await process.kill()
        limit = time.monotonic() + _END_SECONDS
        while init and start_time(init) and time.monotonic() < limit:
            await asyncio.sleep(0.001)  # the kernel ends the remaining processes of the view
        if layers is not None:
            with contextlib.suppress(OSError):
                os.rmdir(layers)

    def _line(self) -> list[str]:
        """Return the command line that makes the view."""
        command = shutil.which(self._command)
        if command is None:
            raise SandboxLostError(
                f"The {self.name} needs the command {self._command!r}: install it (Debian's package bubblewrap)"
            )
        for paths, what in ((self._writable, "writable"), (self._shown, "shown")):
            for path in paths:
                if not os.path.exists(path):
                    raise SandboxLostError(f"{path!r}, which should be {what} in the {self.name}, does not exist")
        user = os.geteuid() != 0
        line = [command, "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--info-fd", "3"]
        line += [] if self._network else ["--unshare-net"]
        before: list[str] = []
        view = _Plan(self._writable, self._shown, self._hidden)
        if self._root == "overlay":
            self._layers = make_temporary("swx-view-")
            script = str(Path(__file__).with_name("overlay.py"))
            apart = json.dumps([[*_PRIVATE, "/tmp", "/var/tmp"], view.files])
            before = [_PYTHON, "-I", "-S", script, self._layers, apart]
            line += ["--bind", f"{self._layers}/root", "/", "--ro-bind", "/sys", "/sys"]
            line += ["--unshare-user", "--uid", str(os.geteuid()), "--gid", str(os.getegid())] if user else []
        else:
            line += ["--ro-bind", "/", "/"]
            # Root without the right to mount may still have it in a user namespace.
            line += ["--unshare-user"] if not user and not _may_mount() else []
        line += ["--dev", "/dev", "--proc", "/proc", "--ro-bind-try", "/dev/null", "/proc/keys"]
        if not user:  # root could change the kernel's settings for the whole machine
            line += ["--ro-bind", "/proc/sys", "/proc/sys"]
            line += ["--ro-bind-try", "/proc/sysrq-trigger", "/proc/sysrq-trigger"]
        line += view.arguments(self._layers and f"{self._layers}/root")
        # The view ends with bwrap, and --die-with-parent follows the thread that started bwrap, not the process. So a
        # shell starts bwrap, because its thread lives on.
        begin = ["sh", "-c", 'cd /; "$@" 3>&1; exit "$?"', "sh"]
        return [*begin, *before, *line, "--die-with-parent", "--", "/bin/sh", "-c", _HOLD]


class _Plan:
    """The files of this machine that a view shows, and how it mounts them."""

    def __init__(self, writable: Sequence[str], shown: Sequence[str], hidden: Sequence[str]) -> None:
        self._home = os.path.realpath(os.path.expanduser("~"))
        by_default = {*map(os.path.realpath, HIDDEN), self._home} - {"/"}
        needed = [path for path in map(os.path.realpath, _NEEDED) if path.startswith("/run/") and os.path.exists(path)]
        # Later entries replace earlier ones of the same path.
        self._kinds = dict.fromkeys(by_default, "hidden") | dict.fromkeys(needed, "shown")
        for paths, kind in ((shown, "shown"), (hidden, "hidden"), (writable, "writable")):
            self._kinds |= {os.path.realpath(path): kind for path in paths}
        if "/" in self._kinds:  # it would cover the private /dev and /proc with the machine's
            msg = f"A view cannot have '/' as a whole {self._kinds['/']}: name the directories below it"
            raise InvalidInputError(msg)
        self.files = [path for path, kind in self._kinds.items() if kind == "hidden" and self._is_seen_file(path)]
        """Hidden files in visible directories."""

    def _around(self, path: str) -> str:
        """Return the kind of the closest listed directory that contains the path."""
        while path != "/":
            path = os.path.dirname(path)
            if path in self._kinds:
                return self._kinds[path]
        return "seen"

    def _is_seen_file(self, path: str) -> bool:
        # A file that this user cannot read need not be hidden.
        return os.path.isfile(path) and os.access(path, os.R_OK) and self._around(path) != "hidden"

    def arguments(self, layers: str | None) -> list[str]:
        """Return the arguments of bwrap, from the outermost directory to the innermost.

        Args:
            layers: the directory of this machine's files under a writable layer, in which files are already hidden.
        """

        def in_layers(path: str) -> bool:
            return layers is not None and not path.startswith((*_PRIVATE, "/tmp/", "/var/tmp/"))

        line: list[str] = []
        # A file hidden by a mount on it reappears when another file replaces it. So its directory is rebuilt from its
        # other entries, unless new entries can be written to the directory.
        apart: dict[str, list[str]] = {}
        for path in self.files:
            parent = os.path.dirname(path)
            taken_apart = not in_layers(path) and self._around(path) != "writable"
            if taken_apart and parent != "/" and not parent.startswith(_PRIVATE):
                apart.setdefault(parent, []).append(path)
        for path in sorted({*self._kinds, *apart}):
            kind = self._kinds.get(path)
            if path in apart:
                line += self._others(path)
            elif kind == "hidden" and os.path.isdir(path):
                line += ["--tmpfs", path] if self._around(path) != "hidden" else []
            elif kind == "hidden" and path in self.files and (not in_layers(path) or self._around(path) == "writable"):
                line += ["--ro-bind", "/dev/null", path] if os.path.dirname(path) not in apart else []
            elif kind == "shown" and in_layers(path):
                line += ["--bind", f"{layers}{path}", path]
            elif kind in ("shown", "writable"):
                line += ["--bind" if kind == "writable" else "--ro-bind", path, path]
        # The home directory exists in a hidden /home, but it is empty too.
        line += ["--dir", self._home] if self._kinds.get(self._home) == "hidden" and os.path.isdir(self._home) else []
        for path in apart:
            line += ["--remount-ro", path]
        return line

    def _others(self, directory: str) -> list[str]:
        """Return the arguments for a directory without its hidden files, with its current entries."""
        line = ["--tmpfs", directory]
        with os.scandir(directory) as entries:
            for entry in entries:
                if entry.path in self._kinds:
                    continue
                target = os.readlink(entry.path) if entry.is_symlink() else None
                line += ["--symlink", target, entry.path] if target else ["--ro-bind-try", entry.path, entry.path]
        if len(line) > 3 * _MOST_ENTRIES:
            raise SandboxLostError(f"Cannot hide a file in {directory!r}: it has too many entries; hide the directory")
        return line


def _absolute(path: str | os.PathLike[str]) -> str:
    text = os.fspath(path)
    if not os.path.isabs(text) or "\0" in text:
        raise InvalidInputError(f"{text!r} is not an absolute path")
    return os.path.normpath(text)


def _may_mount() -> bool:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> _CAP_SYS_ADMIN & 1)
    return True
