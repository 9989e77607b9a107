"""Opening a connection that is to carry frames: to a host, to a unix socket, to a program that is started for it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import threading
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from swerex_c.exceptions import AuthenticationError, ConnectionLostError, InvalidInputError
from swerex_c.remote.client import is_loopback
from swerex_c.remote.link import FdTransport, Link
from swerex_c.remote.protocol import UPGRADE
from swerex_c.remote.unspoken import NotFrames

__all__ = ["LONGEST_HEAD", "Address", "NotFrames", "behind_proxy", "dial", "upgrade_error", "upgrade_request"]

_NEXT_ADDRESS = 2.0
"""Seconds after which the next of a host's addresses is tried instead."""

LONGEST_HEAD = 64 << 10
"""Bytes of an HTTP answer's head."""


@dataclass(frozen=True)
class Address:
    """Where a server is: a host and a port, a unix socket, or (stdio) a program to start."""

    host: str = "127.0.0.1"
    port: int = 80
    tls: bool = False
    path: str = "/"
    """What comes before the names of the endpoints."""
    unix: str = ""
    command: tuple[str, ...] = ()
    headers: dict[str, str] = field(default_factory=dict)
    """What goes with the HTTP request: the key."""

    @classmethod
    def of(cls, url: str, headers: dict[str, str]) -> Address:
        """Of a URL with the scheme http, https or unix.

        Raises:
            InvalidInputError: if it is none.
        """
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise InvalidInputError(f"{url!r} is no address of a server: {error}") from None
        if parts.scheme == "unix":
            return cls(unix=parts.path, headers=headers)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InvalidInputError(f"{url!r} is no address of a server")
        tls = parts.scheme == "https"
        return cls(parts.hostname, port or (443 if tls else 80), tls, parts.path, headers=headers)

    def __str__(self) -> str:
        if self.command:
            return " ".join(self.command)
        return self.unix or f"{self.host}:{self.port}"



def upgrade_request(address: Address) -> bytes | None:
    """What asks an HTTP server for frames (RFC 9110, section 7.8); None where there is no HTTP."""
    if address.command:
        return None
    host = f"[{address.host}]" if ":" in address.host else address.host
    lines = [
        f"GET {address.path.rstrip('/')}/wire HTTP/1.1",
        f"Host: {host or 'localhost'}:{address.port}" if not address.unix else "Host: localhost",
        "Connection: Upgrade",
        f"Upgrade: {UPGRADE}",
        *(f"{name}: {value}" for name, value in address.headers.items()),
    ]
    text = "\r\n".join(lines)
    if any(c in text.replace("\r\n", "") for c in "\r\n\0"):
        raise InvalidInputError("The server's address or the key holds a line break")
    return text.encode("utf-8", "surrogateescape") + b"\r\n\r\n"


def upgrade_error(head: bytes, rest: bytes) -> BaseException | None:
    """Why this answer to the upgrade is none that frames follow; None if they do."""
    lines = head.split(b"\r\n")
    words = lines[0].split(b" ", 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit() or len(words[1]) != 3:
        return NotFrames("The server's answer is no HTTP")
    status = int(words[1])
    names = [line.partition(b":") for line in lines[1:]]
    if status == 101 and any(n.lower() == b"upgrade" and v.strip() == UPGRADE.encode() for n, _, v in names):
        return None
    if status in (401, 403):
        return AuthenticationError(f"The server refuses the key (HTTP status {status})")
    if status in (429, 502, 503, 504, 511):
        text = rest[:300].decode(errors="replace")
        return ConnectionLostError(f"the server is too busy (HTTP status {status}) {text}")
    return NotFrames(f"HTTP status {status}")


def behind_proxy(url: str) -> bool:
    """Whether the environment names an HTTP proxy for this address, through which no frames pass."""
    parts = urlsplit(url)
    return not is_loopback(url) and parts.scheme in getproxies() and not proxy_bypass(parts.hostname or "")


async def dial(loop: asyncio.AbstractEventLoop, address: Address, link: Link) -> None:
    """Connect, and make `link` the protocol of the connection."""
    if address.command:
        _start_program(address.command, loop, link)
    elif address.unix:
        sock = socket.socket(socket.AF_UNIX)
        await _connect(loop, sock, address.unix)
        _over(loop, sock, link)
    else:
        await _open_tcp(loop, address, link)


async def _connect(loop: asyncio.AbstractEventLoop, sock: socket.socket, where: Any) -> None:
    try:
        sock.setblocking(False)
        await loop.sock_connect(sock, where)
    except BaseException:
        sock.close()
        raise


def _over(loop: asyncio.AbstractEventLoop, sock: socket.socket, link: Link) -> None:
    fd = sock.detach()
    FdTransport(loop, fd, fd, link)


async def _open_tcp(loop: asyncio.AbstractEventLoop, address: Address, link: Link) -> None:
    sock = await _connect_tcp(loop, address)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if address.tls:
        context = ssl.create_default_context()
        await loop.create_connection(lambda: link, sock=sock, ssl=context, server_hostname=address.host)
    else:
        _over(loop, sock, link)


async def _connect_tcp(loop: asyncio.AbstractEventLoop, address: Address) -> socket.socket:
    """The first of the host's addresses that takes the connection."""
    error: OSError | None = None
    found = await _resolve(loop, address.host, address.port)
    for i, (family, where) in enumerate(found):
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            async with asyncio.timeout(None if i == len(found) - 1 else _NEXT_ADDRESS):
                await _connect(loop, sock, where)
            return sock
        except OSError as e:  # or TimeoutError, which is one
            error = e
    raise error or OSError(f"The host {address.host!r} has no address")


async def _resolve(loop: asyncio.AbstractEventLoop, host: str, port: int) -> list[tuple[int, Any]]:
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError, ValueError):
            socket.inet_pton(family, host)
            return [(family, (host, port))]
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, where) for family, _, _, _, where in found]


def _start_program(command: tuple[str, ...], loop: asyncio.AbstractEventLoop, link: Link) -> None:
    """Its standard input and output are the connection; it ends when that is closed."""
    import subprocess

    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(list(command), stdin=theirs.fileno(), stdout=theirs.fileno())
        except BaseException:
            ours.close()
            raise
    threading.Thread(target=process.wait, name="swerex-program", daemon=True).start()
    _over(loop, ours, link)
