"""Error for a server that does not speak frames, and advice for other failures.

This module is importable without the modules of the frame client.
"""

from __future__ import annotations

__all__ = ["NotFrames", "advice"]


class NotFrames(Exception):
    """Error for a peer that is no server of swerex_c, or a proxy that passes no frames. No request was sent."""


def advice(error: BaseException) -> str:
    """Return what to do about a connection that cannot be made."""
    import ssl

    if isinstance(getattr(error, "os_error", error), ssl.SSLError):  # `os_error` is the cause of an error of aiohttp
        return "a server without TLS needs http://"
    return "is `swerex-c serve` running there, and are host and port right?"
