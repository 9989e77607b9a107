"""What a client learns when a server does not speak frames. Apart, because it is looked for without any of them."""

from __future__ import annotations

__all__ = ["NotFrames"]


class NotFrames(Exception):
    """What answers there is no server of ours, or something is between that lets no frames pass. Nothing was sent."""
