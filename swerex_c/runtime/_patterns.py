"""The patterns of `expect`: Python regular expressions, compiled for the core where they are regular.

What is not regular (back-references, look-around) is searched for with `re` in the last part of the output, each time
that more of it comes.
"""

from __future__ import annotations

import codecs
import re

from swerex_c import _core
from swerex_c.exceptions import InvalidInputError

__all__ = ["WINDOW", "WindowMatcher", "make_matcher"]

WINDOW = 64 * 1024
"""Characters of output in which a pattern that is not regular is searched for; a longer match is not found."""


class WindowMatcher:
    """Searches a stream of bytes for patterns with `re`, in its last `WINDOW` characters."""

    def __init__(self, patterns: list[str]):
        self._patterns = [re.compile(pattern, re.DOTALL) for pattern in patterns]
        # With this way of handling errors every character stands for certain bytes, and can be counted in them.
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._window = ""
        self._before = 0

    def feed(self, data: bytes, final: bool = False) -> tuple[int, int] | None:
        """The number of the pattern that matches and the byte of the stream where its match starts, or None.

        Of the matches that what came so far holds, the one that ends first wins, then the one that starts first, then
        the order of the list. The search has no memory of a match: do not go on after one.
        """
        self._window += self._decoder.decode(data, final)
        best: tuple[int, int, int] | None = None
        for index, pattern in enumerate(self._patterns):
            found = pattern.search(self._window)
            if found is not None:
                candidate = (found.end(), found.start(), index)
                best = candidate if best is None or candidate < best else best
        if best is not None:
            return best[2], self._before + _size(self._window[: best[1]])
        cut = len(self._window) - WINDOW
        if cut > 0:
            self._before += _size(self._window[:cut])
            self._window = self._window[cut:]
        return None


def _size(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))


def make_matcher(patterns: list[str]) -> _core.Matcher | WindowMatcher:
    """A matcher for these patterns.

    Raises:
        InvalidInputError: if a pattern is no regular expression, or matches nothing at all (the empty text), which
            would finish every action at once. The text names the pattern.
    """
    for number, pattern in enumerate(patterns):
        try:
            compiled = re.compile(pattern, re.DOTALL)
        except (re.error, RecursionError, OverflowError) as e:
            msg = f"expect[{number}] is not a regular expression: {e}: {pattern!r}"
            raise InvalidInputError(msg) from None
        if compiled.search("") is not None:
            msg = f"expect[{number}] matches the empty text, so it would end every action at once: {pattern!r}"
            raise InvalidInputError(msg)
    try:
        return _core.Matcher(patterns)
    except _core.UnsupportedPattern:
        return WindowMatcher(patterns)
    except ValueError as e:
        raise InvalidInputError(str(e)) from None
