"""Backend that runs programs on remote hosts through OpenSSH's client."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from swerex_c.exceptions import InvalidInputError, SandboxLostError
from swerex_c.sandbox.clients import CommandBackend, kill_group, run_command
from swerex_c.sandbox.env_passing import command_as_text, quote_for_any_shell
from swerex_c.sandbox.processes import END_MARKED
from swerex_c.utils.background import keep_from_children
from swerex_c.utils.shell_script import bash_command, read_script
from swerex_c.utils.temporary import make_temporary, temporary_place
from swerex_c.utils.threads import in_thread_to_its_end, start_thread

__all__ = ["SSHBackend"]

_SESSIONS = 8
"""Maximum number of clients on one connection. Servers allow 10, and end some later than we do."""

_CONNECTING = 4
"""Maximum number of concurrent connection attempts. Servers begin to refuse at 10 by default."""

_RESERVED_SECONDS = 60.0
"""Seconds to reserve a slot on a connection for a client that was not started."""

_LONGEST_DIRECTORY = 60
"""Maximum length of the sockets' directory: of a socket path's 107 bytes ssh needs 17 itself."""

_FAILED = 255
"""Exit code of ssh for its own errors, for a remote program that a signal ended, and for one that exits with 255."""

_ASK_SECONDS = 5.0
"""Seconds to wait for our connection's reply that it exists; the check does not use the network."""

_END_SECONDS = 5.0
"""Seconds to wait for the end of connections that were told to end."""

_WORDS = 500
"""Maximum number of characters of ssh's output in an error message."""

# Substrings of ssh's error output in lower case, and advice for each.
_ADVICE = (
    (
        "identification has changed",
        "Its host key differs from the known one: if the change is right, remove the old one with `ssh-keygen -R HOST`",
    ),
    (
        "host key verification failed",
        "Its host key is not known here: connect by hand once, or set `StrictHostKeyChecking=accept-new` in `options`",
    ),
    (
        "permission denied",
        "It takes no key that ssh has here, and nobody is asked for a password: name one in `identity_file`, or give "
        "it to ssh-agent, and see whether `user` is right",
    ),
)

# ssh uses the first value that it gets for an option.
_DEFAULTS = (
    "BatchMode=yes",
    "ConnectTimeout=15",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=3",
    "EscapeChar=none",
    "LogLevel=ERROR",
    "RemoteCommand=none",
    "ClearAllForwardings=yes",
    "ForwardX11=no",
    "ForwardAgent=no",
    "PermitLocalCommand=no",
)

_CONNECT = read_script("providers/ssh/connect.sh")
_CLIENT = read_script("providers/ssh/client.sh")


@dataclass
class _Connection:
    """A connection that clients share."""

    socket: str
    process: subprocess.Popen[bytes]
    clients: dict[str, float] = field(default_factory=dict)
    """Files to which clients write their process ids, with the times at which their slots were reserved."""


