"""Create the TCP and unix sockets that a server listens on, from its options."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field

from swerex_c.exceptions import InvalidInputError, ResourceError
from swerex_c.remote.server.limits import Limits

__all__ = ["Listeners", "ListenAddresses", "ServeOptions"]

BACKLOG = 2048
"""Maximum number of connections in the system's queue that the server has not accepted yet."""


@dataclass(slots=True)
class ServeOptions:
    """Options of a server: addresses, TLS and limits."""

    host: str | None = "127.0.0.1"
    """Host name or address to listen on; None to listen on no TCP port."""

    port: int = 8000
    """TCP port; 0 selects a free port."""

    unix: str | None = None
    """Path of a unix socket to listen on as well; only the same user may connect to it."""

    tls_cert: str | None = None
    """File with the server's certificate and the intermediate certificates (PEM)."""

    tls_key: str | None = None
    """File with the private key, unless `tls_cert` contains it."""

    limits: Limits = field(default_factory=Limits)

    graceful: float = 5.0
    """Maximum number of seconds for the shutdown, whatever clients do."""


@dataclass(frozen=True, slots=True)
class ListenAddresses:
    """The addresses on which a server listens.

    An address is None if the server does not use its kind.
    """

    url: str | None
    port: int | None
    unix: str | None

    def __str__(self) -> str:
        return " and ".join(place for place in (self.url, self.unix and f"unix://{self.unix}") if place)


class Listeners:
    """The listening sockets of a server; they listen as soon as the object is created.

    Raises:
        ResourceError: if an address is in use or cannot be used, or a certificate or key cannot be read.
        InvalidInputError: if the options contradict each other.
    """

    def __init__(self, options: ServeOptions):
        if options.host is None and options.unix is None:
            raise InvalidInputError("The server is to listen neither on a port nor on a unix socket")
        if options.tls_cert is None and options.tls_key is not None:
            raise InvalidInputError("A TLS key was given without a certificate")
        self.tls = None if options.tls_cert is None else _tls_context(options.tls_cert, options.tls_key)
        self.all: list[socket.socket] = []
        url = port = unix = None
        with contextlib.ExitStack() as stack:
            if options.host is not None:
                self.all += map(stack.enter_context, _bind_tcp(options.host, options.port))
                port = int(self.all[0].getsockname()[1])
                host = f"[{options.host}]" if ":" in options.host else options.host
                url = f"{'https' if self.tls else 'http'}://{host}:{port}"
            if options.unix is not None:
                self.all.append(stack.enter_context(_unix_listener(options.unix)))
                unix = os.path.abspath(options.unix)
            self._opened = stack.pop_all()
        self.addresses = ListenAddresses(url, port, unix)

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


def _bind_tcp(host: str, port: int) -> list[socket.socket]:
    """Return listening sockets for all addresses of a host, on one port."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ResourceError(f"Cannot listen on {host}: {getattr(error, 'strerror', None) or error}") from None
    with contextlib.ExitStack() as stack:
        sockets: list[socket.socket] = []
        for family, _, _, _, address in dict.fromkeys(found):
            at = (address[0], port, *address[2:])
            try:
                listener = stack.enter_context(socket.create_server(at, family=family, backlog=BACKLOG))
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
        stack.pop_all()
    return sockets


@contextlib.contextmanager
def _unix_listener(path: str) -> Iterator[socket.socket]:
    """Listen on a unix socket that only this user may connect to; in the end, remove its file if it is still there."""
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
    """Remove the file of a unix socket that a dead server left.

    Raises:
        ResourceError: if another server listens on it, or the path is not a socket.
    """
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(mode):
        raise ResourceError(f"Cannot listen on the unix socket {path}: something else is there already")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as attempt:
        attempt.settimeout(2)
        try:
            attempt.connect(path)
        except ConnectionRefusedError:
            with contextlib.suppress(OSError):
                os.unlink(path)
            return
        except OSError as error:
            raise ResourceError(f"Cannot listen on the unix socket {path}: {error}", errno=error.errno) from None
    raise ResourceError(f"Cannot listen on the unix socket {path}: another server does", errno=errno.EADDRINUSE)
