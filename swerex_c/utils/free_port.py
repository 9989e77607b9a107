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
    """Return a TCP port that is free on every address, and that none of the last 1,000 calls has returned.

    Another process can still take it before the caller does.

    Args:
        max_attempts: number of ports to try.
        sleep_between_attempts: seconds between the attempts.

    Raises:
        ResourceError: if there is no free port.
    """
    both = socket.has_dualstack_ipv6()
    for _ in range(max_attempts):
        with contextlib.suppress(OSError), _lock, socket.socket(socket.AF_INET6 if both else socket.AF_INET) as probe:
            if both:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            probe.bind(("", 0))
            port = int(probe.getsockname()[1])
            if port not in _RECENT_PORTS:
                _RECENT_PORTS.append(port)
                get_logger("free_port").debug(f"Found free port {port}")
                return port
        time.sleep(sleep_between_attempts)
    raise ResourceError(f"Failed to find a unique free port after {max_attempts} attempts")
