"""JSON in pieces is the same JSON."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swerex_c.remote import long_json
from swerex_c.remote.long_json import dump, has_long, load
from traps.harness import PACE

ATOMS = ["a", '"', "\\", "\n", "\0", "ü", "€", "😀", "\ud83d", "\udc00", "\udcff", "\u2028", "/", "\\u", "b" * 300]
TEXTS = st.lists(st.sampled_from(ATOMS), max_size=60).map("".join)
VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


@pytest.fixture(scope="module", params=[1, 2, 7, 100], autouse=True)
def piece(request: pytest.FixtureRequest) -> Iterator[int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_json, "_PIECE", request.param)
        yield request.param


@given(VALUES)
def test_what_is_written_can_be_read(value: Any) -> None:
    document = b"".join(dump(value))
    assert json.loads(document) == json.loads(json.dumps(value))
    assert load(document) == json.loads(document)
    for again in (json.dumps(value).encode(), json.dumps(value, indent=1).encode(), bytearray(document)):
        assert load(again) == json.loads(again)


SCRAPS = [b'"', b"\\", b"\\u", b"d83d", b"\xc3", b"\xa4", b"{", b":", b"x"]


@given(st.binary(max_size=40) | st.lists(st.sampled_from(SCRAPS)).map(b"".join))
def test_what_is_no_json_is_refused_the_same(document: bytes) -> None:
    def outcome(read: Any) -> Any:
        try:
            return read(document)
        except ValueError:
            return "refused"

    # json.loads also takes UTF-16 and UTF-32, which JSON on a wire is not.
    if b"\0" not in document and not document.startswith((b"\xff\xfe", b"\xfe\xff", b"\xef\xbb\xbf")):
        assert repr(outcome(load)) == repr(outcome(json.loads))


def test_what_is_long() -> None:
    text = "x" * long_json.LONG
    assert has_long({"a": [1, {"b": text}]}) and not has_long({"a": [1, {"b": text[1:]}], "c": None})


def test_other_threads_are_not_stopped(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    if piece != 100:
        pytest.skip("once is enough: it sets the size itself")
    monkeypatch.setattr(long_json, "_PIECE", 128 << 10)
    text = 'some "source" code\n' * 2_000_000
    document = json.dumps({"content": text}).encode()

    def longest_stop() -> float:
        longest = 0.0
        done = threading.Event()

        def watch() -> None:
            nonlocal longest
            while not done.is_set():
                begin = time.perf_counter()
                time.sleep(0.001)
                longest = max(longest, time.perf_counter() - begin)

        watcher = threading.Thread(target=watch)
        watcher.start()
        assert load(document)["content"] == text
        assert sum(map(len, dump({"content": text}))) == len(document) - 1  # the standard library writes a blank
        done.set()
        watcher.join()
        return longest

    begin = time.perf_counter()
    assert json.loads(document)["content"] == text
    whole = time.perf_counter() - begin  # for which the standard library stops them all
    # A busy machine stops threads, too, but not each time.
    assert any(longest_stop() < max(0.06 * PACE, whole / 2) for _ in range(5))
