"""Text in: whatever can be typed reaches bash byte for byte, as one unit, or is refused with a clear error."""

from __future__ import annotations

import hashlib
import random
import shlex
import string
from pathlib import Path

import pytest

from swerex_c.exceptions import SessionLostSyncError
from tests.support.session import Gate, Shell, Steps
from tests.support.wait import until

TYPED = [
    ("leading tabs", "\t\techo indented", "indented\n"),
    ("bangs", "echo !! !$ !-1 '!x' x!", "!! !$ !-1 !x x!\n"),
    ("caret at the start", "echo one; echo '^a^b'", "one\n^a^b\n"),
    ("backslashes", r"""echo 'a\nb' "c\\d" e\ f""", "a\\nb c\\d e f\n"),
    ("backslash newline", "echo a\\\nb c \\\n  d", "ab c d\n"),
    ("quote over lines", "echo 'one\ntwo\n\nthree'", "one\ntwo\n\nthree\n"),
    ("last line is a comment", "echo a\necho b\n# the end", "a\nb\n"),
    ("comment with a quote", "echo a # it's\necho b", "a\nb\n"),
    ("hash that is no comment", "echo a#b '#c' \\#d ${#HOME}x >/dev/null; echo $#", "0\n"),
    ("only a tab", "\t", ""),
    ("only comments", "# a\n  # b\n#c\n", ""),
    ("carriage return in quotes", "printf '%s' 'a\rb' | od -An -tx1 | tr -d ' \n'", "610d62"),
    ("double-quoted delimiter", 'cat <<"E O F"\n$a\nE O F', "$a\n"),
    ("escaped delimiter", "cat <<\\EOF\n$a\nEOF", "$a\n"),
    ("two here-documents in a pipeline", "cat <<A | cat - /dev/fd/3 3<<B\na\nA\nb\nB", "a\nb\n"),
    ("nested here-document", "cat <<OUT\n$(cat <<IN\ninner\nIN\n)\nouter\nOUT", "inner\nouter\n"),
    ("here-document that a blank line ends", "cat <<' '\na\n ", "a\n"),
    ("here-document that an empty line ends", "cat <<''\na\n\n", "a\n"),
    ("here-document that a tab ends", "cat <<$'\\t'\na\n\t\n", "a\n"),
    ("here-document with braces", "cat <<EOF\n}\n{\n)\ndone\nfi\nEOF", "}\n{\n)\ndone\nfi\n"),
    ("here-document with our kind of words", "cat <<'EOF'\nbuiltin eval exit EOF \nEOF", "builtin eval exit EOF \n"),
    ("empty here-document", "cat <<EOF\nEOF", ""),
    ("delimiter of SWE-ReX's own", "cat <<SOUNIQUEEOF\none\nSOUNIQUEEOF\necho two", "one\ntwo\n"),
    ("stdin is the terminal for no line", "cat </dev/null\necho next", "next\n"),
    ("process substitution", "cat <(echo a) <(echo b)", "a\nb\n"),
    ("process substitution out", "echo x > >(cat); sleep 0.1; wait", "x\n"),
    ("coproc", "{ coproc cat; } 2>&-; echo hi >&${COPROC[1]}; read -u $COPROC l; disown; kill $!; echo $l", "hi\n"),
    ("empty array assignment", "echo 'hw';A=();echo 'asdf'", "hw\nasdf\n"),
    ("braces as words", "echo } { '}' \"{\"", "} { } {\n"),
    ("semicolon lines", "echo a;\necho b &&\necho c ||\necho d |\ncat", "a\nb\nc\n"),
    ("pipe at the end of a line", "printf 'b\\na\\n' |\nsort", "a\nb\n"),
    ("unicode line separators", "echo 'a\u2028b\u0085c\u00a0d'", "a\u2028b\u0085c\u00a0d\n"),
    ("time keyword", "TIMEFORMAT=; time echo timed", "timed\n"),
    ("line continuation at pipe with comment", "echo a | # first\n cat # last", "a\n"),
    ("alias used in one go", "shopt -s expand_aliases\nalias greet='echo hello'\ngreet you", "hello you\n"),
    (
        "extglob set and used",
        "shopt -s extglob\ncd /\n[[ abc == @(abc|def) ]] && case xx in +(x)) echo ok;; esac",
        "ok\n",
    ),
    (
        "control characters in what is evaluated",
        "alias say='printf %s'\nsay 'a\x03\x1b\x7fb\u00e9' | od -An -tx1 | tr -d ' \\n'",
        "61031b7f62c3a9",
    ),
    # Python's surrogateescape characters are the bytes they stand for.
    ("invalid UTF-8", "printf %s 'a\udcff\udcfeb\udcc3' | od -An -tx1 | tr -d ' \\n'", "61fffe62c3"),
    ("a read does not take the next line", 'read -t 0.2 -r line\necho "got=[$line]"', "got=[]\n"),
]


