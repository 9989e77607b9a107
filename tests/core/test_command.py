"""The scanner is held against bash itself, and so is the quoting of what is typed."""

from __future__ import annotations

import os
import random
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swerex_c import _core

ENV = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "TERM": "dumb"}
COMMANDS = Path(__file__).parents[1] / "data" / "commands.txt"
REALISTIC = [text.encode() for text in COMMANDS.read_text().rstrip("\n").split("\n%%\n")]


def bash_n(text: bytes) -> bool:
    """Return whether `bash -n` accepts the text without a warning."""
    result = subprocess.run(["bash", "--norc", "-n"], input=text, capture_output=True, env=ENV, timeout=60)
    return result.returncode == 0 and not result.stderr


def verdict(text: bytes | str) -> str:
    return str(_core.scan(text)[0])


def wrong_verdict(text: bytes) -> str | None:
    """Return bash's objection to the verdict on this text, or None."""
    found = verdict(text)
    if found == "unsure":
        return None
    if not bash_n(text):
        return f"bash -n does not accept {text!r}, which is {found}"
    if found == "complete":
        if not bash_n(b"{\n" + text + b"\n}\n"):
            return f"as a brace group bash -n does not accept {text!r}"
        if bash_n(text + b"\n)\n"):
            return f"the line after it is swallowed: {text!r}"
    return None


def expect_right(texts: list[bytes]) -> None:
    with ThreadPoolExecutor(3) as pool:
        wrong = [message for message in pool.map(wrong_verdict, texts) if message]
    assert not wrong


def test_most_realistic_commands_are_proved_and_bash_agrees() -> None:
    accepted = [text for text in REALISTIC if verdict(text) != "unsure"]
    assert len(REALISTIC) > 200 and len(accepted) >= 0.85 * len(REALISTIC)
    expect_right(accepted)


def test_every_cut_of_realistic_commands() -> None:
    """Beginnings of commands are where incomplete ones come from."""
    chosen = random.Random(1)
    cuts = {text[: chosen.randrange(len(text) + 1)] for text in REALISTIC for _ in range(4)}
    expect_right(sorted(cuts))


TOKENS = [
    *"' \" ` $ $( ${ $(( (( )) ) ( { } \\ ; ;; ;& & && | || |& < > << <<< >& &> >( <( # ! [ ] = += - 2>".split(),
    *"$[ $' $\"".split(),
    *"@( ?( * ~ \r \x01 \x7f \xff =~ &- {fd}> 0 a % / $$ $# ${# ${! }} [x]= -f esac in fi done -- time".split(" "),
    *["\n", " ", "\t", " #", "\\\n", "; }", "if ", "then ", "else ", "do ", "case ", "for ", "while ", "function "],
    *["coproc ", "[[ ", " ]]", "a=(", "f() ", "select ", "until ", "EOF", "\nEOF\n", "<<EOF", "<<-EOF", "<<'EOF'"],
    *["declare ", "let ", "export ", " == ", " < ", ")\n", ')"', "time -p ", " ! ", "x=", "{ "],
]


def mutated(chosen: random.Random) -> bytes:
    text = bytearray(chosen.choice(REALISTIC))
    if len(text) > 150:
        start = chosen.randrange(len(text))
        text = text[start : start + chosen.randrange(5, 120)]
    for _ in range(chosen.choice([1, 1, 1, 2, 3])):
        at = chosen.randrange(len(text) + 1)
        end = at + chosen.choice([0, 0, 0, 1, 1, 2, 6])
        text[at:end] = chosen.choice([b"", *(token.encode("latin-1") for token in chosen.sample(TOKENS, 3))])
    return bytes(text)


def soup(chosen: random.Random) -> bytes:
    fillers = ["", " ", "a", "echo ", "b;"]
    words = [chosen.choice(TOKENS) + chosen.choice(fillers) for _ in range(chosen.randrange(1, 8))]
    return "".join(words).encode("latin-1")


@pytest.mark.slow
def test_thousands_of_mutations_against_bash() -> None:
    chosen = random.Random(20240)
    texts: set[bytes] = set()
    while len(texts) < 1000:
        text = mutated(chosen) if chosen.random() < 0.7 else soup(chosen)
        if verdict(text) != "unsure":
            texts.add(text)
    expect_right(sorted(texts))


