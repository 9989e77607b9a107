"""Search a running operation's output for patterns that are not regular.

The core's matcher takes only patterns that are regular in the strict sense. If a pattern of an action is not (because
of a back-reference, look-around, ...), the core hands over the output as it arrives, and a thread searches it here. The
package `regex`, which accepts a time limit, searches for the irregular patterns; the core's matcher searches for the
others. Matches are defined as in `csrc/swx_match.h`: after each arriving character, the text is what has arrived.
"""

from __future__ import annotations

import asyncio
import bisect
import codecs
import re
import time
from collections.abc import Awaitable
from typing import Any

from swerex_c import _core
from swerex_c.engine.outcomes import retrieve_exception
from swerex_c.exceptions import NotAvailableError
from swerex_c.utils.threads import in_thread

__all__ = ["IrregularPattern", "Search", "compile_irregular", "finish_search"]

Hit = tuple[int, int, int]
"""Offset in bytes where a match was complete, offset where it begins, and number of its pattern. The least one wins."""

_PIECE = 64 << 10
"""Bytes of output that are searched within one time limit."""

_PIECE_SECONDS = 2.0
"""Seconds of CPU time for a piece. The slowest usual patterns, tried at each character, need a tenth of it."""

_LATE_SECONDS = 1.0
"""Seconds to search the last output after the action's timeout."""

_TRIM = 64 << 10
"""Number of characters that no match can need any more at which they are dropped."""

_LITERAL_BRACE = re.compile(r"(\\N\{[^}]*\}|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(?:\d+(?:,\d*)?|,\d*)\})|\{", re.DOTALL)
"""Pattern of escapes, classes and repeats, or else of a brace, which `re` matches literally and `regex` interprets."""


def compile_irregular(pattern: str) -> Any:
    """Compile a pattern with `regex`.

    Raises:
        NotAvailableError: if `regex` is not installed.
        re.error: if the pattern is invalid.
    """
    try:
        import regex
    except ImportError:
        msg = "needs the package regex, as it is not regular: pip install 'swerex-c[patterns]'"
        raise NotAvailableError(msg) from None
    re.compile(pattern)  # `re` decides what is valid
    try:
        return regex.compile(_LITERAL_BRACE.sub(lambda found: found[1] or r"\{", pattern), regex.V0 | regex.DOTALL)
    except regex.error as error:
        raise re.error(str(error)) from None


class IrregularPattern:
    """An irregular pattern, in the search of one operation's output."""

    def __init__(self, index: int, compiled: Any, first: str, look_behind: int, stepwise: bool):
        """Create a pattern.

        Args:
            index: its number in the list of patterns.
            compiled: what `compile_irregular` returns.
            first: regular expression for the characters that a match can begin with, unless it begins the text.
            look_behind: maximum number of characters that the pattern examines before a match.
            stepwise: whether the pattern may match a text, but not a continuation of that text.
        """
        self.index = index
        self.look_behind = look_behind
        self.low = 0
        """Character before which no match begins."""
        self._compiled = compiled
        self._first = re.compile(first, re.DOTALL)
        self._stepwise = stepwise

    def find(self, text: str, begin: int, deadline: float) -> tuple[int, int] | None:
        """Return the length of the shortest prefix of a text that contains a match, and where the match begins.

        Args:
            begin: the length of the longest prefix that is known to contain none.
            deadline: limit of the thread's CPU time.

        Raises:
            TimeoutError: at the deadline.
        """
        if self._stepwise:
            return self._step(text, begin, deadline)
        if self._match(text, len(text), deadline) is None:
            return None
        ends = range(begin + 1, len(text))
        index = bisect.bisect_left(ends, True, key=lambda end: self._match(text, end, deadline) is not None)
        end = begin + 1 + index
        found = self._match(text, end, deadline)
        assert found is not None
        return end, found

    def _step(self, text: str, end: int, deadline: float) -> tuple[int, int] | None:
        while end < len(text):
            if 0 < self.low == end:  # no match has begun; `first` does not apply to the beginning of the text
                first = self._first.search(text, end)
                if first is None:
                    self.low = len(text)
                    return None
                self.low = end = first.start()
            end += 1
            found = self._match(text, end, deadline)
            if found is not None:
                return end, found
        return None

    def _match(self, text: str, end: int, deadline: float) -> int | None:
        """Return the beginning of the first match in the text up to `end`."""
        left = deadline - time.thread_time()
        if left <= 0:
            raise TimeoutError
        found = self._compiled.search(text, self.low, end, partial=True, concurrent=True, timeout=left)
        if found is not None and not found.partial:
            return int(found.start())
        self.low = end if found is None else found.start()  # from there on, later text may complete a match
        return None


