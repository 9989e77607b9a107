"""Create the TCP and unix sockets that a server listens on, from its options."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import ssl
import stat
from dataclasses import dataclass, field
from typing import Any

from swerex_c.exceptions import InvalidInputError, ResourceError
from swerex_c.remote.server.limits import Limits

__all__ = ["Listeners", "ListenAddresses", "ServeOptions"]

BACKLOG = 2048
"""Maximum number of connections in the system's queue that the server has not accepted yet."""


@dataclass(slots=True)
class ServeOptions:
    """Options of a server: addresses, TLS, limits and event loop."""

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

    loop: str = "auto"
    """Event loop: "asyncio", "uvloop", or "auto", which is uvloop if it is installed."""


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
        self.tls = _tls_context(options)
        self.tcp = [] if options.host is None else _bind_tcp(options.host, options.port)
        self.unix: socket.socket | None = None
        self._identity: tuple[int, int] | None = None
        self._unix_path = options.unix
        port = int(self.tcp[0].getsockname()[1]) if self.tcp else None
        try:
            if options.unix is not None:
                self._bind_unix(options.unix)
        except BaseException:
            self.close()
            raise
        unix = options.unix and os.path.abspath(options.unix)
        self.addresses = ListenAddresses(self._url(options.host, port), port, unix)

    def _url(self, host: str | None, port: int | None) -> str | None:
        if host is None:
            return None
        return f"{'https' if self.tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"

    def _bind_unix(self, path: str) -> None:
        self.unix = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        _remove_stale(path)
        old = os.umask(0o177)
        try:
            self.unix.bind(path)
        except OSError as error:
            why = "the path is too long" if error.errno is None else os.strerror(error.errno)
            raise ResourceError(f"Cannot listen on the unix socket {path}: {why}", errno=error.errno) from None
        finally:
            os.umask(old)
        found = os.stat(path)
        self._identity = (found.st_dev, found.st_ino)
        self.unix.listen(BACKLOG)

    @property
    def all(self) -> list[socket.socket]:
        return [*self.tcp, *filter(None, [self.unix])]

    def close(self) -> None:
        """Close all sockets, and remove the unix socket's file.

        The file stays if another server has replaced it.
        """
        for listener in self.all:
            listener.close()
        if self._identity is not None and self._unix_path is not None:
            with contextlib.suppress(OSError):
                found = os.stat(self._unix_path)
                if (found.st_dev, found.st_ino) == self._identity:
                    os.unlink(self._unix_path)
            self._identity = None


def _tls_context(options: ServeOptions) -> ssl.SSLContext | None:
    if options.tls_cert is None:
        if options.tls_key is not None:
            raise InvalidInputError("A TLS key was given without a certificate")
        return None
    for path in filter(None, (options.tls_cert, options.tls_key)):
        try:
            open(path, "rb").close()
        except OSError as error:
            raise ResourceError(f"The TLS file {path} cannot be read: {error.strerror}", errno=error.errno) from None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(options.tls_cert, options.tls_key, password=lambda: "")
    except (ssl.SSLError, OSError, ValueError) as error:
        files = " and ".join(filter(None, (options.tls_cert, options.tls_key)))
        reason = getattr(error, "reason", None) or str(error)
        msg = f"No TLS certificate with its key (without a passphrase) is in {files}: {reason}"
        raise ResourceError(msg) from None
    return context


def _bind_tcp(host: str, port: int) -> list[socket.socket]:
    """Return listening sockets for all addresses of a host, on one port."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ResourceError(f"Cannot listen on {host}: {getattr(error, 'strerror', None) or error}") from None
    with contextlib.ExitStack() as stack:
        sockets: list[socket.socket] = []
        for family, kind, number, _, address in dict.fromkeys(found):
            at = (address[0], port, *address[2:])
            try:
                sockets.append(stack.enter_context(socket.socket(family, kind, number)))
                _listen_on(sockets[-1], at)
            except OSError as error:
                if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL) and len(found) > 1:
                    sockets.pop().close()
                    continue
                why = "it is taken by another process" if error.errno == errno.EADDRINUSE else error.strerror
                msg = f"Cannot listen on port {port} of {address[0]}: {why}"
                raise ResourceError(msg, errno=error.errno) from None
            port = port or int(sockets[-1].getsockname()[1])
        if not sockets:
            raise ResourceError(f"Cannot listen on {host}: it has no address of this machine")
        stack.pop_all()
    return sockets


def _listen_on(listener: socket.socket, address: Any) -> None:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if listener.family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    # Accepted connections inherit these on Linux. They detect a vanished client, and keep a connection without other
    # traffic alive in the network during a long command. In seconds, but TCP_USER_TIMEOUT in milliseconds.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 15)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 120_000)
    listener.bind(address)
    listener.listen(BACKLOG)


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
