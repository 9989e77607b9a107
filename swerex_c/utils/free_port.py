"""Find free TCP ports that no other caller in this process has just received."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import deque

from swerex_c.exceptions import ResourceError
from swerex_c.utils.log import get_logger

__all__ = ["find_free_port"]

_RECENT_PORTS: deque[int] = deque(maxlen=1000)
"""Ports that were returned last; the callers may not listen on them yet."""

_lock = threading.Lock()


def find_free_port(max_attempts: int = 10, sleep_between_attempts: float = 0.1) -> int:
    """Return a free TCP port that none of the last 1,000 calls in this process has returned.

    The port is free on every address. Another process can still take it before the caller does.

    Args:
        max_attempts: number of ports to try.
        sleep_between_attempts: seconds to wait after the system had no port at all.

    Raises:
        ResourceError: if there is no free port.
    """
    both = socket.has_dualstack_ipv6()
    # Keep unsuitable ports bound until the search is over, so that the system does not offer them again.
    with _lock, contextlib.ExitStack() as unfit:
        for _ in range(max_attempts):
            taken = unfit.enter_context(socket.socket(socket.AF_INET6 if both else socket.AF_INET))
            if both:
                taken.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            try:
                taken.bind(("", 0))
            except OSError:
                time.sleep(sleep_between_attempts)
                continue
            port = int(taken.getsockname()[1])
            if port not in _RECENT_PORTS:
                _RECENT_PORTS.append(port)
                get_logger("free_port").debug(f"Found free port {port}")
                return port
    raise ResourceError(f"Failed to find a unique free port after {max_attempts} attempts")
