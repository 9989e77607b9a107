"""Frames against the independent implementation of msgpack that PyPI has (package msgpack)."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import struct
import sys
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swerex_c._core import FrameDecoder, FrameEncoder, FrameError
from tests.support.cli import results
from tests.support.original import run_python
from tests.support.processes import memory_of

relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # sanitizers are slow

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=300)
    | st.binary(max_size=300)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(), inner),
    max_leaves=40,
)


def frame(payload: bytes) -> bytes:
    return struct.pack(">I", len(payload)) + payload


def theirs(value: Any) -> bytes:
    """Return the frame as the independent implementation packs it."""
    return frame(msgpack.packb(value, unicode_errors="surrogatepass"))


def decode(stream: bytes, chunk: int = 0, **limits: int) -> list[Any]:
    decoder = FrameDecoder(**limits)
    result = []
    for at in range(0, len(stream), chunk or len(stream) or 1):
        result += decoder.feed(stream[at : at + (chunk or len(stream))])
    return result


def refused(payload: bytes, **limits: int) -> str:
    """Return the error for one frame with this payload, which is the same for the whole and byte by byte."""
    errors = []
    for chunk in (0, 1):
        with pytest.raises(FrameError) as caught:
            decode(frame(payload), chunk, **limits)
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
    return errors[0]


def same(one: Any, other: Any) -> bool:
    """Compare values so that 1, True and 1.0 differ, and 0.0 and -0.0, and NaN is equal to itself."""
    return repr(one) == repr(other)


# Round trips


@pytest.mark.slow
@relaxed
@given(values)
def test_encodes_what_msgpack_encodes(value: Any) -> None:
    encoded = FrameEncoder().encode(value)
    assert encoded == theirs(value)
    assert same(decode(encoded), [value])


@pytest.mark.slow
@relaxed
@given(st.lists(values, max_size=6), st.data())
def test_decodes_what_msgpack_encoded_at_any_cut(sent: list[Any], data: st.DataObject) -> None:
    stream = b"".join(map(theirs, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    decoder = FrameDecoder()
    got = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += decoder.feed(stream[start:end])
    assert same(got, sent)


@relaxed
@given(st.binary(max_size=60))
def test_arbitrary_payloads_are_refused_or_mean_the_same_to_msgpack(payload: bytes) -> None:
    try:
        (value,) = FrameDecoder().feed(frame(payload))
    except FrameError:
        return
    assert repr(value) == repr(msgpack.unpackb(payload, unicode_errors="surrogatepass"))
    assert repr(decode(FrameEncoder().encode(value))) == repr([value])


@pytest.mark.parametrize("size", [0, 1, 31, 32, 255, 256, 16383, 16384, 65535, 65536, 1 << 20])
@pytest.mark.parametrize(
    "make", [bytes, lambda n: "x" * n, lambda n: [0] * n, lambda n: dict.fromkeys(map(str, range(n)))]
)
def test_sizes_around_every_header(size: int, make: Any) -> None:
    value = make(min(size, 70000) if make(1) not in (b"\0", "x") else size)
    encoded = FrameEncoder().encode([value, 1])
    assert encoded == theirs([value, 1])
    assert decode(encoded, 10007) == [[value, 1]]


@pytest.mark.parametrize("bits", range(65))
def test_integers_around_every_power_of_two(bits: int) -> None:
    for number in (2**bits - 1, 2**bits, 2**bits + 1, -(2**bits) + 1, -(2**bits), -(2**bits) - 1):
        if -(2**63) <= number < 2**64:
            assert FrameEncoder().encode(number) == theirs(number)
            assert same(decode(theirs(number)), [number])
        else:
            with pytest.raises(FrameError, match=r"int is outside of \[-2\*\*63, 2\*\*64\)"):
                FrameEncoder().encode(number)


NUMBERS = "cc05 cd0005 ce00000005 cf0000000000000005 d080 d18000 d280000000 d38000000000000000 d30000000000000005 e0 7f"
FLOATS = "ca3fc00000 cbbff8000000000000 cb8000000000000000 cbfff0000000000000 cb7ff8000000000000"
BODIES = "a26162 d9026162 da00026162 db000000026162 c40161 c5000161 c60000000161"
CONTAINERS = "91c0 dc0001c2 dd00000001c3 81a090 de0001a080 df00000001a0a0"


@pytest.mark.parametrize("payload", list(map(bytes.fromhex, f"{NUMBERS} {FLOATS} {BODIES} {CONTAINERS}".split())))
def test_every_form_of_a_value(payload: bytes) -> None:
    """Also those that are longer than need be; cut, it is refused."""
    assert same(decode(frame(payload), 1), [msgpack.unpackb(payload)])
    for size in range(1, len(payload)):
        assert "the value is cut short" in refused(payload[:size])


@pytest.mark.parametrize("text", ["\ud800", "caf\udce9", "x" * 3000 + "\udfff\U0001f40d", "\ude00\ud83d"])
def test_surrogates_come_back(text: str) -> None:
    """Those of bytes that are not UTF-8, as Python has them in its texts."""
    value = [{text: [text, 1]}, text]
    encoded = FrameEncoder().encode(value)
    assert encoded == theirs(value)
    assert decode(encoded, 7) == [value]


def test_short_words_are_told_apart() -> None:
    """Those with the same ends, those that only differ in length, and more of them than are kept."""
    words = ["a" * n for n in range(40)] + ["\0" * n for n in range(40)]
    words += ["ab" + c + "yz" for c in "0123456789"] + ["abcdefgh" + c + "stuvwxyz" for c in "0123456789"]
    words += ["x" * at + "y" + "x" * (n - at - 1) for n in range(1, 26) for at in range(n)]
    decoder = FrameDecoder()
    chance = random.Random(1)
    for _ in range(3):
        chance.shuffle(words)
        assert decoder.feed(theirs(words)) == [words]


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    LOW = 3


class Point(NamedTuple):
    x: int
    y: int


def test_subclasses_and_buffers_count_as_their_base() -> None:
    sent = [Colour.RED, Level.LOW, Point(1, 2), (3,), OrderedDict(b=1, a=2), bytearray(b"ab"), memoryview(b"cd")]
    large = [bytearray(b"x" * 20000), memoryview(b"y" * 20000)]
    got = decode(FrameEncoder().encode(sent + large))
    assert got == [["red", 3, [1, 2], [3], {"b": 1, "a": 2}, b"ab", b"cd", b"x" * 20000, b"y" * 20000]]
    assert list(got[0][4]) == ["b", "a"] and type(got[0][0]) is str and type(got[0][1]) is int
    large[0].append(1)  # nothing holds on to it


def test_feed_takes_any_buffer() -> None:
    encoded = FrameEncoder().encode([1, b"x"])
    for chunk in (encoded, bytearray(encoded), memoryview(encoded), memoryview(encoded + encoded)[: len(encoded)]):
        assert FrameDecoder().feed(chunk) == [[1, b"x"]]
    with_gaps = bytearray(b"?" * (2 * len(encoded)))
    with_gaps[::2] = encoded
    assert FrameDecoder().feed(memoryview(with_gaps)[::2]) == [[1, b"x"]]
    for wrong in ("text", None, 5, [1]):
        with pytest.raises(TypeError, match="bytes-like"):
            FrameDecoder().feed(wrong)  # type: ignore[arg-type]


def test_a_buffer_is_let_go_of_and_what_came_in_it_stays() -> None:
    decoder = FrameDecoder()
    stream = theirs(["one", b"two"]) + theirs("three")
    chunk = bytearray(stream[:-3])
    assert decoder.feed(chunk) == [["one", b"two"]]
    chunk[:] = b"?" * 1000
    assert decoder.feed(bytearray(stream[-3:])) == ["three"]
    chunk = bytearray(frame(b"\xc1"))
    with pytest.raises(FrameError):
        decoder.feed(chunk)
    chunk += b"more"


# What is refused


@pytest.mark.parametrize(
    ("value", "text", "position"),
    [
        ([1, object()], "a value of type object cannot go into a frame", 2),
        ({"a": {1, 2}}, "a value of type set cannot", 3),
        ({1: 2}, "a map key is not a str", 1),
        ({None: 2}, "a map key is not a str", 1),
        ({b"a": 2}, "a map key is not a str", 1),
        ({(1, 2): 2}, "a map key is not a str", 1),
        ([memoryview(b"abcd")[::2]], "not contiguous", 1),
        (1j, "type complex", 0),
    ],
)
def test_values_that_cannot_be_encoded(value: Any, text: str, position: int) -> None:
    encoder = FrameEncoder()
    with pytest.raises(FrameError, match=rf"{text}.* \(at byte {position}\)"):
        encoder.encode(value)
    assert encoder.encode([1]) == theirs([1])


@pytest.mark.parametrize(
    ("payload", "text", "position"),
    [
        (b"", "the frame is empty", 0),
        (b"\x92\x01\xc1", "reserved", 6),
        (b"\xa2\xff\xff", "UTF-8", 5),
        (b"\xa4a\xed\xa0\xc0", "UTF-8", 6),
        *((bytes([first]), "ext types", 4) for first in (0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8)),
        (b"\x82\xa1a\x01\xa1a\x02", "the same key twice", 4),
        (b"\x92\x90\x82\xa1a\x80\xa1a\x90", "the same key twice", 6),
    ],
)
def test_payloads_that_are_refused(payload: bytes, text: str, position: int) -> None:
    error = refused(payload)
    assert text in error and error.endswith(f"(at byte {position})")


@pytest.mark.parametrize("bad", [b"\xc1", b"\x82\xa1a\x01\xa1a\x02"])
def test_an_error_stops_the_stream(bad: bytes) -> None:
    decoder = FrameDecoder()
    assert decoder.feed(theirs(0)) == [0]
    for _ in range(2):
        with pytest.raises(FrameError, match=r"\(at byte 20\)"):
            decoder.feed(theirs(1) + theirs([1]) + frame(bad) + theirs(3))


@pytest.mark.parametrize("around", [b"", b"\x91", b"\x81\xa5other", b"\x82\xa1a\x01\xa1b"])
def test_a_key_that_comes_twice_is_given_up_once(around: bytes) -> None:
    """Texts that a decoder knows already are shared: one reference given up too many frees what others hold."""
    decoder = FrameDecoder()
    (word,) = decoder.feed(theirs("session_name"))
    references = sys.getrefcount(word)
    with pytest.raises(FrameError, match="twice"):
        decoder.feed(frame(around + b"\x82" + 2 * (msgpack.packb("session_name") + b"\x01")))
    assert sys.getrefcount(word) == references


# Limits


@pytest.mark.parametrize(
    ("limit", "most", "value"), [("max_depth", 2, [[]]), ("max_items", 4, {"a": [1]}), ("max_frame", 8, [b"12345"])]
)
def test_a_limit_is_that_of_both_ways(limit: str, most: int, value: Any) -> None:
    assert decode(FrameEncoder(**{limit: most}).encode(value), **{limit: most}) == [value]
    with pytest.raises(FrameError, match=limit):
        FrameEncoder(**{limit: most - 1}).encode(value)
    assert limit in refused(msgpack.packb(value), **{limit: most - 1})


@pytest.mark.parametrize("kind", [FrameEncoder, FrameDecoder])
def test_limits_out_of_range(kind: Any) -> None:
    for wrong in ({"max_depth": 129}, {"max_depth": 0}, {"max_items": -1}, {"max_frame": 2**32}, {"max_frame": 2**70}):
        with pytest.raises(ValueError, match="must be from 1 to"):
            kind(**wrong)
    for mistyped in ({"max_depth": "3"}, {"max_frame": 1.5}, {"unknown": 1}):
        with pytest.raises(TypeError):
            kind(**mistyped)
    with pytest.raises(TypeError):
        kind(100)
    kind(max_frame=2**32 - 1, max_depth=128, max_items=2**32 - 1)


# Lifetimes and threads


def test_nothing_leaks() -> None:
    encoder, decoder = FrameEncoder(), FrameDecoder()
    big = {"data": bytearray(100_000), "text": "\u00e9" * 50_000, "list": [1.5, {"a": None}]}
    good = encoder.encode(big)
    bad = frame(b"\x93\x01\x81\xa1k\x93\x01\x02\x03\x82\xa1a\xa3one\xa1a\xa3two")

    def work() -> None:
        for at in range(0, len(good), 30_011):
            decoder.feed(good[at : at + 30_011])
        encoder.encode(big)
        for value in ([b"x" * 20_000, object()], [bytearray(20_000), "\ud800" * 5000, object()], {"a": {1: 2}}):
            try:
                encoder.encode(value)
            except FrameError:
                continue
            raise AssertionError(value)
        try:
            FrameDecoder().feed(bad)
        except FrameError:
            FrameDecoder().feed(good[:50_000])

    def growth() -> int:
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(200):
            work()
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before

    tracemalloc.start()
    growth()  # free lists fill
    before = memory_of()
    assert min(growth() for _ in range(3)) < 200 * 16  # the smallest object takes 16 bytes
    tracemalloc.stop()
    is_under_asan = "libasan" in Path("/proc/self/maps").read_text()  # which keeps freed memory for a while
    assert memory_of() - before < (400 << 20 if is_under_asan else 8 << 20)
    big["data"].append(1)  # type: ignore[attr-defined]


EVERY_ALLOCATION = """
import sys, _testcapi
from swerex_c._core import FrameDecoder, FrameEncoder