@pytest.mark.parametrize("text", ["", " ", "\n\n", "# a", "#", "\t# a\n \n#b 'c\n", "# ends in \\", "#$(("])
def test_empty(text: str) -> None:
    assert verdict(text) == "empty"
    result = subprocess.run(["bash", "-c", text], capture_output=True, env=ENV)
    assert (result.returncode, result.stdout, result.stderr) == (0, b"", b"")


@pytest.mark.parametrize(
    "text",
    [
        "echo 'a", 'echo "a', "echo `a", "echo $(a", "echo ${a", "echo $((1)", "a &&", "a |", "a ||\n", "a \\", "a\\\n",
        "(a", "{ a", "{ a }", "if a; then b", "if a then b; fi", "for x in a; do b", "while a; do done",
        "case x in a) b", "f() {", "f()", "[[ a", "[[ a == ]]", "((1", "cat <<E", "cat <<E\nx",
        "cat <<E\nE x", "cat <<'E'\n E", "a=(1", "fi",
        "done", "}", ")", "; a", "a ;; b", "a & ; b", "| a", "a | | b", "> ", "a >", "a > > b", "a <", "<<",
        "a <<<", "if ; then a; fi", "()", "( )", "{ }", "{ ; }", "for", "for 1 in", "case", "function", "! !",
        "a && && b", "echo $'a", "x=$(cat <<E\na\nE)", "echo a)", "a=(b;c)", "then", "[[ -f ]]", "echo >&", "a () b",
        "cat <<A <<B\nB\nA", "echo $(cat <<E)\nE", "for x in a b; { c; }", "echo \0a",
        "cat <<E\nE\\\n", "a=(1)b", "a=b=(1)", "a=(b=(c))", "a >2>b", "for((;));do a;done", "a $(( 1 ) )", "a ${b<(c}",
        "case a in esac)", "a(b)", "a(){b;}", "a=1 b(){ c;}", "((a)", "for a in $(b;;do c;done",
    ],
)  # fmt: skip
def test_wrong_and_incomplete_is_never_accepted(text: str) -> None:
    assert verdict(text) == "unsure"


def check_lines(typed: bytes) -> None:
    assert typed.endswith(b"\n")
    assert max(map(len, typed.split(b"\n"))) + 1 < 1024
    assert not re.search(rb"[^\n\x20-\x7e]", typed)


def ending(text: bytes) -> bytes:
    """Return what is added so that no backslash at the very end quotes nothing."""
    return b"\\" * ((len(text) - len(text.rstrip(b"\\"))) % 2)


def printed_back(text: bytes, locale: str) -> bytes:
    """Return what `printf %s` in a bash of that locale makes of the quoted text."""
    typed = _core.quote(text)
    check_lines(typed)
    script = re.sub(rb"^(\\builtin eval \\)?\\builtin eval (-- )?", rb"\1\\builtin printf %s ", typed)
    return subprocess.run(["bash", "--norc"], input=script, capture_output=True, env={**ENV, "LC_ALL": locale}).stdout


@settings(max_examples=120, deadline=None)
@given(st.binary(max_size=300).map(lambda data: data.replace(b"\0", b"\x01")), st.sampled_from(["C", "C.UTF-8"]))
def test_quoting_is_byte_exact(text: bytes, locale: str) -> None:
    assert printed_back(text, locale) == text + ending(text)


@pytest.mark.parametrize("locale", ["C", "C.UTF-8"])
def test_quoting_is_byte_exact_for_every_pair_of_bytes(locale: str) -> None:
    text = b"".join(bytes([first, second]) for first in range(1, 256) for second in range(1, 256))
    assert printed_back(text, locale) == text
    for size in (30_000, 30_001):
        text = b"\\" * size
        assert printed_back(text, locale) == text + ending(text)


def test_quote_refuses() -> None:
    with pytest.raises(ValueError, match="NUL"):
        _core.quote("a\0b")
    with pytest.raises(TypeError):
        _core.scan(3)


def test_str_and_bytes() -> None:
    assert _core.scan("echo \u00e9 \udcff") == _core.scan(b"echo \xc3\xa9 \xff")
    assert _core.quote("\u00e9") == b"\\builtin eval $'\\303\\251'\n"
