"""Compile the patterns of `expect`, Python regular expressions, for the core's matcher.

`re` itself parses them, so that they have the same meaning. The syntax tree becomes a Thompson NFA over letters: the
characters that no set of the patterns tells apart are one letter. `csrc/swx_match.h` describes the format.

For an irregular pattern, the NFA matches a superset and only serves to examine it; `search.py` searches for it.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Sequence
from functools import lru_cache
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any

from swerex_c import _core
from swerex_c.engine.search import IrregularPattern, Search, compile_irregular
from swerex_c.exceptions import InvalidInputError, NotAvailableError

__all__ = ["make_matcher"]

Ranges = tuple[tuple[int, int], ...]
"""Inclusive ranges of code points, sorted; none touches the next."""

MAX_PATTERNS = 4096
MAX_CHARACTERS = 64 * 1024  # of all patterns together
MAX_STATES = 16384
MAX_LETTERS = 4096
_MAX_ITEMS = 16 * MAX_STATES
"""Maximum number of parts to compile. Repeats multiply them, and not every part adds a state."""

READ, SPLIT, ASSERT, MATCH = range(4)  # kinds of states
BEGIN, LINE_BEGIN, END, LAST_LINE, LINE_END, BOUNDARY, NO_BOUNDARY, ASCII_BOUNDARY, ASCII_NO_BOUNDARY = range(9)
NOT_AHEAD = 9  # a negative look-ahead: never in a program
IN_EMPTY_TEXT = {BEGIN, LINE_BEGIN, END, LAST_LINE, LINE_END, *([NO_BOUNDARY] if re.fullmatch(r"\B", "") else [])}

LAST = 0x10FFFF
NEWLINE: Ranges = ((10, 10),)
SURROGATES: Ranges = ((0xD800, 0xDFFF),)  # stand for bytes that are not UTF-8

EVERY_BYTE = (1 << 256) - 1


def make_matcher(patterns: Sequence[str]) -> _core.Matcher | Search:
    """Return an automaton that searches output for the patterns in linear time, or a search if some are irregular.

    Raises:
        InvalidInputError: if a pattern is not a valid regular expression, is too large, depends on later text, or
            matches the empty text, which would end every action at once. The message names the pattern.
        NotAvailableError: if a pattern is irregular (look-around, back-references), and `regex` is not installed.
    """
    program, regular, irregular = _compile(tuple(patterns))
    matcher = _core.Matcher(program)
    return Search(matcher, regular, [IrregularPattern(*each) for each in irregular]) if irregular else matcher


@lru_cache(maxsize=64)
def _compile(patterns: tuple[str, ...]) -> tuple[bytes, list[int], list[tuple[int, Any, str, int, bool]]]:
    """Return the program of the regular patterns, their numbers, and the arguments of each `IrregularPattern`."""
    compiler, left = _Compiler(), MAX_CHARACTERS
    regular, irregular = list[int](), list[tuple[int, Any, str, int, bool]]()
    for index, pattern in enumerate(patterns):
        left -= len(pattern)
        try:
            if left < 0 or index == MAX_PATTERNS:
                raise _RefusedError(f"more than {MAX_PATTERNS} patterns, or {MAX_CHARACTERS} characters, are too many")
            if compiler.add_pattern(pattern):
                regular.append(index)
            else:
                compiled = compile_irregular(pattern)
                if compiled.search("", timeout=1.0) is not None:
                    raise _RefusedError(_EMPTY)
                irregular.append((index, compiled, compiler.first, compiler.look_behind, compiler.stepwise))
        except NotAvailableError as error:
            raise NotAvailableError(f"expect[{index}], {pattern!r:.1000}, {error}") from None
        except (re.error, OverflowError, FutureWarning) as error:
            why = f"is not a valid regular expression: {error}"
        except RecursionError:
            why = "cannot be searched for while output comes: it is nested too deeply"
        except _RefusedError as error:
            why = f"cannot be searched for while output comes: {error}"
        else:
            continue
        raise InvalidInputError(f"expect[{index}], {pattern!r:.1000}, {why}")
    return compiler.program(), regular, irregular


class _RefusedError(Exception):
    """A pattern is a valid regular expression, but cannot be searched for."""


# ---- sets of characters ----


def _union(*several: Iterable[tuple[int, int]]) -> Ranges:
    joined: list[tuple[int, int]] = []
    for low, high in sorted(each for ranges in several for each in ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(high, joined[-1][1])
        else:
            joined.append((low, high))
    return tuple(joined)


def _complement(ranges: Ranges) -> Ranges:
    edges = [-1, *(edge for each in ranges for edge in each), LAST + 1]
    return tuple((low + 1, high - 1) for low, high in zip(edges[::2], edges[1::2], strict=True) if low + 1 < high)


def _is_within(inner: Ranges, outer: Ranges) -> bool:
    return _union(inner, outer) == outer


def _text_of(*points: range) -> str:
    return array("I", [point for each in points for point in each]).tobytes().decode("utf-32", "surrogatepass")


@lru_cache
def _categories(ascii_only: bool) -> dict[str, Ranges]:
    r"""Return the characters of `\d`, `\w` and `\s`. All are in planes 0 to 3 of Unicode, or in plane 14."""
    text = _text_of(range(128)) if ascii_only else _text_of(range(0x40000), range(0xE0000, 0xF0000))
    found = {}
    for letter in "dws":
        runs = (run[0] for run in re.finditer(rf"\{letter}+", text))
        found[letter] = tuple((ord(run[0]), ord(run[-1])) for run in runs)
        found[letter.upper()] = _complement(found[letter])
    return found


@lru_cache
def _cased() -> str:
    """Return all characters that have another case: they are in planes 0 and 1."""
    text = _text_of(range(0x20000))
    cases = zip(text, map(str.lower, text), map(str.upper, text), strict=True)
    return "".join(each for each, lower, upper in cases if lower != upper)


@lru_cache(maxsize=1024)
def _ignoring_case(source: str, ascii_only: bool) -> Ranges:
    """Return the characters with another case that a set matches under `(?i)`."""
    expression = re.compile(f"(?{'a' * ascii_only}i:[{source}])")
    text = _text_of(range(128)) if ascii_only else _cased()
    return _union((ord(each), ord(each)) for each in expression.findall(text))


_CATEGORY = {
    op.CATEGORY_DIGIT: "d",
    op.CATEGORY_NOT_DIGIT: "D",
    op.CATEGORY_SPACE: "s",
    op.CATEGORY_NOT_SPACE: "S",
    op.CATEGORY_WORD: "w",
    op.CATEGORY_NOT_WORD: "W",
}


def _set_of(items: Sequence[tuple[Any, Any]], flags: int) -> Ranges:
    """Return the characters of a class, which is given as `re` parses it."""
    found: list[Ranges] = []
    source = ""
    negated = bool(items) and items[0][0] is op.NEGATE
    for kind, value in items[negated:]:
        if kind is op.CATEGORY:
            letter = _CATEGORY[value]
            found.append(_categories(bool(flags & re.ASCII))[letter])
            source += f"\\{letter}"
            continue
        low, high = (value, value) if kind is op.LITERAL else value
        if any(0xD800 <= point < 0xE000 for point in (low, high)):
            raise _RefusedError("a lone surrogate is in no output")
        found.append(((low, high),))
        source += f"\\U{low:08x}-\\U{high:08x}"
    if source and flags & re.IGNORECASE:
        found.append(_ignoring_case(source, bool(flags & re.ASCII)))
    ranges = _union(*found)
    return _complement(ranges) if negated else ranges


# ---- the automaton ----

_AT = {
    op.AT_BEGINNING: (BEGIN, LINE_BEGIN),  # without (?m), and with it
    op.AT_BEGINNING_STRING: (BEGIN, BEGIN),
    op.AT_END: (LAST_LINE, LINE_END),
    op.AT_END_STRING: (END, END),
}
_LATER = "a $, \\b, \\B or (?!...) that later text would have to decide: write what comes behind it"
_TOO_LARGE = "it is too large, for repeats multiply"
_EMPTY = "it matches the empty text, so it would end every action at once"


class _Compiler:
    """Builder of the states of all patterns. It works from the end: a construct is added after its successor state."""

    def __init__(self) -> None:
        self.items = 0  # parts of patterns that were compiled
        self.states: list[tuple[int, int, int]] = []  # kind, value, and the state that comes next
        self.starts: list[int] = []
        self.sets: list[Ranges] = [NEWLINE, SURROGATES]
        self.numbers: dict[Ranges, int] = {NEWLINE: 0, SURROGATES: 1}  # of the sets
        self.classes: dict[tuple[Any, ...], int] = {}  # the set of each class, as it is written
        self.words: list[Ranges | None] = [None, None]  # \w, and \w under (?a), where a boundary needs it

    def add_pattern(self, pattern: str) -> bool:
        """Add a pattern. If it is irregular, return False and add nothing."""
        first = len(self.states)
        tree = _parser.parse(pattern, int(re.DOTALL))
        self.irregular = self.stepwise = False
        self.look_behind = self.captures = 0
        self.widths = tree.state.groupwidths
        start = self._sequence(tree, tree.state.flags, self._add(MATCH, len(self.starts), 0))
        if not self.irregular and self._matches_empty(start):
            raise _RefusedError(_EMPTY)
        self._check_assertions(first, start)
        if self.irregular:
            self.stepwise |= any(kind == ASSERT and value >= END for kind, value, _ in self.states[first:])
            self.first = _class_of(self._first_bytes([start]))
            del self.states[first:]
        else:
            self.starts.append(start)
        return not self.irregular

    def _add(self, kind: int, value: int, out: int) -> int:
        if len(self.states) == MAX_STATES:
            raise _RefusedError(_TOO_LARGE)
        self.states.append((kind, value, out))
        return len(self.states) - 1

    def _number(self, ranges: Ranges) -> int:
        if ranges not in self.numbers:
            self.numbers[ranges] = len(self.sets)
            self.sets.append(ranges)
        return self.numbers[ranges]

    def _read(self, items: Sequence[tuple[Any, Any]], flags: int, out: int) -> int:
        written = *items, flags & (re.ASCII | re.IGNORECASE)
        if written not in self.classes:
            self.classes[written] = self._number(_set_of(items, flags))
        return self._add(READ, self.classes[written], out)

    def _sequence(self, items: Any, flags: int, out: int) -> int:
        for kind, value in reversed(list(items)):
            out = self._item(kind, value, flags, out)
        return out

    def _item(self, kind: Any, value: Any, flags: int, out: int) -> int:
        self.items += 1
        if self.items > _MAX_ITEMS:  # many of which may add no state
            raise _RefusedError(_TOO_LARGE)
        if kind is op.LITERAL:
            return self._read([(kind, value)], flags, out)
        if kind is op.NOT_LITERAL:
            return self._read([(op.NEGATE, None), (op.LITERAL, value)], flags, out)
        if kind is op.IN:
            return self._read(value, flags, out)
        if kind is op.ANY:
            return self._read([(op.NEGATE, None), *([] if flags & re.DOTALL else [(op.LITERAL, 10)])], flags, out)
        if kind is op.FAILURE:
            return self._read([], flags, out)
        if kind is op.AT:
            return self._add(ASSERT, self._assertion(value, flags), out)
        if kind is op.SUBPATTERN:
            group, added, removed, inner = value
            self.captures += group is not None
            if added & (re.ASCII | re.UNICODE):
                flags &= ~(re.ASCII | re.UNICODE)
            return self._sequence(inner, (flags | added) & ~removed, out)
        if kind is op.BRANCH:
            *others, last = value[1]
            entry = self._sequence(last, flags, out)
            for branch in reversed(others):
                entry = self._add(SPLIT, entry, self._sequence(branch, flags, out))
            return entry
        if kind in (op.MAX_REPEAT, op.MIN_REPEAT):
            least, most, inner = value
            return self._repeat(least, most, inner, flags, out)
        self.irregular = True
        return self._irregular_item(kind, value, flags, out)

    def _irregular_item(self, kind: Any, value: Any, flags: int, out: int) -> int:
        """Add states that accept a superset of an irregular item, and return the entry."""
        if kind is op.GROUPREF:
            least = min(1, self.widths[value][0])
            return self._repeat(least, op.MAXREPEAT, [(op.IN, [(op.NEGATE, None)])], flags, out)
        if kind is op.GROUPREF_EXISTS:
            _, yes, no = value
            return self._item(op.BRANCH, (None, [yes, no or []]), flags, out)
        if kind in (op.ASSERT, op.ASSERT_NOT) and value[0] < 0:
            self.look_behind = max(self.look_behind, value[1].getwidth()[1])
            return out
        if kind is op.ASSERT:
            before = self.captures
            self._sequence(value[1], flags, out)
            self.stepwise |= self.captures > before  # it keeps its first captures, which later text may change
            return out
        self.stepwise = True
        if kind is op.ASSERT_NOT:
            return self._add(ASSERT, NOT_AHEAD, out)
        if kind is op.ATOMIC_GROUP:
            return self._sequence(value, flags, out)
        if kind is op.POSSESSIVE_REPEAT:
            least, most, inner = value
            return self._repeat(least, most, inner, flags, out)
        raise _RefusedError(f"{kind}: look for it in the output")

    def _repeat(self, least: int, most: int, inner: Any, flags: int, out: int) -> int:
        entry = out
        if most is op.MAXREPEAT:
            entry = self._add(SPLIT, out, out)
            body = self._sequence(inner, flags, entry)
            self.states[entry] = SPLIT, out, body
            if least:  # x+ is x* that begins in x
                entry, least = body, least - 1
        else:
            for _ in range(most - least):
                body = self._sequence(inner, flags, entry)
                if body == entry:  # it is empty, and so is any number of it
                    break
                entry = self._add(SPLIT, out, body)
        for _ in range(least):
            body = self._sequence(inner, flags, entry)
            if body == entry:
                break
            entry = body
        return entry

    def _assertion(self, at: Any, flags: int) -> int:
        if at in _AT:
            return _AT[at][bool(flags & re.MULTILINE)]
        ascii_only = bool(flags & re.ASCII)
        word = self.words[ascii_only] = _categories(ascii_only)["w"]
        self._number(word)
        return BOUNDARY + 2 * ascii_only + (at is op.AT_NON_BOUNDARY)

    def _matches_empty(self, start: int) -> bool:
        stack, seen = [start], set()
        while stack:
            index = stack.pop()
            kind, value, out = self.states[index]
            if kind == MATCH:
                return True
            if index not in seen and (kind == SPLIT or (kind == ASSERT and value in IN_EMPTY_TEXT)):
                stack += (value, out) if kind == SPLIT else (out,)
            seen.add(index)
        return False

    def _check_assertions(self, first: int, start: int) -> None:
        r"""Refuse a pattern whose match depends on the characters after it.

        A match ends where the text that has arrived ends. A boundary at the end of a pattern is decided there if the
        character before it is always a word character (`\b` holds) or never one (`\B` holds). A `$` without (?m) is
        decided, too, unless a newline of the pattern follows it.
        """
        if not any(kind == ASSERT and value >= LAST_LINE for kind, value, _ in self.states[first:]):
            return
        reach: dict[int, frozenset[int]] = {}  # per state the boundaries before the end, MATCH as -1, newline as -2
        nothing: frozenset[int] = frozenset()
        changed = True
        while changed:
            changed = False
            for index in range(first, len(self.states)):
                kind, value, out = self.states[index]
                now = reach.get(out, nothing)
                if kind == MATCH:
                    now = frozenset([-1])
                elif kind == READ:
                    now = frozenset([-2]) if _is_within(NEWLINE, self.sets[value]) else nothing
                elif kind == SPLIT:
                    now |= reach.get(value, nothing)
                elif value >= BOUNDARY and -1 in now:
                    now |= {value}
                changed |= now != reach.get(index)
                reach[index] = now
        if any(each >= BOUNDARY for each in reach[start]):
            raise _RefusedError(_LATER)
        for kind, value, out in self.states[first:]:
            if kind == ASSERT and value == LAST_LINE and -2 in reach[out]:
                raise _RefusedError(_LATER)
            for boundary in reach[out] if kind == READ else ():
                if boundary == NOT_AHEAD:
                    raise _RefusedError(_LATER)
                word = self.words[boundary >= ASCII_BOUNDARY] if boundary >= BOUNDARY else None
                outside = boundary in (NO_BOUNDARY, ASCII_NO_BOUNDARY)
                if word and not _is_within(self.sets[value], _complement(word) if outside else word):
                    raise _RefusedError(_LATER)

    def program(self) -> bytes:
        """Return the program of the regular patterns for `_core.Matcher`."""
        edges: dict[int, int] = {0: 0}  # the sets that begin or end at a code point, a bit each
        for number, ranges in enumerate(self.sets):
            for low, high in ranges:
                edges[low] = edges.get(low, 0) ^ 1 << number
                edges[high + 1] = edges.get(high + 1, 0) ^ 1 << number
        edges.pop(LAST + 1, None)
        bounds, letters, numbers = sorted(edges), [], dict[int, int]()
        members = 0  # the sets that hold the characters from a bound on: these tell letters apart
        for bound in bounds:
            members ^= edges[bound]
            letters.append(numbers.setdefault(members, len(numbers)))
        if len(numbers) > MAX_LETTERS:
            raise InvalidInputError(f"expect: the patterns tell more than {MAX_LETTERS} kinds of characters apart")
        sets = [0] * len(self.sets)  # per set its letters, a bit each
        for members, letter in numbers.items():
            while members:
                sets[members.bit_length() - 1] |= 1 << letter
                members ^= 1 << members.bit_length() - 1
        width = (len(numbers) + 31) // 32
        words = [0 if word is None else self.numbers[word] + 1 for word in self.words]
        header = [len(self.states), len(self.starts), len(bounds), len(numbers), len(sets), *words]
        parts = [header, *self.states, self.starts, bounds, letters]
        parts += [_words(each, width) for each in sets]
        parts.append(_words(self._first_bytes(self.starts), 8))
        return array("I", [word for part in parts for word in part]).tobytes()

    def _first_bytes(self, starts: Sequence[int]) -> int:
        """Return the bytes that a match may begin with, a bit each."""
        mask, stack, seen = 0, [*starts], set[int]()
        while stack:
            index = stack.pop()
            if index in seen:
                continue
            seen.add(index)
            kind, value, out = self.states[index]
            if kind == SPLIT:
                stack += (value, out)
            elif kind == ASSERT:
                stack += [out] if value != BEGIN else []
            else:
                mask |= EVERY_BYTE if kind == MATCH else _leading_bytes(self.sets[value])
        return mask


@lru_cache(maxsize=1024)
def _leading_bytes(ranges: Ranges) -> int:
    """Return the first bytes of a set's characters, a bit each."""
    bits = 0
    for low, high in ranges:
        if low <= 0xDFFF and high >= 0xD800:  # bytes that are not UTF-8
            first, last = min(low, 0x80), 0xFF
        else:
            first, last = chr(low).encode()[0], chr(high).encode()[0]
        bits |= (1 << last + 1) - (1 << first)
    return bits


def _class_of(first_bytes: int) -> str:
    """Return a regular expression for the characters that begin with these bytes, a bit each."""
    characters = "".join(f"\\x{byte:02x}" for byte in range(128) if first_bytes >> byte & 1)
    others = r"\x80-\U0010ffff" if first_bytes >> 128 else ""
    return f"[{characters}{others}]" if first_bytes else "(?!)"


def _words(mask: int, count: int) -> list[int]:
    return [mask >> 32 * number & 0xFFFFFFFF for number in range(count)]