value = ["some words", {"key of it": 1 << 40, "other": [b"bytes", 2.5, None]}, "long " * 1000, "\\u20ac" * 30, "x" * 99]
encoder = FrameEncoder()
encoded = encoder.encode(value)
parts = encoded[:4000], encoded[4000:]
buffers = [bytearray(part) for part in parts]
whole, twice = bytearray(encoded), bytearray(encoded + encoded)

def feed(parts):
    decoder = FrameDecoder()
    return [value for part in parts for value in decoder.feed(part)]

ways = [
    (lambda: encoder.encode(value), encoded),
    (lambda: FrameEncoder().encode(value), encoded),
    (lambda: feed([encoded]), [value]),
    (lambda: feed([whole]), [value]),
    (lambda: feed(parts), [value]),
    (lambda: feed(buffers), [value]),
    (lambda: feed([twice]), [value, value]),
]
for number, (way, right) in enumerate(ways):
    failing = failed = 0
    while True:
        failing += 1
        got = None
        _testcapi.set_nomemory(failing, failing + 1)
        try:
            got = way()
        except MemoryError:
            failed += 1
        finally:
            _testcapi.remove_mem_hooks()
        assert got is None or got == right, (number, failing, got)
        assert way() == right
        if got is not None and failing > 200:
            break
    assert failed, number
