"""The matcher against its own definition, written with Python's `re`.

The definition is `tests.support.patterns.first_hit`.
"""

from __future__ import annotations

import random
import re
import sys
import unicodedata

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from swerex_c import _core
from swerex_c.engine.patterns import make_matcher
from swerex_c.exceptions import InvalidInputError
from tests.support.patterns import Hit, first_hit

pytestmark = pytest.mark.filterwarnings("ignore:Possible (nested set|set):FutureWarning")


def decode(text: bytes) -> str:
    """Decode text as the stream does, which leaves out the beginning of a character at the end."""
    characters = text.decode("utf-8", "surrogateescape")
    for size in range(1, min(3, len(text)) + 1):
        tail = text[-size:]
        try:
            tail.decode("utf-8")
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data" and error.start == 0:
                return characters[: len(characters) - size]
    return characters


def feed(matcher: _core.Matcher, text: bytes, cuts: list[int]) -> Hit | None:
    """Feed the text in the pieces between the cuts."""
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for start, end in zip(places, places[1:], strict=False):
        hit = matcher.feed(text[start:end])
        if hit is not None:
            return hit
    return None


def is_valid(pattern: str) -> bool:
    try:
        re.compile(pattern, re.DOTALL)
    except (re.error, OverflowError):
        return False
    return True


def compare(patterns: list[str], text: bytes, cuts: list[int]) -> None:
    """Assert that a refusal is right, or that the answer is that of `re`, however the text is cut."""
    try:
        matcher = make_matcher(patterns)
    except InvalidInputError as error:
        index = int(str(error).split("[", 1)[1].split("]", 1)[0])
        assert ("is not a valid regular expression" in str(error)) != is_valid(patterns[index]), patterns
        if "it matches the empty text" in str(error):
            assert re.fullmatch(patterns[index], "", re.DOTALL), patterns
            compare(patterns[:index] + patterns[index + 1 :], text, cuts)
        return
    assert all(is_valid(pattern) and not re.fullmatch(pattern, "", re.DOTALL) for pattern in patterns), patterns
    if not text or not isinstance(matcher, _core.Matcher):  # those that are not regular: tests/engine/test_search.py
        return
    expected = first_hit(patterns, decode(text))
    assert feed(matcher, text, cuts) == expected, (patterns, text)
    matcher.reset()
    assert feed(matcher, text, list(range(len(text)))) == expected, (patterns, text)


# ---- random patterns ----

LETTERS = "abcx"
atoms = st.sampled_from(
    [*LETTERS, " ", r"\n", *r". \d \w \s \D \W \S [ab] [^ab] [a-c] [^\w] [\s\d] [^a\W] é € [é-€] [^é]".split()]
    + [*r"\x61 \u20ac \101 _ \. [\b\]] []a] [a-]".split()]
)
anchors = st.sampled_from(
    ["^", "$", r"\A", r"\Z", r"\b", r"\B", "(?m:^)", "(?m:$)", r"(?a:\b)", "(?-s:.)", "(?i:k)", "(?i:[^a-c])"]
)
repeats = st.sampled_from(["*", "+", "?", "*?", "+?", "??", "{2}", "{1,3}", "{,2}", "{2,}", "{2,}?"])


def wider(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = st.sampled_from(["({})", "(?:{})", "(?i:{})", "(?a:{})", "(?P<n>{})"])
    return st.one_of(
        st.lists(inner, min_size=1, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=3).map("|".join).map("(?:{})".format),
        st.tuples(group, inner).map(lambda pair: pair[0].format(pair[1])),
        st.tuples(inner, repeats).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
        st.tuples(atoms, repeats).map("".join),
    )


regexes = st.recursive(st.one_of(atoms, atoms, atoms, anchors), wider, max_leaves=8)
literals = st.text("abé$.\n", max_size=5).map(re.escape)
pieces = st.sampled_from(
    [letter.encode() for letter in "abcxkK \n1_-é€\u212a٣😀"]
    + [b"\xff", b"\xe2", b"\x82", b"\xc3", b"\xf0\x9f", b"\xed\xa0", b"ab", b"abc"]
)
texts = st.lists(pieces, max_size=12).map(b"".join)
cuts = st.lists(st.integers(0, 60), max_size=6)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None)
@given(st.lists(regexes, min_size=1, max_size=3), texts, cuts)
@example([r"a\b", "b"], b"xa b", [])
@example(["a.c"], b"a\xe2\x82c", [2])
def test_regular_expressions_match_as_defined(patterns: list[str], text: bytes, places: list[int]) -> None:
    compare(patterns, text, places)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(literals, min_size=1, max_size=5)
    | st.text("ab\\()[]{}|*+?.^$-,:=!<>P#imsxauL019dwsbBAZux\n é", max_size=12).map(lambda text: [text]),
    texts,
    cuts,
)
def test_any_text_as_a_pattern(patterns: list[str], text: bytes, places: list[int]) -> None:
    compare(patterns, text, places)


