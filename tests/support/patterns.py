"""Patterns that are not regular, and some that cost too much to search for."""

from __future__ import annotations

import re

Hit = tuple[int, int, int]


def bytes_of(characters: str) -> int:
    return len(characters.encode("utf-8", "surrogateescape"))


def first_hit(patterns: list[str], characters: str) -> Hit | None:
    """Return the first hit by definition: the pattern's number, and the match's start and end in bytes.

    Characters arrive one at a time, and after each the text is what has arrived. The match that is complete first wins;
    among those the one that starts first; then the order of the list.
    """
    compiled = [re.compile(pattern, re.DOTALL) for pattern in patterns]
    for end in range(len(characters) + 1):
        found = [(each.search(characters, 0, end), index) for index, each in enumerate(compiled)]
        if hits := [(match.start(), index) for match, index in found if match]:
            start, index = min(hits)
            return index, bytes_of(characters[:start]), bytes_of(characters[:end])
    return None


NOT_REGULAR = [
    *[r"<(\w+)>[^<]*</\1>", r"ready(?=\n)", r"(?<=\n)ready", r"a(?!b)c", r"(?<!a)b", r"(a+)+\1b", r"(?P<n>a)(?P=n)"],
    *[r"(?>a)b", r"a++b", r"(a)?(?(1)b|c)"],
]
COSTLY = r"(a|b)*a(a|b){5000}c"
"""Which of the last 5,000 letters were an `a`: as many states as there are texts of that length."""

CATASTROPHIC = r"(?:[abx]|[abx][abx])+(?<=[abx])[yz]"
"""In how many ways a row of letters can be cut: twice as many for each letter more."""