print("good")
"""


def test_every_allocation_of_python_may_fail() -> None:
    pytest.importorskip("_testcapi")
    done = run_python(EVERY_ALLOCATION, PYTHONMALLOC="pymalloc")  # others have no such hooks
    assert results(done) == ("good\n", "", 0)


CHANGES = """
from swerex_c._core import FrameDecoder, FrameEncoder, FrameError

class Table(dict):
    "One that the interpreter does not keep for reuse when it is freed."

ways = {
    "dict cleared": lambda items, table: table.clear(),
    "list cleared": lambda items, table: items.clear(),
    "list longer": lambda items, table: items.append(1),
    "dict longer": lambda items, table: table.update(more=1),
    "members replaced": lambda items, table: (items.__setitem__(slice(None), [0] * len(items)), table.update(inner=0)),
}

def said_to(way, size):
    class Buffer(bytearray):
        def __buffer__(self, flags):
            encoder.encode([1])
            way(items, table)
            return memoryview(b"z" * size)

    items, table = [], {}
    table.update(before=None, inner=Table(evil=Buffer()), after="after")
    items += [1, table, *map(str, range(1000, 2000))]
    try:
        frame = encoder.encode([items, 1])
    except FrameError as error:
        return str(error)
    encoded = {"before": None, "inner": {"evil": b"z" * size}, "after": "after"}
    assert FrameDecoder().feed(frame) == [[[1, encoded, *[0] * 1000], 1]]
    return "encoded"

