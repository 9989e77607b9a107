"""Heads of the HTTP upgrade to frames, on every transport."""

from __future__ import annotations

import http.client
import io
import re
from email.message import Message

from swerex_c.remote.wire.protocol import CHANNEL_HEADER, SERVER_HEADER, UPGRADE

__all__ = ["switching", "upgrade_fields"]

_CHANNEL = re.compile("[0-9a-f]{32}")


def switching(instance_id: str, known: bool) -> bytes:
    """Return the head of the response to an upgrade request, on a channel that is known or new."""
    lines = ("HTTP/1.1 101 Switching Protocols", "Connection: Upgrade", f"Upgrade: {UPGRADE}",
             f"{SERVER_HEADER}: {instance_id}", f"{CHANNEL_HEADER}: {'known' if known else 'new'}", "", "")  # fmt: skip
    return "\r\n".join(lines).encode()


def upgrade_fields(head: bytes) -> Message | None:
    """Return the headers if the head asks for the frame protocol on a channel, else None."""
    request, _, fields = head.partition(b"\r\n")
    words = request.split(b" ")
    if len(words) != 3 or words[0] != b"GET" or words[2] != b"HTTP/1.1":
        return None
    if not words[1].partition(b"?")[0].endswith(b"/wire"):
        return None
    try:
        headers = http.client.parse_headers(io.BytesIO(fields + b"\r\n\r\n"))
    except http.client.HTTPException:
        return None
    tokens = ",".join(headers.get_all("Connection", [])).lower().split(",")
    asked = headers.get("Upgrade", "").strip().lower() == UPGRADE and "upgrade" in map(str.strip, tokens)
    return headers if asked and _CHANNEL.fullmatch(headers.get(CHANNEL_HEADER, "")) else None
