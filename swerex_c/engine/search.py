"""Search a running operation's output for patterns that are not regular.

The core's matcher takes regular expressions in the strict sense only. If one of an action's patterns is not (it has a
back-reference, look-around, ...), the core hands over the output as it comes, and it is searched here, in a thread: for
such a pattern by the package `regex`, which can be given a limit of time, and for the others by the core's matcher. The
meaning is that of `csrc/swx_match.h`: characters arrive one at a time, and after each the text is what has arrived.
"""

from __future__ import annotations

import asyncio
import bisect
import codecs
import re
import time
from typing import TYPE_CHECKING, Any

from swerex_c.engine.outcomes import retrieve_exception
from swerex_c.exceptions import NotAvailableError
from swerex_c.utils.threads import in_thread

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from swerex_c import _core

__all__ = ["IrregularPattern", "Search", "compile_irregular", "finish_search"]

Hit = tuple[int, int, int]
"""Where a match was complete, where it begins (both in bytes), and the number of its pattern: the least one wins."""

_PIECE = 64 << 10
"""Bytes of output that are searched within one limit of time."""

_PIECE_SECONDS = 2.0
"""Seconds of computation for a piece. The slowest usual patterns, which look at each character, need a tenth of it."""

_LATE_SECONDS = 1.0
"""Seconds to search what came last, if the caller's time is over."""

_TRIM = 64 << 10
"""Characters that no match can need any more, from which on they are dropped."""

_LITERAL_BRACE = re.compile(r"(\\N\{[^}]*\}|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(?:\d+(?:,\d*)?|,\d*)\})|\{", re.DOTALL)
"""Escapes, classes and repeats; else a brace that `re` takes for itself, and `regex` for the begin of more syntax."""


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
    re.compile(pattern)  # has the last word on what is valid
    try:
        return regex.compile(_LITERAL_BRACE.sub(lambda found: found[1] or r"\{", pattern), regex.V0 | regex.DOTALL)
    except regex.error as error:
        raise re.error(str(error)) from None


class IrregularPattern:
    """A pattern that is not regular, in the search of one operation's output."""

    def __init__(self, index: int, compiled: Any, first: str, look_behind: int, stepwise: bool):
        """Create a pattern.

        Args:
            index: its number in the list of patterns.
            compiled: what `compile_irregular` returns.
            first: regular expression for the characters that a match can begin with, but for one that begins the text.
            look_behind: characters that it may need before a match.
            stepwise: whether it may match a text and not the same text with more behind it.
        """
        self.index = index
        self.look_behind = look_behind
        self.low = 0  # no match begins before this character
        self._compiled = compiled
        self._first = re.compile(first, re.DOTALL)
        self._stepwise = stepwise

    def find(self, text: str, begin: int, deadline: float) -> tuple[int, int] | None:
        """Return the length of the shortest beginning of a text that has a match, and where the match begins.

        Args:
            begin: the length of the longest beginning that is known to have none.
            deadline: limit of the thread's time.

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
            if 0 < self.low == end:  # nothing has begun to match; `first` does not tell of what begins the text
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
        """Return where the first match begins in the text up to `end`."""
        left = deadline - time.thread_time()
        if left <= 0:
            raise TimeoutError
        found = self._compiled.search(text, self.low, end, partial=True, concurrent=True, timeout=left)
        if found is not None and not found.partial:
            return int(found.start())
        self.low = end if found is None else found.start()  # from there on, more text may make a match
        return None


class Search:
    """A search of one operation's output, for some patterns that are not regular and perhaps some that are."""

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
        self._before = 0  # bytes that came before the text
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._regular.reset()
        for each in self._irregular:
            each.low = 0

    async def watch(self, operation: _core.Operation, waiting: Awaitable[None]) -> None:
        """Wait for an operation of the core, and end it when a pattern is found.

        Args:
            waiting: what waits for the operation.
        """
        task = asyncio.ensure_future(self._search(operation))
        task.add_done_callback(retrieve_exception)
        try:
            await waiting
            self._ended = True
            self.news.set()  # what came last is to be searched
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
    """Return what the core takes for it.

    Args:
        news: what tells a stream's reader of output; then it tells the search as well.
    """
    if not isinstance(matcher, Search):
        return matcher
    matcher.news = news or matcher.news
    return (matcher.news,)


async def finish_search(
    matcher: _core.Matcher | Search | None, operation: _core.Operation, waiting: Awaitable[None]
) -> None:
    """Wait for an operation; if its output is searched here, search it meanwhile."""
    if isinstance(matcher, Search):
        await matcher.watch(operation, waiting)
    else:
        await waiting
