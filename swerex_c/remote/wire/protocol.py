"""Frame protocol between client and server: frames, constants and payloads.

A client asks in an HTTP upgrade request (RFC 9110, section 7.8) to the path `wire` for a connection, also over a unix
socket or the standard streams of a program. Behind the heads, the connection transports frames in both directions
(`csrc/swx_frame.h`: a length and one msgpack value). Each frame is an array whose first item is its kind.

The request names a *channel* by 32 hexadecimal digits in CHANNEL_HEADER, and the client numbers its requests on it from
1 up. The response says there whether the channel is "new" or "known", and in SERVER_HEADER which server process it is.
A request and all frames that belong to it are an *exchange*. A channel outlives its connection: a client that lost the
connection opens another one, names the channel, and resends the unanswered requests. The server executes a request
number only once. If the number arrives again, both ends send its streams again from the last credit on, and drop what
they have.

    client to server
      REQUEST  id, method, floor, payload      floor: the lowest id whose response the client still waits for
      CANCEL   id                              the client no longer waits for the request, or has its response, although
                                               the floor is lower; the server ends it, and drops its response
      END      id, UP, offset                  offset: length of an upload
    server to client
      RESULT   id, size, payload               size: length of DOWN, 0 if there is none
      ERROR    id, size, payload               likewise; payload: see `exceptions`
    both
      DATA     id, lane, offset, bytes         a piece of a byte stream; offset: position of its first byte
      CREDIT   id, lane, offset                the receiver has consumed the stream up to this offset
      PING     floor                           answered by PONG; floor: as in REQUEST, 0 from a server
      PONG
      GOODBYE  reason                          the sender closes the channel for good

An exchange has up to three streams (*lanes*): UP, from the client (a long request, an upload); DOWN, from the server
(streamed output, a download); ANSWER, from the server (a long response). A sender is at most WINDOW bytes ahead of the
receiver's credit, and a piece has at most PIECE bytes. So a long stream does not delay short messages, and a slow
reader delays only its own stream. A response is complete when DOWN and ANSWER have their sizes, in whatever order the
frames come.

A frame with a payload has at most INLINE bytes. A longer payload is encoded as a frame of its own and sent in the lane
UP (requests) or ANSWER (responses); an integer in its place is its size in bytes.

`is_alive` changes nothing, so the server need not keep its response, and a client may send its request number again.

The `output` of a streamed action's observation is nil if it equals the streamed output.
"""

from __future__ import annotations

from typing import Any

from swerex_c import _core

UPGRADE = "swerex-frames/1"
"""Protocol name and version in the HTTP upgrade request."""

CHANNEL_HEADER = "X-Swerex-Channel"
"""HTTP header with the name of a channel; in a response, "new" or "known"."""

SERVER_HEADER = "X-Swerex-Server"
"""HTTP header with a server process's `Service.instance_id`; in a request, of the only process that may execute it."""

REQUEST_HEADER = "X-Swerex-Request"
"""HTTP header with the id of a request, beside X-Request-ID, which a proxy may replace."""

HEAD_BYTES = 64 << 10
"""Maximum bytes of the head of an HTTP request or response."""

REQUEST, CANCEL, RESULT, ERROR, DATA, END, CREDIT, PING, PONG, GOODBYE = range(10)
UP, DOWN, ANSWER = range(3)

WINDOW = 4 << 20
"""Maximum bytes of a stream to send without credit: enough for 1 Gbit/s with a round-trip time of 30 ms."""

PIECE = 120 << 10
"""Maximum bytes of a stream in a DATA frame: less than the 128 KiB from which on malloc maps each block anew."""

INLINE = 64 << 10
"""Maximum bytes of a frame that is not DATA."""

MAX_FRAME = 512 << 10
"""Maximum bytes of a frame: more than PIECE and INLINE."""

VALUE_LIMITS: Any = {"max_depth": 16, "max_items": 200_000}
"""Limits on the values of a frame."""

encode = _core.FrameEncoder(max_frame=INLINE, **VALUE_LIMITS).encode
"""Encode a frame. A FrameError means more than INLINE bytes, or a value that frames do not support."""

_encode_long = _core.FrameEncoder(max_frame=(1 << 32) - 1, **VALUE_LIMITS).encode


def encode_message(*frame: Any) -> tuple[bytes, bytes | None]:
    """Encode a frame whose last item is a payload, and a long payload on its own, to send as a stream.

    Returns the frame, in which its size stands for a long payload, and the encoded long payload or None.

    Raises:
        FrameError: if the payload has a value that frames do not support, or too many of them.
    """
    try:
        return encode(frame), None
    except _core.FrameError:
        long = _encode_long(frame[-1])
        return encode([*frame[:-1], len(long)]), long


def decode_payload(data: bytes) -> Any:
    """Decode a payload that came as a stream.

    Raises:
        FrameError: if it is not one encoded payload.
    """
    if len(data) != int.from_bytes(data[:4]) + 4:
        raise _core.FrameError("the payload does not have the length that it begins with")
    (value,) = _core.FrameDecoder(max_frame=(1 << 32) - 1, **VALUE_LIMITS).feed(data)
    return value
