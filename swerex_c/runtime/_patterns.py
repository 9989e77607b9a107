"""The patterns of `expect`: Python regular expressions, compiled for the core where they are regular.

What is not regular (back-references, look-around) is searched for with `re` in the last part of the output, each time
that more of it comes.
"""

from __future__ import annotations

import re

from swerex_c import _core
from swerex_c.exceptions import InvalidInputError

__all__ = ["WINDOW", "WindowMatcher", "make_matcher"]

WINDOW = 64 * 1024
"""Characters of output in which a pattern that is not regular is searched for; a longer match is not found."""


class WindowMatcher:
    """Searches a stream of text for patterns with `re`, in its last `WINDOW` characters."""

    def __init__(self, patterns: list[str]):
        self._patterns = [re.compile(pattern, re.DOTALL) for pattern in patterns]
        self._window = ""
        self._before = 0

    def feed(self, text: str) -> tuple[int, int] | None:
        """The index of the pattern that matches and where the match starts in the stream, or None.

        The match that ends first wins, then the one that starts first, then the order of the list.
        """
        self._window += text
        best: tuple[int, int, int] | None = None
        for index, pattern in enumerate(self._patterns):
            found = pattern.search(self._window)
            if found is not None:
                candidate = (found.end(), found.start(), index)
                best = candidate if best is None or candidate < best else best
        if best is not None:
            return best[2], self._before + best[1]
        if len(self._window) > WINDOW:
            cut = len(self._window) - WINDOW
            self._window = self._window[cut:]
            self._before += cut
        return None


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
        if compiled.fullmatch("") is not None:
            msg = f"expect[{number}] matches the empty text, so it would end every action at once: {pattern!r}"
            raise InvalidInputError(msg)
    try:
        return _core.Matcher(patterns)
    except _core.UnsupportedPattern:
        return WindowMatcher(patterns)
    except ValueError as e:
        raise InvalidInputError(str(e)) from None
