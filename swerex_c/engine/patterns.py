"""Compile the patterns of `expect`, Python regular expressions, for the core."""

from __future__ import annotations

from swerex_c import _core
from swerex_c.exceptions import InvalidInputError

__all__ = ["make_matcher"]


def make_matcher(patterns: list[str]) -> _core.Matcher:
    """Return an automaton that searches output for the patterns in linear time.

    Raises:
        InvalidInputError: if a pattern is no valid regular expression, is not regular (look-around, back-references)
            or is too large, or matches the empty text, which would end every action at once. The message names it.
    """
    try:
        matcher = _core.Matcher(patterns)
    except ValueError as e:
        msg = str(e)
        if (index := getattr(e, "index", None)) is not None:
            msg = f"expect[{index}]" + msg.removeprefix(f"pattern {index}")
        raise InvalidInputError(msg) from None
    if True in (empty := matcher.matches_empty):
        index = empty.index(True)
        msg = f"expect[{index}] matches the empty text, so it would end every action at once: {patterns[index]!r:.1000}"
        raise InvalidInputError(msg)
    return matcher
