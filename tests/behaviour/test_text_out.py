"""Text out: what a command writes is what the caller reads, whatever the bytes, the sizes and the terminal."""

from __future__ import annotations

import re
import textwrap

import pytest

from tests.support.session import Shell

WRITTEN = [
    ("tabs", "printf 'a\\tb\\t\\n'", "a\tb\t\n"),
    ("to the terminal", "echo direct >/dev/tty", "direct\n"),
    ("cut character at the end", "printf 'x\\xe6\\xbc'", "x\\xe6\\xbc"),
    ("cut character inside", "printf '\\xe6\\xbcx\\xf0\\x9f\\n'", "\\xe6\\xbcx\\xf0\\x9f\n"),
    ("overlong and surrogate", "printf '\\xc0\\x80 \\xed\\xa0\\x80'", "\\xc0\\x80 \\xed\\xa0\\x80"),
    ("a backslash x of its own", "printf '%s' '\\xff'", "\\xff"),
    ("many NULs", "head -c 5000 /dev/zero", "\0" * 5000),
    ("colours", "printf '\\033[1;31mred\\033[0m plain\\n'", "red plain\n"),
    ("256 and true colours", "printf '\\033[38;5;9ma\\033[48;2;1;2;3mb\\033[m\\n'", "ab\n"),
    ("erase and move", "printf '\\033[2J\\033[Hx\\033[K\\033[3Ay\\n'", "xy\n"),
    ("private modes", "printf '\\033[?25l\\033[?2004hx\\033[?25h\\n'", "x\n"),
    ("title ended by BEL", "printf '\\033]0;my title\\007text\\n'", "text\n"),
    ("title ended by ST", "printf '\\033]2;my title\\033\\\\text\\n'", "text\n"),
    ("link", "printf '\\033]8;;http://example.org\\033\\\\text\\033]8;;\\033\\\\\\n'", "text\n"),
    ("semantic prompt", "printf '\\033]133;A\\007\\033]133;C\\007text\\033]133;D;0\\007\\n'", "text\n"),
    ("progress bar", "for i in 10 50 100; do printf '\\r%3d%%' $i; done; echo", "\r 10%\r 50%\r100%\n"),
]


@pytest.mark.parametrize(("command", "output"), [pytest.param(c, o, id=name) for name, c, o in WRITTEN])
def test_written(sh: Shell, command: str, output: str) -> None:
    sh.gives(command, output)


def test_unfinished_sequence_swallows_nothing_later(sh: Shell) -> None:
    """A program that dies inside an escape sequence spoils at most its own last bytes."""
    for tail in ("\\033", "\\033[", "\\033[31", "\\033]0;no end", "\\033P", "\\033]777;", "\\033_", "\\033^x", "\\302"):
        seen = sh.run(f"printf 'start\\n{tail}'; (exit 3)")
        assert seen.output.startswith("start\n")
        assert seen.exit_code == 3
        sh.gives("echo after", "after\n")


@pytest.mark.parametrize("cut", [1, 2, 3, 5, 7, 4095, 4096, 4097])
def test_characters_cut_anywhere(sh: Shell, cut: int) -> None:
    """A character that arrives in two pieces is still one character."""
    program = textwrap.dedent(f"""\
        import os, time
        text = ("aä漢🦊" * 1500).encode()
        for i, at in enumerate(range(0, len(text), {cut})):
            os.write(1, text[at:at + {cut}])
            if i < 20:
                time.sleep(0.002)
        """)
    sh.gives(f"python3 -c '{program}'", "aä漢🦊" * 1500)


@pytest.mark.parametrize("size", [4095, 4096, 4097, 65_535, 65_536, 65_537])
def test_sizes_around_buffers(sh: Shell, size: int) -> None:
    sh.gives(f"head -c {size} /dev/zero | tr '\\0' x; (exit 9)", "x" * size, 9)


def test_a_query_nobody_reads_types_nothing(sh: Shell) -> None:
    """The answer to a query must never become part of a later command, nor of a later `read`."""
    for query in ("\\033[6n", "\\033[c", "\\033[>c", "\\033[5n", "\\033[?6n", "\\033]11;?\\007", "\\033[18t", "\\005"):
        sh.run(f"printf 'q{query}\\n'")
        sh.gives("echo next", "next\n")
    sh.gives('IFS= read -r -t 0.2 -n 1 x; echo "[$x]"', "[]\n")


@pytest.mark.parametrize(
    "term", ["xterm", "xterm-256color", "screen", "vt100", "linux", "ansi", "dumb", "unknown", "", "none"]
)
def test_output_under_every_term(shells: type[Shell], monkeypatch: pytest.MonkeyPatch, term: str) -> None:
    monkeypatch.setenv("TERM", term)
    if term == "none":
        monkeypatch.delenv("TERM")
    shell = shells()
    shell.gives("echo hi", "hi\n")
    shell.gives("printf '%s\\n' " + "word " * 60, "word\n" * 60)
    shell.gives("false", "", 1)
    shell.synced()


def test_error_text_of_several_lines(sh: Shell) -> None:
    seen = sh.run("true\nnosuchcommand-xyz\ncd /nonexistent-xyz")
    text = re.sub(r"line \d+: ", "", seen.output)
    assert text == "bash: nosuchcommand-xyz: command not found\nbash: cd: /nonexistent-xyz: No such file or directory\n"
    assert seen.exit_code == 1
