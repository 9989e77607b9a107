"""Escapes of control characters in text, for terminals and logs."""

from __future__ import annotations

__all__ = ["error_line", "visible"]

_CONTROLS = [*range(0x20), *range(0x7F, 0xA0), *range(0xD800, 0xE000)]
"""Code points to escape: C0, DEL and C1, and lone surrogates, which no terminal's encoding has."""

_SHOWN = {code: repr(chr(code))[1:-1] for code in _CONTROLS}
_LINES = {code: shown for code, shown in _SHOWN.items() if chr(code) not in "\n\t"}


def visible(text: str, *, one_line: bool = False) -> str:
    r"""Return text with its control characters escaped as in Python's literals.

    An escape character becomes `\x1b`, for example.

    Args:
        text: text from an untrusted source: output, a name, an error's text.
        one_line: escape newlines and tabs too, which otherwise stay.
    """
    return text.translate(_SHOWN if one_line else _LINES)


def error_line(error: BaseException) -> str:
    """Return the text of an error in one line, or the name of its class if it has none."""
    return " ".join(str(error).split()) or type(error).__name__
