"""Libraries that work on bytes in memory, as contenders for our matcher and our frame codec; asked as worker.py is.

Each contender is fed the same stream in the same chunks and has to name the same first match, or gives back the same
value from the same bytes.
"""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from measuring.engine import Engine
from measuring.measured import Measured
from measuring.operations import Operations
from measuring.worker import serve

Feed = Callable[[bytes], str | None]
"""The next chunk of a stream; the pattern that matched first, if one has."""

OVERLAP = 64
"""Bytes of the chunk before that those are shown again who cannot go on where they were: the longest match here."""


class Ours:
    def matcher(self, patterns: list[str]) -> Feed:
        matcher = importlib.import_module("swerex_c.engine.patterns").make_matcher(patterns)

        def feed(data: bytes) -> str | None:
            hit = matcher.feed(data)
            return None if hit is None else patterns[hit[0]]

        return feed

    def codec(self) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
        core: Any = importlib.import_module("swerex_c._core")
        return core.FrameEncoder().encode, core.FrameDecoder().decode


class Re:
    """The standard library, one alternation, with what came just before."""

    def matcher(self, patterns: list[str]) -> Feed:
        wanted = re.compile("|".join(f"(?P<p{i}>{p})" for i, p in enumerate(patterns)).encode())
        tail = b""

        def feed(data: bytes) -> str | None:
            nonlocal tail
            found = wanted.search(tail + data)
            tail = data[-OVERLAP:]
            return patterns[int(str(found.lastgroup)[1:])] if found else None

        return feed


class Find:
    """`bytes.find` for each pattern, which are literals."""

    def matcher(self, patterns: list[str]) -> Feed:
        wanted = [(it.encode(), it) for it in patterns]
        tail = b""

        def feed(data: bytes) -> str | None:
            nonlocal tail
            text = tail + data
            tail = data[-OVERLAP:]
            found = [(at, name) for word, name in wanted if (at := text.find(word)) >= 0]
            return min(found)[1] if found else None

        return feed


class Pyahocorasick:
    def matcher(self, patterns: list[str]) -> Feed:
        automaton: Any = importlib.import_module("ahocorasick").Automaton()
        for each in patterns:
            automaton.add_word(each, each)
        automaton.make_automaton()
        tail = ""

        def feed(data: bytes) -> str | None:
            nonlocal tail
            text = tail + data.decode("latin-1")
            tail = text[-OVERLAP:]
            return next((word for _, word in automaton.iter(text)), None)

        return feed


class Hyperscan:
    """In blocks, each with what came just before: its streams do not work in the package that there is."""

    def matcher(self, patterns: list[str]) -> Feed:
        hyperscan: Any = importlib.import_module("hyperscan")
        database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        database.compile(expressions=[it.encode() for it in patterns], ids=list(range(len(patterns))))
        found: list[int] = []
        tail = b""

        def seen(number: int, begin: int, end: int, flags: int, context: object) -> None:
            found.append(number)

        def feed(data: bytes) -> str | None:
            nonlocal tail
            database.scan(tail + data, match_event_handler=seen)
            tail = data[-OVERLAP:]
            return patterns[found[0]] if found else None

        return feed


class Pcre2:
    """With its compiler to machine code."""

    def matcher(self, patterns: list[str]) -> Feed:
        pcre2: Any = importlib.import_module("pcre2")
        wanted = pcre2.compile("|".join(f"(?P<p{i}>{p})" for i, p in enumerate(patterns)).encode(), jit=True)
        tail = b""

        def feed(data: bytes) -> str | None:
            nonlocal tail
            text = tail + data
            tail = data[-OVERLAP:]
            found = wanted.search(text)
            if not found:
                return None
            groups = found.groupdict()
            return next(p for i, p in enumerate(patterns) if groups.get(f"p{i}") is not None)

        return feed


class Ormsgpack:
    def codec(self) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
        library: Any = importlib.import_module("ormsgpack")
        return library.packb, library.unpackb


class Msgpack:
    """msgpack of PyPI, whose inner part is C++."""

    def codec(self) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
        library: Any = importlib.import_module("msgpack")
        return library.packb, library.unpackb


CONTENDERS: dict[str, type] = {
    "ours": Ours,
    "re": Re,
    "find": Find,
    "pyahocorasick": Pyahocorasick,
    "hyperscan": Hyperscan,
    "pcre2": Pcre2,
    "ormsgpack": Ormsgpack,
    "msgpack": Msgpack,
}


class Workloads(Operations):
    def __init__(self, library: Any) -> None:
        super().__init__(Engine())
        self.library = library

    async def match(
        self, path: str, patterns: list[str], needle: str, expected: str, chunk: int, count: int
    ) -> dict[str, object]:
        """A stream in chunks, whose last bytes are the needle."""
        data = Path(path).read_bytes() + needle.encode()
        chunks = [data[i : i + chunk] for i in range(0, len(data), chunk)]
        samples: list[float] = []
        wrong = 0
        with Measured() as measured:
            for _ in range(count):
                feed = self.library.matcher(patterns)
                found = None
                before = time.process_time_ns()
                for each in chunks:
                    found = feed(each)
                    if found is not None:
                        break
                samples.append((time.process_time_ns() - before) / 1e3)
                wrong += found != expected
        return measured.result(count=count, wrong=wrong, samples_us=samples, bytes=len(data))

    async def encode(self, size: int, count: int) -> dict[str, object]:
        value = observation(size)
        encode, decode = self.library.codec()
        samples = repeat(lambda: encode(value), count)
        wrong = int(decode(encode(value)) != value)
        return {"count": count, "wrong": wrong, "samples_us": samples}

    async def decode(self, size: int, count: int) -> dict[str, object]:
        value = observation(size)
        encode, decode = self.library.codec()
        data = encode(value)
        samples = repeat(lambda: decode(data), count)
        return {"count": count, "wrong": int(decode(data) != value), "samples_us": samples}


def observation(size: int) -> dict[str, object]:
    """What a command's answer is, with so many bytes of output."""
    output = ("x" * 63 + "\n") * (size // 64 + 1)
    return {"output": output[:size], "exit_code": 0, "failure_reason": "", "expect_string": "", "session_type": "bash"}


def repeat(function: Callable[[], object], count: int) -> list[float]:
    """Microseconds of one call, from batches of about a tenth of a millisecond, so that the clock does not count."""
    clock = time.perf_counter_ns
    batch = 1
    while True:
        begin = clock()
        for _ in range(batch):
            function()
        if clock() - begin > 100_000 or batch > 100_000:
            break
        batch *= 2
    samples = []
    for _ in range(count):
        begin = clock()
        for _ in range(batch):
            function()
        samples.append((clock() - begin) / 1e3 / batch)
    return samples


if __name__ == "__main__":
    serve(lambda kind: Workloads(CONTENDERS[kind]()))