# ---- single facts ----

EXAMPLES: list[tuple[list[str], bytes]] = [
    # first end, then first start, then order
    (["foo"], b"a foo b"),
    (["abcd", "bc"], b"xabcd"),
    (["bc", "abc"], b"xabc"),
    (["ab", "ab"], b"ab"),
    (["aab"], b"aaab"),
    ([r"\$ ", r"\x41\101\u00e9"], b"AA\xc3\xa9"),
    (["a.c|b"], b"abc"),
    (["b+?c", "a?b+c"], b"abbc"),
    (["[ab]c", "bc", "a?bc"], b"bc"),
    (["bc$", "b.", "bc"], b"bc"),
    (["foo.*bar"], b"xfoo foo\nbar"),
    ([".*bar"], b"foobar"),
    (["x{2,3}y"], b"xxxxy"),
    (["x{,2}y", "a{x}"], b"xxxy a{x}"),
    (["(?P<n>a)(?:b|c)(d)"], b"acd"),
    (["[]a-c^-]+z"], b"-]az"),
    (["(?-s:a.b)"], b"a\nba-b"),
    (["(?i)k"], b"\xe2\x84\xaa"),
    (["(?ai)k"], b"\xe2\x84\xaaK"),
    (["(?i)\xc9t\xe9|stra\xdfe", "(?i)[\xe0-\xe5]x"], "ÉTÉ Åx".encode()),
    ([r"\N{BULLET}+x"], "••x".encode()),
    ([r"(?a)\d", r"\d\d"], b"a\xd9\xa0\xd9\xa0"),
    # anchors and boundaries
    (["^b"], b"ab"),
    (["(?m)^b"], b"a\nb"),
    (["(?m)a$"], b"ab a"),
    (["(?m)a$\nb"], b"ab a\nb"),
    (["foo$"], b"foobar"),
    ([r"\bfoo"], b"xfoo foo"),
    ([r"\Bfoo"], b"foo xfoo"),
    ([r"a\b.\bc"], b"abc a-c"),
    ([r"\bfoo\b"], b"xfoo foo"),
    ([r"\bx"], b"\xc3\x80x x"),
    ([r"(?a)\bx"], b"\xc3\x80x x"),
    # UTF-8, and bytes that are none
    (["a.c"], b"a\xe2\x82\xacc"),
    (["^.{3}x"], b"\xc3\xa9\xf0\x9f\x98\x80zx"),
    (["^.{3}x"], b"\xed\xa0\x80x"),
    (["^.{4}x"], b"\xf4\x90\x80\x80x"),
    (["^.{3}x"], b"\xe0\x80\x80x"),
    (["a.c"], b"a\xe9c"),
    (["a..c"], b"a\xe2\x82c"),
    (["a[^b]"], b"a\xe2\x82c"),
    (["[\xe0-\xea]"], b"\xe9\xc3\xa9"),
    ([r"\w"], b"\xe9\xc3\x80"),
    ([r"\W"], b"\xe9\xc3\x80"),
    # flags and verbose patterns
    (["(?x) a b # c\n (?#d) [ ] \\ c"], b"ab  c"),
    ([" (?#x)a"], b" a"),
    (["(?x) (?i) a"], b"A"),
    (["(?i)(?:a(?-i:b))"], b"AB Ab"),
    (["(?s)a.b|(?-s:c.d)"], b"c\nd a\nb"),
    (["(?m)^b$"], b"a\nb"),
    (["(?x: a b )c d"], b"abc d"),
    (["a{,3}b{}c{2}{"], b"aab{}cc{"),
]


@pytest.mark.parametrize(("patterns", "text"), EXAMPLES)
def test_examples(patterns: list[str], text: bytes) -> None:
    make_matcher(patterns)
    for cut in range(len(text)):
        compare(patterns, text, [cut])