class Search:
    """A search of one operation's output for patterns of which at least one is irregular."""

    def __init__(self, regular: _core.Matcher, numbers: list[int], irregular: list[IrregularPattern]):
        """Create a search.

        Args:
            regular: matcher of the regular patterns.
            numbers: their numbers in the list of all patterns.
            irregular: the other patterns.
        """
        self._regular = regular
        self._numbers = numbers
        self._irregular = irregular
        self._kept = max(1, *(each.look_behind for each in irregular))
        self._ended = False
        self.news = asyncio.Event()
        """Set when there may be output to search."""
        self._begin()

    def _begin(self) -> None:
        self._text = ""
        self._before = 0  # number of bytes that were dropped before the text
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._regular.reset()
        for each in self._irregular:
            each.low = 0

    async def watch(self, operation: _core.Operation, waiting: Awaitable[None]) -> None:
        """Search the output of an operation of the core while it runs, and end it when a pattern matches.

        Args:
            waiting: awaitable that ends with the operation.
        """
        task = asyncio.ensure_future(self._search(operation))
        task.add_done_callback(retrieve_exception)
        try:
            await waiting
            self._ended = True
            self.news.set()  # the last output is not searched yet
            is_late = operation.end in ("timeout", "quiet")
            await asyncio.wait({task}, timeout=_LATE_SECONDS if is_late else None)
            if task.done():
                await task
        finally:
            task.cancel()

    async def _search(self, operation: _core.Operation) -> None:
        try:
            while True:
                ended = self._ended
                self.news.clear()
                begin, data = operation.unsearched()
                if data:
                    found = await in_thread(self._find, begin, data)
                    if found is not None:
                        end, start, index = found
                        operation.found((index, start, end))
                        return
                elif ended:
                    return
                else:
                    await self.news.wait()
        except TimeoutError:
            operation.found(None)
        except BaseException:
            operation.cancel()
            raise

    def _find(self, begin: int, data: bytes) -> Hit | None:
        if begin == 0:
            self._begin()
        for at in range(0, len(data), _PIECE):
            found = self._find_in_piece(begin + at, data[at : at + _PIECE])
            if found is not None:
                return found
        return None

    def _find_in_piece(self, begin: int, piece: bytes) -> Hit | None:
        deadline = time.thread_time() + _PIECE_SECONDS
        best: Hit | None = None
        try:
            hit = self._regular.feed(piece)
        except RuntimeError:  # the patterns take too long on this text
            raise TimeoutError from None
        if hit is not None:
            best = hit[2], hit[1], self._numbers[hit[0]]
            piece = piece[: max(0, hit[2] - begin)]
        known = len(self._text)
        self._text += self._decoder.decode(piece)
        for each in self._irregular:
            found = each.find(self._text, known, deadline)
            if found is not None:
                complete, start = map(self._bytes_up_to, found)
                hit = complete, start, each.index
                best = min(best or hit, hit)
        self._trim()
        return best

    def _bytes_up_to(self, index: int) -> int:
        return self._before + len(self._text[:index].encode("utf-8", "surrogateescape"))

    def _trim(self) -> None:
        cut = min(each.low for each in self._irregular) - self._kept
        if cut >= _TRIM:
            self._before = self._bytes_up_to(cut)
            self._text = self._text[cut:]
            for each in self._irregular:
                each.low -= cut


def patterns_of(
    matcher: _core.Matcher | Search | None, news: asyncio.Event | None = None
) -> _core.Matcher | tuple[object] | None:
    """Return the argument of the core's methods for a matcher or a search.

    Args:
        news: event that is set for the reader of a stream when there is output; the search then waits for it too.
    """
    if not isinstance(matcher, Search):
        return matcher
    matcher.news = news or matcher.news
    return (matcher.news,)


async def finish_search(
    matcher: _core.Matcher | Search | None, operation: _core.Operation, waiting: Awaitable[None]
) -> None:
    """Wait for an operation, and search its output meanwhile if the core does not."""
    if isinstance(matcher, Search):
        await matcher.watch(operation, waiting)
    else:
        await waiting
