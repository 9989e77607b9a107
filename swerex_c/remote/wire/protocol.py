"""Frame protocol between client and server: frames, constants and long texts.

A connection transports frames in both directions (`csrc/swx_frame.h`: a length and one msgpack value). Each frame is an
array whose first item is its kind. A client opens a *channel*, named by 16 random bytes, and numbers its requests on it
from 1 up. A request and all frames that belong to it are an *exchange*. A channel outlives its connection: a client
that lost the connection opens another one, names the channel, and resends the unanswered requests. The server executes
a request number only once. If the number arrives again, both ends send its streams again from the last credit on, and
drop what they have.

    client to server
      HELLO    version, channel, resumes       the first frame; `resumes`: the channel was open before
      REQUEST  id, method, payload, floor      floor: the lowest id whose response the client still waits for
               [, texts]                       texts: see below
      CANCEL   id                              the client no longer waits for the request; the server ends it
    server to client
      HELLO    version, boot, known, options   boot: `Service.instance_id`; known: the server still has the channel
      RESULT   id, payload [, texts]           sent after the DATA of its texts
      ERROR    id, payload [, texts]           payload: see `exceptions`
    both
      DATA     id, lane, offset, bytes         a piece of a byte stream; offset: position of its first byte
      END      id, lane, offset                offset: length of the stream; not sent for texts
      CREDIT   id, lane, offset                the receiver has consumed the stream up to this offset
      PING     floor                           answered by PONG; floor: as in REQUEST, 0 from a server
      PONG
      GOODBYE  reason                          the sender closes the channel for good

An exchange has up to three streams (*lanes*): UP, from the client (a long request, an upload); DOWN, from the server
(streamed output, a download); TEXT, from the server (the long texts of its result). A sender is at most WINDOW bytes
ahead of the receiver's credit, and a piece has at most PIECE bytes. So a long stream does not delay short messages, and
a slow reader delays only its own stream.

*Texts* are strings longer than INLINE, and strings that UTF-8 cannot encode. The payload does not contain them: they
follow one another in the lane UP (requests) or TEXT (responses), as UTF-8 that may contain surrogates. `texts` lists
their paths in the payload (keys and indices) and sizes in bytes. Each text starts with a new piece. If a server sends
a text before the outcome is known, and the request fails, the ERROR has the sent part as its field `begun`.

`is_alive` changes nothing, so the server need not keep its response, and a client may send its request number again.

The `output` of a streamed action's observation is nil if it equals the streamed output.
"""

from __future__ import annotations

import codecs
from collections import deque
from typing import Any

from swerex_c import _core
from swerex_c.exceptions import ProtocolError

__all__ = [
    "SERVER_HEADER",
    "CANCEL",
    "CREDIT",
    "DATA",
    "DOWN",
    "END",
    "ERROR",
    "GOODBYE",
    "HEARTBEAT",
    "HELLO",
    "INLINE",
    "LongTexts",
    "MAX_FRAME",
    "PIECE",
    "PING",
    "PONG",
    "REQUEST",
    "RESULT",
    "TEXT",
    "UP",
    "UPGRADE",
    "VERSION",
    "WINDOW",
    "new_decoder",
    "new_encoder",
    "split_texts",
    "texts_size",
]

VERSION = 1
UPGRADE = "swerex-frames"
"""Protocol name in the HTTP upgrade request (RFC 9110, section 7.8) that a client sends to the path `wire`."""

SERVER_HEADER = "X-Swerex-Server"
"""HTTP header with a server process's `Service.instance_id`; in a request, of the only process that may execute it."""

HELLO, REQUEST, CANCEL, RESULT, ERROR, DATA, END, CREDIT, PING, PONG, GOODBYE = range(11)
UP, DOWN, TEXT = range(3)

WINDOW = 4 << 20
"""Maximum bytes of a stream to send without credit: enough for 1 Gbit/s with a round-trip time of 30 ms."""

PIECE = 256 << 10
"""Maximum bytes of a stream in a DATA frame."""

INLINE = 64 << 10
"""Maximum characters of a string in a payload."""