@pytest.mark.parametrize(("command", "output"), [pytest.param(c, o, id=name) for name, c, o in TYPED])
def test_typed(sh: Shell, command: str, output: str) -> None:
    sh.gives(command, output)


STEPS: dict[str, Steps] = {
    "extglob from the line before": [
        ("shopt -s extglob", "", 0),
        ("[[ aab == +(a)b ]] && x=foobar; echo ${x/+(o)/0}", "f0bar\n", 0),
        ("case abc in @(abc|def)) echo in;; esac", "in\n", 0),
        ("f() { echo !(nothing) | wc -w; }\ncd /\n[[ $(f) -gt 2 ]]; echo $?", "0\n", 0),
        ("d=$(mktemp -d); cd $d; touch a.c b.c c.h; echo !(*.h|home); rm -r $d", "a.c b.c\n", 0),
    ],
    "alias from the line before": [
        ("alias greet='echo hello'", "", 0), ("greet world", "hello world\n", 0),
        ("if true; then\ngreet two\nfi", "hello two\n", 0), ("unalias greet", "", 0),
        ("greet world", "bash: greet: command not found\n", 127),
    ],
    # Aliases may carry half of a construct; no check in advance may refuse what bash takes.
    "alias that opens a group": [("alias begin='{' end='}'", "", 0), ("begin echo a; end", "a\n", 0)],
    # A last backslash is an argument, as in `bash -c`: also where what is before it looks like a here-document, or is.
    **{
        f"a last backslash behind {text!r}": [(f"{text}\necho end \\", f"{output}end \\\n", 0), ("echo $?", "0\n", 0)]
        for text, output in {
            "cat <<< a\\\nb": "ab\n", "# <<E": "", "echo '<<E'": "<<E\n", "cat <<E\na\nE": "a\n", "((1<<2))": ""
        }.items()
    },
    "nowhere to write": [
        ("echo text >/dev/full", "bash: echo: write error: No space left on device\n", 1),
        ("export TMPDIR=/proc TMP=/nonexistent; cd /", "", 0), ("cat <<E\nhere\nE", "here\n", 0),
        ("x='a\x01b'\necho ${#x}", "3\n", 0), ("unset TMPDIR TMP", "", 0),
    ],
    **{
        f"a final backslash in {text!r}": [("(exit 3)", "", 3), (text, None, code), ("echo b; (exit 4)", "b\n", 4)]
        for text, code in (("echo a\\", 0), ("true\\", 127), ("\\", 127), ("\\\n", 0))
    },
    "a line that history would expand": [(" echo a", "a\n", 0), ("^a^b", "bash: ^a^b: command not found\n", 127)],
}  # fmt: skip


@pytest.mark.parametrize("name", STEPS)
def test_typed_one_after_the_other(sh: Shell, name: str) -> None:
    sh.take(STEPS[name])


def test_second_line_is_not_stdin_of_the_first(sh: Shell) -> None:
    """`cat` reads the terminal, never the rest of the command."""
    sh.times_out("cat\necho second", timeout=0.4)
    seen = sh.interrupt()
    assert "echo second" not in seen.output
    sh.synced()


