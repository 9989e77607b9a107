"""Other hosts, reached by OpenSSH's client."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from swerex_c.exceptions import InvalidInputError, PlaceLostError
from swerex_c.exec.ask import ask
from swerex_c.exec.backend import Backend
from swerex_c.exec.carry import in_one_word

__all__ = ["SSHBackend"]

_SESSIONS = 8
"""How many clients share one connection. Servers allow 10 unless told otherwise, and end some later than we do."""

_CONNECTING = 4
"""How many connections are being made at once. Servers begin to refuse at 10 unless told otherwise."""

_RESERVED_SECONDS = 60.0
"""How long a place on a connection is kept for a client that was not started."""

_LONGEST_DIRECTORY = 60
"""Of the 107 bytes of a socket's path ssh takes 17 for itself."""

_FAILED = 255
"""What ssh ends with when it fails itself; and when the program there was ended by a signal, or ended so itself."""

_ASK_SECONDS = 5.0
"""How long a connection of our own may take to say that it is there. Nothing goes over the network for that."""

_WORDS = 500
"""How many characters of what ssh said a message holds."""

# What ssh says, in small letters, and what to do then.
_ADVICE = (
    (
        "identification has changed",
        "It shows another key than the one that is known of it: if that is right, `ssh-keygen -R HOST` forgets the old",
    ),
    (
        "host key verification failed",
        "Its key is not known here: connect by hand once, or give `StrictHostKeyChecking=accept-new` in `options`",
    ),
    (
        "permission denied",
        "It takes no key that ssh has here, and nobody is asked for a password: name one in `identity_file`, or give "
        "it to ssh-agent, and see whether `user` is right",
    ),
)

# The first value that ssh is given for an option is the one that counts.
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

# One connection. While $1.up is there and the socket $1 is not, it is being made.
_CONNECT = """
socket=$1 before=$2; shift 2
n=0
while [ -e "$before.up" ] && [ ! -S "$before" ] && [ $((n+=1)) -lt 400 ]; do sleep 0.05; done
"$@" </dev/null >/dev/null 2>"$socket.said"
code=$?
rm -f "$socket.up" "$socket"
exit "$code"
"""

# Ends the connections when nobody holds its standard input any more: whatever ended our process, they end with it.
_WATCH = """
directory=$1; shift
read -r line
for up in "$directory"/*.up; do
  [ ! -S "${up%.up}" ] || "$@" -O exit -o "ControlPath=${up%.up}" -- place
done >/dev/null 2>&1
rm -rf "$directory"
"""

# Of a client: who has the place on the connection, and the wait for a connection that is being made.
_TAKE = """
socket=$1 place=$2; shift 2
[ -z "$place" ] || echo $$ >"$place"
n=0
while [ -e "$socket.up" ] && [ ! -S "$socket" ] && [ $((n+=1)) -lt 600 ]; do sleep 0.05; done
"""


@dataclass
class _Connection:
    """A connection that clients share."""

    socket: str
    process: subprocess.Popen[bytes]
    taken: dict[str, float] = field(default_factory=dict)
    """The files in which clients leave their process ids, and when these were promised a place."""