class SSHBackend(CommandBackend):
    """A host that runs an SSH server and allows login without a prompt.

    Clients share connections that the backend makes, eight on each. A client without a slot makes its own connection.
    If this process ends without `close`, each connection first ends what the `Sandbox` has started on the host.
    """

    def __init__(
        self,
        host: str,
        *,
        port: int | None = None,
        user: str | None = None,
        identity_file: str | None = None,
        config_file: str | None = None,
        options: Sequence[str] = (),
        command: Sequence[str] = ("ssh",),
        share_connections: bool = True,
    ) -> None:
        """Create a backend for a host.

        Args:
            host: the host's name, address, or alias in the configuration file.
            identity_file: the private key to offer; it must exist when `open` is called.
            config_file: a configuration file that replaces the user's and the system's.
            options: options as after `-o`, such as `StrictHostKeyChecking=accept-new`; they precede the package's own.
            command: the client, with arguments that precede all others.
            share_connections: True if clients share connections; otherwise each makes its own.

        Raises:
            InvalidInputError: if the host name is invalid, or an argument contains a NUL byte.
        """
        if not host or host.startswith("-") or "\0" in host:
            raise InvalidInputError(f"{host!r} is not a host name")
        self.host = host
        self.name = "host " + (f"{user}@{host}" if user else host) + (f":{port}" if port else "")
        self._command = tuple(command)
        self._client = [*command, *(("-F", config_file) if config_file else ())]
        more = [word for option in (*options, *_DEFAULTS) for word in ("-o", option)]
        more += ["-p", str(port)] if port else []
        more += ["-l", user] if user else []
        more += ["-i", identity_file] if identity_file else []
        if any("\0" in word for word in (*self._client, *more)):
            raise InvalidInputError("The arguments of ssh cannot contain a NUL byte")
        self._identity = identity_file
        self._options = more
        self._share = share_connections
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._directory: str | None = None
        self._connections: list[_Connection] = []
        self._owner = os.getpid()

    def command(self, argv: Sequence[str], names: Sequence[str], terminal: bool) -> list[str]:
        socket, pid_file = self._reserve()
        before = f'set -- {shlex.quote(socket)} {shlex.quote(pid_file)} "$@"\n{_CLIENT}' if socket else ""
        client = [*self._ssh(socket), "-tt" if terminal else "-T", "--", self.host]
        return command_as_text(client, argv, names, before=before)

    def _ssh(self, socket: str) -> list[str]:
        """Return the client's command line before the host. Without a socket it makes its own connection."""
        control = ["-o", f"ControlPath={socket or 'none'}", "-o", "ControlMaster=no", "-o", "ControlPersist=no"]
        return [*self._client, *control, *self._options]

    async def why_lost(self) -> str | None:
        try:
            # Every shell understands `exit 0`, so no bash is needed.
            command = [*self._ssh(""), "-T", "--", self.host, "exit 0"]
            result = await run_command(command, environment=self.environment())
        except OSError as error:
            return self._no_client(error)
        return self._refused(result.message) if result.code else None

    async def unsure(self, client: Sequence[str], code: int, printed: str) -> str | None:
        if code != _FAILED:
            return None
        with self._lock:
            socket = next((it.socket for it in self._connections if f"ControlPath={it.socket}" in client), "")
        if not socket:
            return f"ssh ended with status {code}, as after a lost connection"
        check = [*self._command, "-F", "none", "-O", "check", "-o", f"ControlPath={socket}", "--", "place"]
        with contextlib.suppress(TimeoutError, OSError):
            if (await run_command(check, environment=self.environment(), timeout=_ASK_SECONDS)).code == 0:
                return None  # the connection still serves the other clients
        return f"The connection to the {self.name} was lost"

    def _no_client(self, error: OSError) -> str:
        return f"The command {self._client[0]!r} cannot be run ({error.strerror}), so the {self.name} is out of reach"

    def _refused(self, words: str) -> str:
        advice = next((f". {what}" for sign, what in _ADVICE if sign in words.lower()), "")
        return f"The {self.name} is out of reach: ssh says: {words[-_WORDS:].rstrip('.')}{advice}"

    # Shared connections

    async def open(self) -> None:
        if self._identity and not os.path.isfile(os.path.expanduser(self._identity)):
            # ssh would continue without the key, and report another reason why the host refuses the login.
            msg = f"The {self.name} is out of reach: the key file {self._identity!r} (`identity_file`) does not exist"
            raise SandboxLostError(msg)
        if not self._share or self._directory is not None:
            return
        if shutil.which(self._client[0]) is None:
            raise SandboxLostError(self._no_client(FileNotFoundError(2, os.strerror(2))))
        try:
            first = await in_thread_to_its_end(self._make_first)
            while not os.path.exists(first.socket):
                if first.process.poll() is not None:
                    raise SandboxLostError(self._refused(_said(first)))
                await asyncio.sleep(0.005)
        except BaseException:
            await self.close()
            raise

    def _make_first(self) -> _Connection:
        with self._lock:
            self._directory = _private_directory()
            return self._connect()

    def _connect(self) -> _Connection:
        """Start to make a connection. The caller holds the lock."""
        socket = f"{self._directory}/{next(self._numbers)}"
        before = self._connections[-_CONNECTING].socket if len(self._connections) >= _CONNECTING else ""
        with open(f"{socket}.up", "x"):
            pass
        client = [*self._client, "-o", f"ControlPath={socket}", "-o", "ControlMaster=yes", "-o", "ControlPersist=no"]
        words = [*client, *self._options, "-N", "-T", "--", self.host]
        end = quote_for_any_shell(bash_command(END_MARKED, self.mark))
        sweep = shlex.join([*self._ssh(socket), "-T", "--", self.host, end]) if self.mark else ""
        nowhere = subprocess.DEVNULL
        process = subprocess.Popen(
            ["sh", "-c", _CONNECT, "sh", socket, before, sweep, *words],
            stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere, env=self.environment(), cwd="/",
            start_new_session=True,
        )  # fmt: skip
        assert process.stdin is not None
        keep_from_children(process.stdin)
        self._connections.append(_Connection(socket, process))
        return self._connections[-1]

    def _reserve(self) -> tuple[str, str]:
        """Reserve a slot on a connection; return its socket and the client's pid file, or empty strings."""
        with self._lock:
            if self._directory is None:
                return "", ""
            self._connections = [it for it in self._connections if it.process.poll() is None]
            for connection in self._connections:
                _forget_the_dead(connection)
            free = (it for it in self._connections if len(it.clients) < _SESSIONS)
            connection = next(free, None) or self._connect()
            pid_file = f"{self._directory}/client{next(self._numbers)}"
            connection.clients[pid_file] = time.monotonic()
            return connection.socket, pid_file

    async def close(self) -> None:
        await in_thread_to_its_end(self._close)

    async def abandon(self) -> None:
        """Let the connections end what runs on the host, and themselves."""
        directory, processes = self._take()
        if directory is not None and all(process.poll() is not None for process in processes):
            shutil.rmtree(directory, ignore_errors=True)
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()
            start_thread(process.wait, "swerex-ssh")

    def _take(self) -> tuple[str | None, list[subprocess.Popen[bytes]]]:
        """Return the directory and the connections, which are no longer used here."""
        with self._lock:
            if self._owner != os.getpid():
                return None, []
            directory, self._directory = self._directory, None
            connections, self._connections = self._connections, []
        return directory, [connection.process for connection in connections]

    def _close(self) -> None:
        directory, processes = self._take()
        for process in processes:
            assert process.stdin is not None
            with contextlib.suppress(OSError), process.stdin:  # the connection may have ended
                process.stdin.write(b"closed\n")
        limit = time.monotonic() + _END_SECONDS
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.01, limit - time.monotonic()))
            kill_group(process)
            process.wait()
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)