MAX_FRAME = 8 << 20
"""Maximum bytes of a frame: more than PIECE, for payloads with many short strings."""

HEARTBEAT = 15.0
"""Seconds between two PING frames of a client."""

Texts = list[list[Any]]


def new_encoder() -> _core.FrameEncoder:
    return _core.FrameEncoder(max_frame=MAX_FRAME, max_depth=16, max_items=200_000)


def new_decoder() -> _core.FrameDecoder:
    return _core.FrameDecoder(max_frame=MAX_FRAME, max_depth=16, max_items=200_000)


def split_texts(payload: dict[str, Any], all_of: bool = False) -> tuple[dict[str, Any], Texts, list[str | bytes]]:
    """Remove strings that are too long for a payload.

    With `all_of`, also remove strings that UTF-8 cannot encode.

    Returns the payload without these strings (the same object if there are none), their paths and sizes, and their
    contents: ASCII strings unchanged, other strings encoded. The length of each content is its size in bytes.
    """
    for value in payload.values():
        kind = value.__class__
        if kind is str:
            if all_of or len(value) > INLINE:
                break
        elif (kind is dict or kind is list) and value:
            break
    else:
        return payload, [], []
    texts: Texts = []
    chunks: list[str | bytes] = []

    def walk(value: Any, path: list[Any]) -> Any:
        if isinstance(value, str):
            if len(value) <= INLINE and not (all_of and not _encodable(value)):
                return value
            data = value if value.isascii() else value.encode("utf-8", "surrogatepass")
            texts.append([path, len(data)])
            chunks.append(data)
            return ""
        if isinstance(value, dict):
            return {key: walk(member, [*path, key]) for key, member in value.items()}
        if isinstance(value, list | tuple):
            return [walk(member, [*path, i]) for i, member in enumerate(value)]
        return value

    rest = walk(payload, [])
    return (rest, texts, chunks) if texts else (payload, [], [])


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def texts_size(texts: Any) -> int:
    """Return the total size in bytes of the texts that a frame announces.

    Raises:
        ProtocolError: if `texts` is not a list of paths and sizes.
    """
    try:
        sizes = [size for path, size in texts if isinstance(path, list) and isinstance(size, int) and size >= 0]
    except (TypeError, ValueError):
        sizes = []
        texts = None
    if not isinstance(texts, list) or len(sizes) != len(texts):
        raise ProtocolError("The texts of a message are not a list of paths and sizes")
    return sum(sizes)


class LongTexts:
    """Buffer that receives long texts and decodes them piece by piece. It keeps no second copy in bytes."""

    def __init__(self) -> None:
        self.size = 0
        """Number of bytes received so far."""
        self._parts: deque[tuple[str, int]] = deque()  # decoded pieces, with their sizes in bytes
        self._decode = codecs.getincrementaldecoder("utf-8")("surrogatepass").decode

    def feed(self, data: bytes | memoryview) -> None:
        """Add the next piece. A text ends only at the end of a piece.

        Raises:
            ProtocolError: if the piece is not valid UTF-8 with surrogates.
        """
        try:
            self._parts.append((self._decode(data), len(data)))
        except UnicodeDecodeError:
            raise ProtocolError("A long text is not valid UTF-8") from None
        self.size += len(data)

    def insert(self, payload: Any, texts: Texts) -> None:
        """Insert the texts into the payload where `split_texts` removed them.

        Raises:
            ProtocolError: if the payload lacks one of the paths, or the pieces do not match the announced sizes.
        """
        try:
            self._decode(b"", True)
            for path, size in texts:
                place = payload
                for step in path[:-1]:
                    place = place[step]
                place[path[-1]] = self._take(size)
        except (LookupError, TypeError, UnicodeDecodeError):
            raise ProtocolError("The payload has no place for a long text") from None

    def _take(self, size: int) -> str:
        parts: list[str] = []
        if self._parts and self._parts[0][1] == size:
            return self._parts.popleft()[0]
        while size > 0:
            text, length = self._parts.popleft()
            parts.append(text)
            size -= length
        if size:
            raise ProtocolError("A long text does not have its announced size")
        return "".join(parts)