@pytest.mark.parametrize("size", [300, 4093, 4094, 4095, 4096, 4097, 4098, 8191, 8192, 20_000, 200_000])
def test_a_long_line_arrives_whole(sh: Shell, size: int) -> None:
    """A canonical line above 4,095 bytes is cut by the terminal; a command is not."""
    before, behind = "printf %s '", "' | sha256sum"
    letters = string.ascii_letters + string.punctuation.replace("'", "") + " \t"
    text = "".join(random.Random(size).choices(letters, k=size - len(before + behind)))
    seen = sh.out(before + text + behind)
    assert seen.split()[0] == hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize("size", [4094, 4095, 4096, 4097, 50_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_long_line_inside_a_here_document(sh: Shell, size: int) -> None:
    line = "".join(random.Random(size).choices(string.ascii_letters + "$`\\\"'!\t", k=size))
    seen = sh.out(f"cat <<'END' | sha256sum\nshort\n{line}\nlast\nEND")
    assert seen.split()[0] == hashlib.sha256(f"short\n{line}\nlast\n".encode()).hexdigest()


def test_control_characters_are_data(sh: Shell) -> None:
    """^C, ^D, ^U, ^W, ^V, ^S, ^Q, ^Z, ^\\, ESC and DEL inside a command are characters, not keys."""
    for code in [*range(1, 9), 11, 12, *range(13, 32), 127]:
        sh.gives(f"printf %s 'a{chr(code)}b' | od -An -tx1 | tr -d ' \\n'", f"61{code:02x}62")
    every = "".join(map(chr, [*range(1, 10), *range(11, 32), 127]))
    sh.gives(f"printf %s '{every}' | od -An -v -tx1 | tr -d ' \\n'", every.encode().hex())
    sh.gives(f"printf %s '{every}\n{every}' | wc -c", "63\n")


@pytest.mark.parametrize("before", ["", "true\n", "cat <<E\na\nE\n"])
def test_a_last_backslash_behind_an_open_here_document(sh: Shell, before: str) -> None:
    """As in `bash -c`: it is an argument, and no line is waited for."""
    seen = sh.run(f"{before}cat <<E \\")
    assert seen.exit_code == 1
    assert seen.output.endswith("cat: '\\': No such file or directory\n")
    sh.gives("echo $?", "1\n")


READER = """
import hashlib, os, sys, termios, time
def modes(canonical):
    now = termios.tcgetattr(0)
    now[3] = now[3] | termios.ICANON if canonical else now[3] & ~termios.ICANON
    termios.tcsetattr(0, termios.TCSANOW, now)
first, second = sys.argv[1:]
modes(first == "lines")
print("ready>", end="", flush=True)
time.sleep(0.3)
modes(second == "lines")
line = b""
while not line.endswith(b"\\n"):
    line += os.read(0, 700)
modes(True)
print(len(line), hashlib.sha256(line).hexdigest())
"""


@pytest.mark.parametrize("first", ["lines", "bytes"])
@pytest.mark.parametrize("second", ["lines", "bytes"])
@pytest.mark.parametrize("size", [1999, 2001, 4095, 4096, 9000, 100_000])
def test_a_long_line_for_a_program(sh: Shell, tmp_path: Path, first: str, second: str, size: int) -> None:
    """All bytes of a line arrive, in whatever mode the terminal is when they are typed and when they are read."""
    (tmp_path / "reader.py").write_text(READER)
    sh.talk(f"python3 {tmp_path}/reader.py {first} {second}", "ready>")
    line = "".join(random.choices(string.ascii_letters, k=size))
    seen = sh.leave(line)
    assert seen.output.split() == [str(size + 1), hashlib.sha256(f"{line}\n".encode()).hexdigest()]


@pytest.mark.parametrize("read", ["read x", "read -t 1000 x", "TMOUT=1000; read x"])
def test_a_long_line_for_the_shell_itself(sh: Shell, read: str) -> None:
    sh.talk(f"printf ready; {read}", "ready")
    sh.leave("y" * 9000)
    sh.gives("echo ${#x}", "9000\n")


@pytest.mark.parametrize("before", ["true", "sleep 1000 &", "stty echo", "readonly PS0=x", "exec 2>/dev/null"])
@pytest.mark.parametrize("size", [4090, 5000, 100_000])
def test_a_long_line_at_the_prompt(sh: Shell, before: str, size: int) -> None:
    sh.run(before)
    line = f"echo {'a' * (size - 5)}"
    seen = sh.run(line, is_interactive_command=True)
    assert seen.output.endswith(line[5:]) and len(seen.output) < size


def test_a_long_line_behind_the_line_that_starts_its_program(sh: Shell, tmp_path: Path) -> None:
    line = "y" * 9000
    sh.run("sleep 1000 &")
    sh.talk(f"cat >{tmp_path}/f\n{line}\n\x04")
    assert (tmp_path / "f").read_text() == f"{line}\n"


def test_what_a_program_leaves_of_a_long_line_is_no_command(sh: Shell) -> None:
    sh.talk("sh -c 'printf ready; read x; read y; echo ${#x}'", "ready")
    seen = sh.leave("short\n" + "x" * 3000 + "; echo " + "y" * 6000)
    assert seen.output == "5\n"


@pytest.mark.parametrize(
    "read",
    [
        "head -c 10",
        "stty raw -echo; head -c 10; stty -raw",
        "until read -rn 10 -t 0.2 x; do :; done; echo -n $x",
        "sleep 0.2; read -rn 10 x; echo -n $x",
    ],
)
def test_what_a_program_leaves_of_a_long_line_is_no_part_of_a_command(sh: Shell, read: str) -> None:
    sh.talk(f"bash -c 'printf ready; {read}; echo'", "ready")
    try:  # a program that has ended before all of it was typed leaves nothing
        assert sh.leave("z" * 9000).output == "z" * 10 + "\n"
        sh.synced()
    except SessionLostSyncError:
        sh.ended = True


PUSH = "import fcntl, sys, termios\nfor c in sys.argv[1]: fcntl.ioctl(0, termios.TIOCSTI, c.encode())"


def push(sh: Shell, keys: str) -> None:
    """Put keys into the terminal's input, as a program can do that has it (TIOCSTI)."""
    seen = sh.run(shlex.join(["python3", "-c", PUSH, keys]))
    if "Input/output error" in seen.output:
        pytest.skip("this kernel lets nobody push keys (dev.tty.legacy_tiocsti)")
    assert (seen.output, seen.exit_code) == ("", 0)


@pytest.mark.parametrize("keys", ["X", "#", "echo '", '"', "\x16", "(", "x" * 4000], ids=repr)
def test_keys_in_the_terminal_begin_no_command(sh: Shell, keys: str) -> None:
    long = "y" * 5000
    for command, output in (("echo hi", "hi\n"), ("echo a\necho b", "a\nb\n"), (f"echo {long}", f"{long}\n")):
        push(sh, keys)
        sh.gives(command, output)


def test_keys_from_the_background_begin_no_command(sh: Shell, gate: Gate, tmp_path: Path) -> None:
    push(sh, "")
    sh.out(f"({{ {gate.pass_}; python3 -c {shlex.quote(PUSH)} X </dev/tty; touch {tmp_path}/pushed; }} &)")
    gate.open()
    until((tmp_path / "pushed").exists)
    sh.gives("echo hi", "hi\n")


QUERY = """
import os, re, sys, termios, time, tty
modes = termios.tcgetattr(0)
tty.setraw(0)
os.write(1, b"\\x1b[6n")
{}
termios.tcsetattr(0, termios.TCSANOW, modes)
sys.exit(5)
"""


@pytest.mark.parametrize("rest", ["time.sleep(0.2)", "time.sleep(0.05); print('x', end='')", "pass"])
def test_an_answer_that_a_program_leaves_unread_begins_no_command(sh: Shell, rest: str) -> None:
    output = "x" if "print" in rest else ""
    for _ in range(3):
        sh.gives(shlex.join(["python3", "-c", QUERY.format(rest)]), output, 5)
        sh.gives('echo $? "$_"', f"5 {QUERY.format(rest)}\n")


READ = r"""
got = b""
while not got.endswith(b"R"):
    got += os.read(0, 1)
assert re.fullmatch(rb"\x1b\[\d+;\d+R", got)
time.sleep(1)
"""


def test_an_answer_that_a_program_reads_costs_nothing(sh: Shell) -> None:
    """The shell is not interrupted then, so that a trap of the user's does not run, and all is known of a pipeline."""
    sh.out("trap 'interrupted=1' INT; interrupted=0")
    sh.run(shlex.join(["python3", "-c", QUERY.format(READ)]) + " | cat")
    sh.gives("echo ${PIPESTATUS[@]} $interrupted", "5 0 0\n")
