"""TCP and unix sockets that a server listens on, and its TLS certificate."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import stat
from collections.abc import Iterator

from swerex_c.exceptions import InvalidInputError, ResourceError

__all__ = ["Listeners"]

BACKLOG = 2048
"""Maximum number of connections in the system's queue that the server has not accepted yet."""


class Listeners:
    """The listening sockets of a server; they listen as soon as the object is created.

    `url` (without the port), `port` and `unix` are its addresses; each is None if the server does not use its kind.

    Args:
        host: name or address to listen on; None to listen on no TCP port.
        port: TCP port; 0 selects a free port.
        unix: path of a unix socket to listen on as well; only the same user may connect to it.
        tls_cert: file with the server's certificate and the intermediate certificates (PEM).
        tls_key: file with the private key, unless `tls_cert` contains it.

    Raises:
        ResourceError: if an address is in use or cannot be used, or a certificate or key cannot be read.
        InvalidInputError: if the arguments contradict each other.
    """

    def __init__(
        self,
        host: str | None = "127.0.0.1",
        port: int = 0,
        unix: str | None = None,
        tls_cert: str | None = None,
        tls_key: str | None = None,
    ):
        if host is None and unix is None:
            raise InvalidInputError("The server is to listen neither on a port nor on a unix socket")
        if tls_cert is None and tls_key is not None:
            raise InvalidInputError("A TLS key was given without a certificate")
        self.tls = None if tls_cert is None else _tls_context(tls_cert, tls_key)
        self.all: list[socket.socket] = []
        self.url = self.port = self.unix = None
        with contextlib.ExitStack() as stack:
            if host is not None:
                self.all += _bind_tcp(host, port, stack)
                self.port = int(self.all[0].getsockname()[1])
                self.url = f"{'https' if self.tls else 'http'}://{f'[{host}]' if ':' in host else host}"
            if unix is not None:
                self.all.append(stack.enter_context(_unix_listener(unix)))
                self.unix = os.path.abspath(unix)
            self._opened = stack.pop_all()

    def __str__(self) -> str:
        """Return the addresses as text for a log."""
        places = [f"{self.url}:{self.port}"] if self.url else []
        return " and ".join([*places, f"unix://{self.unix}"] if self.unix else places)

    def close(self) -> None:
        """Close all sockets, and remove the unix socket's file, unless another server has replaced it."""
        self._opened.close()


def _tls_context(cert: str, key: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(cert, key, password=lambda: "")
    except (OSError, ValueError) as error:
        files = " and ".join(filter(None, (cert, key)))
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise ResourceError(f"No TLS certificate with its key (without a passphrase) is in {files}: {reason}") from None
    return context


def _bind_tcp(host: str, port: int, opened: contextlib.ExitStack) -> list[socket.socket]:
    """Return listening sockets for all addresses of a host, on one port; `opened` closes them."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ResourceError(f"Cannot listen on {host}: {getattr(error, 'strerror', None) or error}") from None
    sockets: list[socket.socket] = []
    for family, _, _, _, address in dict.fromkeys(found):
        at = (address[0], port, *address[2:])
        try:
            listener = opened.enter_context(socket.create_server(at, family=family, backlog=BACKLOG))
        except OSError as error:
            if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL) and len(found) > 1:
                continue  # such as the IPv6 address of localhost in a container without IPv6
            msg = f"Cannot listen on port {port} of {address[0]}: {os.strerror(error.errno or 0)}"
            raise ResourceError(msg, errno=error.errno) from None
        # Accepted connections inherit these on Linux. They detect a vanished client, and keep a connection without
        # other traffic alive in the network during a long command. In seconds, but TCP_USER_TIMEOUT in ms.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 120_000)
        sockets.append(listener)
        port = port or int(listener.getsockname()[1])
    if not sockets:
        raise ResourceError(f"Cannot listen on {host}: it has no address of this machine")
    return sockets


@contextlib.contextmanager
def _unix_listener(path: str) -> Iterator[socket.socket]:
    _remove_stale(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        old = os.umask(0o177)
        try:
            listener.bind(path)
        except OSError as error:
            why = "the path is too long" if error.errno is None else os.strerror(error.errno)
            raise ResourceError(f"Cannot listen on the unix socket {path}: {why}", errno=error.errno) from None
        finally:
            os.umask(old)
        made = os.stat(path)
        try:
            listener.listen(BACKLOG)
            yield listener
        finally:
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(path), made):
                    os.unlink(path)


def _remove_stale(path: str) -> None:
    """Remove the file of a unix socket on which no server listens any more."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as attempt:
        if stat.S_ISSOCK(os.lstat(path).st_mode):
            attempt.settimeout(2)
            try:
                attempt.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