def _private_directory() -> str:
    """Create a directory for sockets that only this user can enter, with a short path."""
    for parent in (os.environ.get("XDG_RUNTIME_DIR"), temporary_place(), "/tmp"):
        if parent and len(parent) < _LONGEST_DIRECTORY:
            with contextlib.suppress(OSError):
                return tempfile.mkdtemp(prefix="swx-ssh-", dir=parent)
    return make_temporary("swx-ssh-")


def _said(connection: _Connection) -> str:
    """Return ssh's error output for a connection that could not be made."""
    words = ""
    with contextlib.suppress(OSError), open(f"{connection.socket}.said", errors="replace") as file:
        words = " ".join(file.read(100_000).split())
    return words or f"exit code {connection.process.returncode}"


def _forget_the_dead(connection: _Connection) -> None:
    """Free the slots of clients that have ended, or were never started."""
    for pid_file, since in list(connection.clients.items()):
        try:
            with open(pid_file) as file:
                os.kill(int(file.read()), 0)
        except PermissionError:
            pass
        except (FileNotFoundError, ValueError):  # the client has not started, or not written the file yet
            if time.monotonic() - since > _RESERVED_SECONDS:
                del connection.clients[pid_file]
        except ProcessLookupError:
            del connection.clients[pid_file]
            with contextlib.suppress(OSError):
                os.unlink(pid_file)
