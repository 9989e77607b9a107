"""Frame connections over TCP, over a unix socket, or to a started program."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from aiohappyeyeballs import start_connection

from swerex_c.exceptions import AuthenticationError, ConnectionLostError, InvalidInputError
from swerex_c.remote.client.base import NotFrames
from swerex_c.remote.wire.connection import FrameConnection
from swerex_c.remote.wire.protocol import CHANNEL_HEADER, SERVER_HEADER, UPGRADE
from swerex_c.utils.threads import start_thread

__all__ = ["Address", "check_upgrade", "connect", "upgrade_request"]

_NEXT_ADDRESS = 0.25
"""Seconds to wait for a connection to one address of a host before the next one is tried as well (RFC 8305)."""


@dataclass(frozen=True)
class Address:
    """Address of a server: host and port, unix socket, or (stdio) program to start."""

    host: str = "127.0.0.1"
    port: int = 80
    tls: bool = False
    path: str = "/"
    """Path prefix of the endpoints."""
    unix: str = ""
    command: tuple[str, ...] = ()
    headers: dict[str, str] = field(default_factory=dict)
    """Headers of the HTTP upgrade request, including the key."""

    @classmethod
    def of(cls, url: str, headers: dict[str, str]) -> Address:
        """Create an address from a URL; raise InvalidInputError if it has another scheme than http, https or unix."""
        try:
            parts = urlsplit(url)
            if parts.scheme == "unix":
                return cls(unix=parts.path, headers=headers)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError("it needs http:// or https:// and a host, or unix:// and a path")
            tls = parts.scheme == "https"
            port = (443 if tls else 80) if parts.port is None else parts.port
            return cls(parts.hostname, port, tls, parts.path, headers=headers)
        except ValueError as error:
            raise InvalidInputError(f"{url!r} is not the address of a server: {error}") from None

    def __str__(self) -> str:
        if self.command:
            return " ".join(self.command)
        return self.unix or f"{self.host}:{self.port}"


def upgrade_request(address: Address, channel: str) -> bytes:
    """Return the HTTP upgrade request for frames on a channel; raise InvalidInputError if a line cannot be sent."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    lines = [
        f"GET {address.path.rstrip('/')}/wire HTTP/1.1",
        f"Host: {host}:{address.port}",
        "Connection: Upgrade",
        f"Upgrade: {UPGRADE}",
        f"{CHANNEL_HEADER}: {channel}",
        *(f"{name}: {value}" for name, value in address.headers.items()),
    ]
    try:
        if any(c in "".join(lines) for c in "\r\n\0"):
            raise ValueError
        return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")
    except ValueError:  # whose text would show the key
        raise InvalidInputError("The server's address or the key holds a line break or is not text") from None


def check_upgrade(head: bytes, rest: bytes, known_server: str | None) -> tuple[str, bool]:
    """Return the server's instance id from its response to an upgrade request, and whether it knows the channel.

    Args:
        rest: the part of the body received so far.
        known_server: id of the server that has spoken frames before, if there was one.

    Raises:
        NotFrames, AuthenticationError: if the server does not support frames, or refuses the key.
        ConnectionLostError: if it has no room now.
    """
    status_line, *lines = head.decode("latin-1").split("\r\n")
    words = status_line.split(" ", 2)
    status = words[1] if len(words) > 1 else ""
    fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    server, channel = fields.get(SERVER_HEADER.lower()), fields.get(CHANNEL_HEADER.lower())
    if status == "401" or status == "403" and server:  # without a name it is a proxy that refuses to upgrade
        raise AuthenticationError(f"The server refuses the key (HTTP status {status})")
    if status in ("429", "502", "503", "504", "511"):
        text = rest[:300].decode(errors="replace")
        raise ConnectionLostError(f"the server is too busy (HTTP status {status}) {text}")
    if status == "426" and server and server == known_server:
        raise ConnectionLostError("a proxy has used the connection to the server for another request before")
    if status != "101" or fields.get("upgrade") != UPGRADE or not server or not channel:
        raise NotFrames(f"HTTP status {status[:100]}")
    return server, channel == "known"


async def connect(loop: asyncio.AbstractEventLoop, address: Address, connection: FrameConnection) -> None:
    """Connect to `address` with the asyncio protocol `connection`."""
    if address.command:
        await loop.create_unix_connection(lambda: connection, sock=_start_program(address.command))
    elif address.unix:
        await loop.create_unix_connection(lambda: connection, address.unix)
    else:
        try:  # an IP address needs no thread
            found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
        except OSError:
            found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        sock = await start_connection(found, happy_eyeballs_delay=_NEXT_ADDRESS)
        context = ssl.create_default_context() if address.tls else None
        name = address.host if context else None
        await loop.create_connection(lambda: connection, sock=sock, ssl=context, server_hostname=name)


def _start_program(command: tuple[str, ...]) -> socket.socket:
    """Start a program; return the socket that is its standard input and output. Closing it ends the program's input."""
    import subprocess

    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with contextlib.ExitStack() as undo, theirs:
        undo.callback(ours.close)
        process = subprocess.Popen(list(command), stdin=theirs.fileno(), stdout=theirs.fileno())
        undo.callback(process.wait)
        undo.callback(process.kill)
        start_thread(process.wait, "swerex-program")
        undo.pop_all()
    return ours
