"""What goes over the wire between two of ours.

A connection carries frames in both directions (`csrc/swx_frame.h`: a length and one msgpack value). Each frame is an
array that begins with its kind. A client opens a *channel* (16 random bytes) and numbers its requests on it from 1 up.
Each request with all that belongs to it is an *exchange*. A channel outlives its connection: a client that lost that
opens another one, names the channel, and sends again the requests that were not answered. A server that knows a number
already does not carry it out a second time; it goes on where the client says that it stopped.

    client to server
      HELLO    version, channel, resumes       first of all; `resumes`: the channel was open before
      REQUEST  id, method, payload, floor      floor: the lowest id whose answer the client still waits for
               [, texts [, got]]               texts: see below; got: (sent again) bytes it has of each lane
      CANCEL   id                              nobody waits for it any more: end it
    server to client
      HELLO    version, boot, known, options   boot: names this server process; known: it still has the channel
      RESULT   id, payload [, texts]           after the DATA of its texts
      ERROR    id, payload [, texts]           payload: see `transfer`
      RESUME   id, received                    bytes of the upstream lane that it has of a request that was sent again
    both
      DATA     id, lane, offset, bytes         a piece of a byte stream; offset: of its first byte
      END      id, lane, offset                the stream is that long; of TEXT it is said before its first piece,
                                               when it is known, and only then
      CREDIT   id, lane, offset                the receiver is done with so many bytes
      PING     floor                           answered by PONG; floor as in REQUEST, 0 from a server
      PONG
      GOODBYE  reason                          the sender closes the channel for good

Of each exchange three streams (*lanes*) are possible: UP, from the client (a long request, an upload); DOWN, from the
server (streamed output, a download); TEXT, from the server (the long texts of its result). A sender is never more than
WINDOW bytes ahead of the receiver's credit, and no piece is longer than PIECE, so that nothing long is in the way of
anything short, and a slow reader costs nobody but itself.

*Texts*: strings longer than INLINE, and those that UTF-8 cannot carry, are not in the payload but follow one another in
the lane UP (requests) or TEXT (answers), as UTF-8 in which surrogates may occur; `texts` is a list of their paths in
the payload (keys and indices) and sizes in bytes. Each begins with a piece of its own. An answer's may go out before it
is known what the answer is: an ERROR then has what was sent of them as its field `begun`.

`is_alive` changes nothing, so its answer is not kept, and the same number may be sent again.

The `output` of a streamed action's observation is nil when it is what was streamed.
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
    "RESUME",
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
"""The name by which a client asks an HTTP server for this protocol (RFC 9110, section 7.8), at the path `wire`."""

SERVER_HEADER = "X-Swerex-Server"
"""In HTTP answers: names the server process (`Service.boot`). In requests: the one that the client means, no other."""

HELLO, REQUEST, CANCEL, RESULT, ERROR, RESUME, DATA, END, CREDIT, PING, PONG, GOODBYE = range(12)
UP, DOWN, TEXT = range(3)

WINDOW = 4 << 20
"""Bytes of a stream that may be under way: enough for 1 Gbit/s over 30 ms."""

PIECE = 256 << 10
"""Bytes of a stream in one frame."""

INLINE = 64 << 10
"""Characters of a string that may stand in a payload."""

MAX_FRAME = 8 << 20
"""Bytes of a frame; more than a PIECE for payloads of many short strings."""

HEARTBEAT = 15.0
"""Seconds of silence after which an end makes itself heard."""

Texts = list[list[Any]]


def new_encoder() -> _core.FrameEncoder:
    return _core.FrameEncoder(max_frame=MAX_FRAME, max_depth=16, max_items=200_000)


def new_decoder() -> _core.FrameDecoder:
    return _core.FrameDecoder(max_frame=MAX_FRAME, max_depth=16, max_items=200_000)


def split_texts(payload: dict[str, Any], all_of: bool = False) -> tuple[dict[str, Any], Texts, list[str | bytes]]:
    """Take the strings out that are too long for a payload, or (`all_of`) that UTF-8 cannot carry.

    Returns the payload without them (the same object if there is none), their places, and what they hold: a string in
    ASCII as it is, others encoded. The length of each is its size in bytes.
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
    """The bytes of all texts that a frame announces.

    Raises:
        ProtocolError: if it is no list of paths and sizes.
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
    """Long texts on their way in, decoded as they come; of none is there a second copy in bytes.

    Where it is known how long they are, and they are in ASCII, each piece goes straight to its place in the text.
    """

    def __init__(self, total: int | None = None) -> None:
        """total: bytes of all of them, if that is known; room is made for that many."""
        self.size = 0
        """Bytes that came until now."""
        self._room = _core.TextRoom(total) if total is not None else None
        self._lengths: list[int] = []  # of the pieces there
        self._texts = 0  # how many they are, once that is known
        self._parts: deque[tuple[str, int]] = deque()  # with the bytes that each was
        self._decode = codecs.getincrementaldecoder("utf-8")("surrogatepass").decode

    def feed(self, data: bytes | memoryview) -> None:
        """The next piece. A text ends where a piece does.

        Raises:
            ProtocolError: if it is no text.
        """
        if self._room is not None:
            if self._room.feed(data):
                self._lengths.append(len(data))
                self.size += len(data)
                return
            self._leave_room()
        try:
            self._parts.append((self._decode(data), len(data)))
        except UnicodeDecodeError:
            raise ProtocolError("A long text is no text") from None
        self.size += len(data)

    def _leave_room(self) -> None:
        """What came until now, in pieces again: they tell where a text ends."""
        assert self._room is not None
        whole, self._room = self._room.finish(), None
        if len(self._lengths) == 1 or self._texts == 1:
            self._parts.append((whole, len(whole)))
            return
        at = 0
        for length in self._lengths:
            self._parts.append((whole[at : at + length], length))
            at += length

    def insert(self, payload: Any, texts: Texts) -> None:
        """Put them where `split_texts` took them out.

        Raises:
            ProtocolError: if there are no such places in the payload, or the texts are other ones than announced.
        """
        try:
            self._decode(b"", True)
            if self._room is not None:
                self._texts = len(texts)
                self._leave_room()
            for path, size in texts:
                place = payload
                for step in path[:-1]:
                    place = place[step]
                place[path[-1]] = self._take(size)
        except (LookupError, TypeError, UnicodeDecodeError):
            raise ProtocolError("A long text does not fit into its message") from None

    def _take(self, size: int) -> str:
        parts: list[str] = []
        if self._parts and self._parts[0][1] == size:
            return self._parts.popleft()[0]
        while size > 0:
            text, length = self._parts.popleft()
            parts.append(text)
            size -= length
        if size:
            raise ProtocolError("A long text does not end where it should")
        return "".join(parts)
