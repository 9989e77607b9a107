"""Patterns that are refused, and one that costs too much to search for."""

from __future__ import annotations

NOT_REGULAR = [
    *[r"<(\w+)>[^<]*</\1>", r"ready(?=\n)", r"(?<=\n)ready", r"a(?!b)", r"(?<!a)b", r"(a+)+\1b", r"(?P<n>a)(?P=n)"],
    *[r"(?>a)b", r"a++b", r"(a)?(?(1)b|c)"],
]
COSTLY = r"(a|b)*a(a|b){5000}c"
"""Which of the last 5,000 letters were an `a`: as many states as there are texts of that length."""