@pytest.mark.parametrize("letter", ["d", "w", "s", "D", "W", "S"])
def test_classes_are_those_of_re_for_every_character(letter: str) -> None:
    expected = re.compile(f"\\{letter}")
    matcher = make_matcher([f"\\{letter}"])
    for code in range(0, sys.maxunicode + 1, 1 if letter.islower() else 7):  # a complement is of the same table
        if 0xD800 <= code < 0xE000 or (
            code > 0x33479 and unicodedata.category(chr(code)) in ("Cn", "Co") and code % 97
        ):
            continue
        matcher.reset()
        hit = matcher.feed(chr(code).encode())
        assert (hit is not None) == (expected.match(chr(code)) is not None), hex(code)


@pytest.mark.parametrize("flags", ["i", "ai"])
def test_case_is_ignored_as_re_does(flags: str) -> None:
    letters = [chr(code) for code in range(128)]
    others = [chr(code) for code in (0x130, 0x131, 0x17F, 0x212A, 0xE5, 0x212B, 0xDF, 0x1E9E, 0xB5)]
    for pattern in [*map(re.escape, letters), "[j-l]", "[R-T]", "[^h-j]", "[!-~]", r"[k\W]", r"[^\ds]"]:
        expected = re.compile(f"(?{flags}){pattern}")
        matcher = make_matcher([f"(?{flags}){pattern}"])
        for letter in [*letters, *others]:
            matcher.reset()
            assert (matcher.feed(letter.encode()) is None) == (expected.match(letter) is None), (pattern, letter)


@pytest.mark.parametrize("pattern", ["(", "é(?P<1>x)", "x\\", "é€x)", r"\q", "a{3,2}", "(?au)a", "a(?i)"])
def test_invalid_patterns_name_themselves(pattern: str) -> None:
    with pytest.raises(
        InvalidInputError, match=r"^expect\[1\], .* is not a valid regular expression: .* at position \d+"
    ) as caught:
        make_matcher(["fine", pattern])
    assert repr(pattern) in str(caught.value)
    assert not is_valid(pattern)


@pytest.mark.parametrize(
    "pattern",
    ["a(?!b)", r"a\B", r".\b", r"\b", "a$\n", "a$.b", "\ud800", r"[\ud900-\uda00]", "(a{999}){999}"],
)
def test_unsupported_patterns_name_themselves(pattern: str) -> None:
    with pytest.raises(InvalidInputError, match=r"^expect\[0\], .*, cannot be searched for while output comes: "):
        make_matcher([pattern, "fine"])
    assert is_valid(pattern)


def test_arguments_of_wrong_type() -> None:
    with pytest.raises(TypeError):
        _core.Matcher("abc")
    with pytest.raises(ValueError, match="no program"):
        _core.Matcher(b"abc" * 100)
    with pytest.raises(TypeError):
        make_matcher(["a"]).feed("a")


def test_going_on_after_a_hit() -> None:
    matcher = make_matcher(["b", "c."])
    data, hits, at = b"abacdb", [], 0
    while hit := matcher.feed(data[at:]):
        hits.append(hit)
        at = hit[2]
    assert hits == [(0, 1, 2), (1, 3, 5), (0, 5, 6)]
    matcher.reset()
    assert matcher.feed(b"b") == (0, 0, 1)


def test_cost_is_linear_where_backtracking_explodes() -> None:
    matcher = make_matcher(["(?:a*)*b", "(?:a|aa)+c", "(?:.*.*.*)d"])
    assert matcher.feed(b"a" * 2_000_000) is None
    assert matcher.feed(b"d") == (2, 0, 2_000_001)


def test_what_takes_too_long_is_given_up() -> None:
    """Each letter that may matter later doubles the states; ten of them make no more than are kept."""
    letters = bytes(random.Random(1).choices(b"ab", k=200_000))
    assert make_matcher(["(a|b)*a(a|b){10}c"]).feed(letters) is None
    matcher = make_matcher(["(a|b)*a(a|b){5000}c", "d"])
    for data in (letters, b"d"):
        with pytest.raises(RuntimeError, match="take too long"):
            matcher.feed(data)
    matcher.reset()
    assert matcher.feed(b"aad") == (1, 2, 3)
