"""Error for a server that does not speak frames.

This module is importable without the modules of the frame client.
"""

from __future__ import annotations

__all__ = ["NotFrames"]


class NotFrames(Exception):
    """Error for a peer that does not speak frames.

    The peer is not a swerex_c server, or is a proxy that does not pass frames. No request was sent.
    """
