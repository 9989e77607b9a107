"""Find free TCP ports that no other caller in this process has received."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time

from swerex_c.exceptions import ResourceError
from swerex_c.utils.log import get_logger

__all__ = ["find_free_port"]

_REGISTERED_PORTS: dict[int, None] = {}
"""Ports that were returned, oldest first."""

_REGISTERED_PORTS_LOCK = threading.Lock()


def find_free_port(max_attempts: int = 10, sleep_between_attempts: float = 0.1) -> int:
    """Return a free TCP port that no other call in this process has returned.

    The port is free on every address. If the system finds no other port, this returns a free port a second time, the
    one that was returned longest ago. Another process can still take the port before the caller does.

    Args:
        max_attempts: number of ports to try before reusing one.
        sleep_between_attempts: seconds to wait after the system had no port at all.

    Raises:
        ResourceError: if there is no free port.
    """
    with _REGISTERED_PORTS_LOCK:
        port = _new_port(max_attempts, sleep_between_attempts) or _oldest_free_port()
        if port is None:
            raise ResourceError(f"Failed to find a unique free port after {max_attempts} attempts")
        _REGISTERED_PORTS.pop(port, None)
        _REGISTERED_PORTS[port] = None
    get_logger("free_port").debug(f"Found free port {port}")
    return port


def _new_port(max_attempts: int, pause: float) -> int | None:
    # Keep unsuitable ports bound until the search is over, so that the system does not offer them again.
    with contextlib.ExitStack() as unfit:
        for _ in range(max_attempts):
            taken = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            unfit.enter_context(taken)
            try:
                taken.bind(("", 0))
            except OSError:
                time.sleep(pause)
                continue
            port = int(taken.getsockname()[1])
            if port not in _REGISTERED_PORTS and _free_for_ipv6(port):
                return port
    return None


def _oldest_free_port() -> int | None:
    for port in _REGISTERED_PORTS:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as attempt:
            try:
                attempt.bind(("", port))
            except OSError:
                continue
        if _free_for_ipv6(port):
            return port
    return None


def _free_for_ipv6(port: int) -> bool:
    """Check whether a server could also listen on this port over IPv6; return True if there is no IPv6."""
    try:
        attempt = socket.socket(socket.AF_INET6, socket.SOCK_STREAM)
    except OSError:
        return True
    with attempt:
        try:
            attempt.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            attempt.bind(("::", port))
        except OSError as error:
            return error.errno != errno.EADDRINUSE
    return True