encoder = FrameEncoder()
for name, way in ways.items():
    for size in (5, 5000):
        said = said_to(way, size)
        wanted = "encoded" if name == "members replaced" else "changed while it was encoded"
        assert wanted in said, (name, size, said)
print("good")
"""


@pytest.mark.skipif(sys.version_info < (3, 12), reason="before Python 3.12 no class of Python's can be a buffer")
def test_values_that_change_while_they_are_encoded() -> None:
    # The allocator shows what is used after it was freed.
    done = run_python(CHANGES, PYTHONMALLOC=os.environ.get("PYTHONMALLOC", "debug"))
    assert results(done) == ("good\n", "", 0)


def in_threads(count: int, work: Callable[[int], None]) -> None:
    with ThreadPoolExecutor(count) as threads:
        assert list(threads.map(work, range(count))) == [None] * count


def test_one_encoder_for_many_threads() -> None:
    encoder = FrameEncoder()

    def work(seed: int) -> None:
        chance = random.Random(seed)
        for _ in range(60):
            value = [seed, chance.randbytes(chance.choice([10, 200_000]))]
            assert decode(encoder.encode(value), 60_000) == [value]

    in_threads(8, work)


def test_a_decoder_refuses_a_second_thread() -> None:
    """Threads that feed one decoder get values or RuntimeError, and never a mixture of their streams."""
    decoder = FrameDecoder()
    stream = FrameEncoder().encode([b"x" * 300_000])
    got: list[Any] = []

    def work(_: int) -> None:
        for _ in range(200):
            with contextlib.suppress(RuntimeError):
                got.extend(decoder.feed(stream))

    in_threads(4, work)
    assert got and all(value == [b"x" * 300_000] for value in got)