class SSHBackend(Backend):
    """A host that runs an ssh server and lets us in without a question.

    Clients share connections of our own, eight to each. A client that gets no place on one makes its own.
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
        """
        Args:
            host: its name, address, or alias in the configuration file.
            identity_file: the private key to offer; it has to be there when `open` is called.
            config_file: in place of the user's and the system's.
            options: as after `-o`, such as `StrictHostKeyChecking=accept-new`; they come before the package's own.
            command: the client, with arguments that come before all others.
            share_connections: whether clients share connections; if not, each makes its own.

        Raises:
            InvalidInputError: if the host cannot be one.
        """
        if not host or host.startswith("-") or "\0" in host:
            raise InvalidInputError(f"{host!r} is not the name of a host")
        self.host = host
        self.name = "host " + (f"{user}@{host}" if user else host) + (f":{port}" if port else "")
        self._command = tuple(command)
        self._client = [*command, *(("-F", config_file) if config_file else ())]
        more = [word for option in (*options, *_DEFAULTS) for word in ("-o", option)]
        more += ["-p", str(port)] if port else []
        more += ["-l", user] if user else []
        more += ["-i", identity_file] if identity_file else []
        self._identity = identity_file
        self._options = more
        self._share = share_connections
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._directory: str | None = None
        self._watch: subprocess.Popen[bytes] | None = None
        self._connections: list[_Connection] = []
        self._owner = os.getpid()

    def terminal(self, argv: Sequence[str], names: Sequence[str]) -> list[str]:
        return self._line("-tt", argv, names)

    def pipes(self, argv: Sequence[str], names: Sequence[str]) -> list[str]:
        return self._line("-T", argv, names)

    def _line(self, streams: str, argv: Sequence[str], names: Sequence[str]) -> list[str]:
        socket, place = self._take()
        before = f'set -- {shlex.quote(socket)} {shlex.quote(place)} "$@"\n{_TAKE}' if socket else ""
        return in_one_word([*self._ssh(socket), streams, "--", self.host], argv, names, before=before)

    def _ssh(self, socket: str) -> list[str]:
        """The client up to the host. Without a socket it makes a connection of its own."""
        control = ["-o", f"ControlPath={socket or 'none'}", "-o", "ControlMaster=no", "-o", "ControlPersist=no"]
        return [*self._client, *control, *self._options]

    def why_lost(self, timeout: float) -> str | None:
        try:
            # Any shell knows what that is, and it needs no bash.
            said = ask(
                [*self._ssh(""), "-T", "--", self.host, "exit 0"], environment=self.environment(), timeout=timeout
            )
        except TimeoutError:
            raise TimeoutError(f"The {self.name} did not answer within {timeout:g} seconds") from None
        except OSError as error:
            return self._no_client(error)
        return self._refused(said.words) if said.code else None

    def unsure(self, client: Sequence[str], code: int) -> str | None:
        if code != _FAILED:
            return None
        with self._lock:
            socket = next((it.socket for it in self._connections if f"ControlPath={it.socket}" in client), "")
        if not socket:
            return f"ssh ended with status {code}, as it does when a connection is lost"
        check = [*self._command, "-F", "none", "-O", "check", "-o", f"ControlPath={socket}", "--", "place"]
        with contextlib.suppress(TimeoutError, OSError):
            if ask(check, environment=self.environment(), timeout=_ASK_SECONDS).code == 0:
                return None  # it carries the others on
        return f"The connection to the {self.name} was lost"

    def _no_client(self, error: OSError) -> str:
        return f"The command {self._client[0]!r} cannot be run ({error.strerror}), so the {self.name} is out of reach"

    def _refused(self, words: str) -> str:
        advice = next((f". {what}" for sign, what in _ADVICE if sign in words.lower()), "")
        return f"The {self.name} is out of reach, for ssh says: {words[-_WORDS:].rstrip('.')}{advice}"

    # Connections that are shared

    def open(self, timeout: float) -> None:
        if self._identity and not os.path.isfile(os.path.expanduser(self._identity)):
            # ssh would go on without it, and say of something else why that host does not let us in.
            msg = f"The {self.name} is out of reach: there is no key file {self._identity!r} (`identity_file`)"
            raise PlaceLostError(msg)
        if not self._share or self._directory is not None:
            return
        if shutil.which(self._client[0]) is None:
            raise PlaceLostError(self._no_client(FileNotFoundError(2, os.strerror(2))))
        with self._lock:
            directory = self._directory = _private_directory()
            self._watch = subprocess.Popen(
                ["sh", "-c", _WATCH, "sh", directory, *self._command, "-F", "none"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=self.environment(),
                cwd="/",
                start_new_session=True,
            )
            first = self._connect()
        try:
            self._wait(first, timeout)
        except BaseException:
            self.close()
            raise

    def _wait(self, connection: _Connection, timeout: float) -> None:
        """Until the connection is there."""
        limit = time.monotonic() + timeout
        while not os.path.exists(connection.socket):
            if connection.process.poll() is not None:
                raise PlaceLostError(self._refused(_said(connection)))
            if time.monotonic() > limit:
                raise PlaceLostError(f"The {self.name} did not let us in within {timeout:.3g} seconds")
            time.sleep(0.005)

    def _connect(self) -> _Connection:
        """Begin to make a connection. With the lock held."""
        socket = f"{self._directory}/{next(self._numbers)}"
        before = self._connections[-_CONNECTING].socket if len(self._connections) >= _CONNECTING else ""
        with open(f"{socket}.up", "x"):
            pass
        client = [*self._client, "-o", f"ControlPath={socket}", "-o", "ControlMaster=yes", "-o", "ControlPersist=no"]
        process = subprocess.Popen(
            ["sh", "-c", _CONNECT, "sh", socket, before, *client, *self._options, "-N", "-T", "--", self.host],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=self.environment(),
            cwd="/",
            start_new_session=True,
        )
        self._connections.append(_Connection(socket, process))
        return self._connections[-1]

    def _take(self) -> tuple[str, str]:
        """A place on a connection: its socket, and the file for the client's process id. Empty if there is none."""
        with self._lock:
            if self._directory is None:
                return "", ""
            self._connections = [it for it in self._connections if it.process.poll() is None]
            for connection in self._connections:
                _forget_the_dead(connection)
            free = (it for it in self._connections if len(it.taken) < _SESSIONS)
            connection = next(free, None) or self._connect()
            place = f"{self._directory}/client{next(self._numbers)}"
            connection.taken[place] = time.monotonic()
            return connection.socket, place

    def close(self) -> None:
        with self._lock:
            if self._owner != os.getpid():
                return
            directory, self._directory = self._directory, None
            connections, self._connections = self._connections, []
            watch, self._watch = self._watch, None
        processes = [connection.process for connection in connections]
        if watch is not None:
            assert watch.stdin is not None
            watch.stdin.close()
            processes.append(watch)
        for connection in connections:
            if not os.path.exists(connection.socket):  # it is being made: nobody can tell it to end
                _kill(connection.process)
        limit = time.monotonic() + 5
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.01, limit - time.monotonic()))
            _kill(process)
            process.wait()
        if directory is not None:
            shutil.rmtree(directory, ignore_errors=True)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End one that leads a process group, with the group."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)


def _private_directory() -> str:
    """A new directory for sockets, which only this user may enter and whose name is short."""
    for parent in (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp"):
        if parent and len(parent) < _LONGEST_DIRECTORY:
            with contextlib.suppress(OSError):
                return tempfile.mkdtemp(prefix="swx-ssh-", dir=parent)
    return tempfile.mkdtemp(prefix="swx-ssh-")


def _said(connection: _Connection) -> str:
    """What ssh said when a connection could not be made."""
    words: Iterator[str] = iter(())
    with contextlib.suppress(OSError), open(f"{connection.socket}.said", errors="replace") as said:
        words = iter(said.read(100_000).split())
    return " ".join(words) or f"exit code {connection.process.returncode}"


def _forget_the_dead(connection: _Connection) -> None:
    """Free the places of clients that have ended, or were never started."""
    for place, since in list(connection.taken.items()):
        try:
            with open(place) as file:
                os.kill(int(file.read()), 0)
        except PermissionError:
            pass
        except (FileNotFoundError, ValueError):  # it has not begun, or not written yet
            if time.monotonic() - since > _RESERVED_SECONDS:
                del connection.taken[place]
        except ProcessLookupError:
            del connection.taken[place]
            with contextlib.suppress(OSError):
                os.unlink(place)
