"""The cases of many bytes: long output, long input, patterns in it, matching and frames by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from extent import Extent
from files import Files
from rows import Turn, Workload
from texts import LITERALS, NEEDLE, PATTERNS, REGEXES

__all__ = ["frames", "matching", "outputs", "patterns"]

SEARCHED = 16
"""Megabytes of the stream in which patterns are looked for."""


def library(name: str, request: dict[str, Any], rounds: int | None = None) -> Turn:
    """One that works on bytes in memory: text_worker.py."""
    return Turn(f"bytes: {name}", request, name, rounds)


def outputs(extent: Extent, files: Files) -> Iterator[Workload]:
    for size in extent.megabytes:
        yield output(extent, f"output-{size}", f"{size} MB of output in lines (cat of a file)", files.lines(size), size)
    for size in extent.megabytes:
        yield output(extent, f"line-{size}", f"{size} MB of output in one line", files.line(size), size)
    for kilobytes in (1, 16, 256):
        request = {"operation": "typed", "kilobytes": kilobytes, "count": 3 if extent.quick else 10}
        turns = [Turn(name, request) for name in ("ours", "core", "ptyprocess", "pipes")]
        yield Workload(f"typed-{kilobytes}", f"a here-document of {kilobytes} KB", turns, "ptyprocess")


def output(extent: Extent, key: str, title: str, path: str, size: int) -> Workload:
    count = max(1, min(10, 20 // size)) if not extent.quick else 2 if size == 1 else 1
    request = {"operation": "output", "path": path, "count": count}
    in_c = {"arguments": ["output", path, count]}
    turns = [Turn(name, in_c) for name in ("bare C", "engine")]
    turns += [Turn(name, request) for name in ("ours", "core", "ptyprocess", "pipes")]
    turns.append(Turn("ours, bounded", {**request, "operation": "bounded"}))
    turns.append(Turn("ours, streamed", {**request, "operation": "streamed"}))
    lines = key.startswith("output")
    if lines and size <= 64:
        turns.append(Turn("pexpect", request, rounds=None if size <= 8 else 1))
    if lines and size <= 16:
        turns.append(Turn("Tcl Expect", in_c, rounds=2))
    if lines and (size == 1 or (size == 8 and not extent.quick)):
        turns.append(Turn("original", {**request, "count": 1}, rounds=1))
    return Workload(key, title, turns, kind="output", rounds=5 if size <= 8 else 3 if size <= 100 else 2)


def patterns(extent: Extent, files: Files) -> Iterator[Workload]:
    path = files.lines(SEARCHED)
    search = {"path": path, "patterns": PATTERNS, "needle": NEEDLE, "expected": PATTERNS[-1]}
    request = {"operation": "patterns", "count": 1 if extent.quick else 5, **search}
    turns = [Turn("ours", request), Turn("core", request), Turn("ptyprocess", {**request, "count": 1}, rounds=1)]
    if not extent.quick:
        turns.append(Turn("pexpect", request, rounds=2))
    yield Workload("patterns", f"one of 20 patterns at the end of {SEARCHED} MB", turns, "", "patterns", 3)


def matching(extent: Extent, files: Files) -> Iterator[Workload]:
    path = files.lines(SEARCHED)
    for key, title, wanted, needle, expected in (
        ("match-literal", "one of 20 literals", LITERALS, LITERALS[7], LITERALS[7]),
        ("match-regex", "one of 5 regular expressions", REGEXES, NEEDLE, REGEXES[-1]),
    ):
        stream = {"path": path, "patterns": wanted, "needle": needle, "expected": expected, "chunk": 4096}
        names = ["ours", "hyperscan", "pcre2"] + (["find", "pyahocorasick"] if wanted is LITERALS else [])
        request = {"operation": "match", **stream, "count": 2}
        turns = [library(name, request) for name in names]
        turns.append(library("re", {**request, "count": 1}, rounds=1))
        yield Workload(key, f"{title} at the end of {SEARCHED} MB in chunks of 4 KiB", turns, "pcre2", "match", 3)
    for size in (1, 4, 16):
        stream = {"path": files.lines(size), "patterns": LITERALS, "needle": LITERALS[7], "expected": LITERALS[7]}
        turns = [library("ours", {"operation": "match", **stream, "chunk": 4096, "count": 5})]
        yield Workload(f"match-in-{size}", f"one of 20 literals at the end of {size} MB", turns, "", "match", 3)
    for number in (10, 100, 1000):
        words = [f"needle-{i:04d}-in-the-stack" for i in range(number)]
        stream = {"path": files.lines(4), "patterns": words, "needle": words[-1], "expected": words[-1]}
        request = {"operation": "match", **stream, "chunk": 4096, "count": 2}
        turns = [library(name, request, 1 if name == "find" else None) for name in ("ours", "pyahocorasick", "find")]
        yield Workload(f"match-of-{number}", f"one of {number} literals at the end of 4 MB", turns, "", "match", 3)


def frames(extent: Extent, files: Files) -> Iterator[Workload]:
    for size in (100, 10_000, 1_000_000):
        for operation in ("encode", "decode"):
            request = {"operation": operation, "size": size, "count": 50}
            turns = [library(name, request) for name in ("ours", "ormsgpack", "msgpack")]
            title = f"{operation} an answer with {size:,} bytes of output"
            yield Workload(f"{operation}-{size}", title, turns, "ormsgpack", "bytes", 5)
