"""JSON with long strings, in pieces, so that a thread that reads or writes it stops no other thread for long.

The standard library's C code works on a whole document without ever letting go of the interpreter: a tenth of a second
and more for a file of 100 MB. Here only pieces of a string go through it.
"""

from __future__ import annotations

import itertools
import json
import re
import secrets
from collections.abc import Iterator
from typing import Any

__all__ = ["LONG", "dump", "has_long", "load"]

LONG = 1 << 20
"""Characters of a string, or bytes of a document, from which on it is worth it."""

_PIECE = 128 << 10

# A run of characters within a string, not cut within a character, an escape or a pair of surrogates; at most 256 KiB.
_RUN = re.compile(
    rb"(?:[ !#-\[\]-\x7f]{1,256}+"
    rb"|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|\\u[0-9a-fA-F]{4}|\\[^u]"
    rb"|[\xc2-\xf4][\x80-\xbf]{1,3}+){0,1024}+"
)


def has_long(value: Any) -> bool:
    """Whether a value that JSON can hold has a long string in it."""
    if isinstance(value, str):
        return len(value) >= LONG
    if isinstance(value, dict):
        return any(has_long(member) for member in value.values())
    if isinstance(value, list):
        return any(has_long(member) for member in value)
    return False


def dump(value: Any) -> Iterator[bytes]:
    """The pieces of a JSON document; what UTF-8 cannot carry is escaped."""
    if isinstance(value, str) and len(value) > _PIECE:
        yield b'"'
        for i in range(0, len(value), _PIECE):
            yield _string(value[i : i + _PIECE])[1:-1]
        yield b'"'
    elif isinstance(value, dict):
        separator = b"{"
        for key, member in value.items():
            yield separator + _string(str(key)) + b":"
            yield from dump(member)
            separator = b","
        yield b"}" if value else b"{}"
    elif isinstance(value, list):
        separator = b"["
        for member in value:
            yield separator
            yield from dump(member)
            separator = b","
        yield b"]" if value else b"[]"
    else:
        yield _string(value)


def _string(value: Any) -> bytes:
    try:
        return json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(value).encode()


def load(document: bytes | bytearray) -> Any:
    """The value of a JSON document in UTF-8.

    Raises:
        ValueError: if it is none.
        RecursionError: if it is too deep.
    """
    short = bytearray()
    texts: dict[str, str] = {}
    mark = "\0" + secrets.token_hex(8)
    begin = 0
    while (at := document.find(b'"', begin)) >= 0:
        end, text = _read(document, at + 1)
        if end < 0:
            return json.loads(document)  # which says what is wrong
        short += document[begin:at]
        if text is None:
            short += document[at : end + 1]
        else:
            name = f"{mark}{len(texts)}"
            texts[name] = text
            short += json.dumps(name).encode()
        begin = end + 1
    short += document[begin:]
    return _insert(json.loads(bytes(short)), texts) if texts else json.loads(bytes(short))


def _read(document: bytes | bytearray, begin: int) -> tuple[int, str | None]:
    """Where a string ends that begins here (-1: nowhere), and what it is if it is long."""
    ends = [begin]
    while True:
        match = _RUN.match(document, ends[-1])
        end = match.end() if match else ends[-1]
        if document[end : end + 1] == b'"':
            break
        if end == ends[-1]:
            return -1, None
        ends.append(end)
    if end - begin <= _PIECE:
        return end, None
    ends.append(end)
    return end, "".join(json.loads(b'"' + document[a:b] + b'"') for a, b in itertools.pairwise(ends))


def _insert(value: Any, texts: dict[str, str]) -> Any:
    if isinstance(value, str):
        return texts.get(value, value)
    if isinstance(value, dict):
        return {texts.get(key, key): _insert(member, texts) for key, member in value.items()}
    if isinstance(value, list):
        return [_insert(member, texts) for member in value]
    return value
