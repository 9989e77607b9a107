"""A person in a session: `swerex-c shell` within a terminal, and `BashSession.interact()`."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
import signal
import struct
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swerex_c.runtime.abstract import BashAction, CreateBashSessionRequest
from swerex_c.runtime.local import LocalRuntime
from tests.support.person import PROMPT, Person, readable_modes
from tests.support.processes import Family
from tests.support.session import Gate
from tests.support.wait import DEADLINE


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short name, so that no prompt fills a line."""
    with tempfile.TemporaryDirectory(prefix="swx") as directory:
        yield Path(directory)


@pytest.fixture
def person(family: Family, place: Path) -> Iterator[Person]:
    someone = Person("-C", str(place))
    try:
        someone.until(PROMPT)
        yield someone
    finally:
        someone.end()
        assert not family.left()


def test_commands_have_a_prompt_that_follows_the_directory(person: Person) -> None:
    assert person.run(b"echo $((6 * 7))") == b"42\r"
    person.keys(b"cd /usr\r")
    assert re.search(rb":/usr[#$] $", person.until(PROMPT))
    assert person.run(b"pwd") == b"/usr\r"
    assert person.run(b"") == b""


def test_state_and_exit_codes_are_the_shells(person: Person) -> None:
    person.run(b"x='a  b'; false")
    assert person.run(b'echo "$? $x"') == b"1 a  b\r"
    person.run(b"sh -c 'exit 7' | cat")
    assert person.run(b'echo "${PIPESTATUS[*]}"') == b"7 0\r"


def test_several_lines_are_asked_for(person: Person) -> None:
    for line in (b"for i in 1 2; do", b"  echo n$i"):
        person.keys(line + b"\r")
        person.until(rb"\r\n(?:\x1b\[\?2004[hl]\r?)*> ")
    assert person.run(b"done") == b"n1\r\nn2\r"
    person.keys(b"echo 'first\r")
    person.until(rb"> ")
    assert person.run(b"second'") == b"first\r\nsecond\r"
    person.keys(b"cat <<END\r")
    person.until(rb"> ")
    person.keys(b"$((1 + 1)) > here\r")
    person.until(rb"\r\n(?:\x1b\[\?2004[hl]\r?)*> ")
    assert person.run(b"END") == b"2 > here\r"
    person.keys(b"echo one \\\r")
    person.until(rb"\r\n(?:\x1b\[\?2004[hl]\r?)*> ")
    assert person.run(b"two") == b"one two\r"


def test_a_long_line_is_no_different(person: Person) -> None:
    person.keys(b": " + b"x" * 5000 + b"; printf 'a\\nb\\n'; cat\r")
    person.until(rb"\na\r\nb\r\n")
    person.keys(b"echoed\r")
    person.until(rb"echoed\r\nechoed\r\n")
    person.keys(b"\x04")
    person.until(PROMPT)


def test_wrong_syntax_is_told_and_not_run(person: Person) -> None:
    said = person.run(b"echo no; )")
    assert b"syntax error" in said and b"\nno\r" not in said
    assert person.run(b"echo fine") == b"fine\r"
    person.keys(b"if true; then\r")
    person.until(rb"> ")
    person.keys(b"\x04")
    assert b"unexpected end of file" in person.until(PROMPT)


def test_interrupts(person: Person) -> None:
    person.begin("sleep 1000")
    person.keys(b"\x03")
    person.until(PROMPT)
    assert person.run(b"echo $?") == b"130\r"
    person.keys(b"half a command")
    person.until(rb"half a command")
    person.keys(b"\x03")
    person.until(PROMPT)
    assert person.run(b"echo again") == b"again\r"


def test_an_interrupt_ends_a_flood(person: Person) -> None:
    person.keys(b"yes\r")
    person.until(rb"y\r\ny\r\n")
    person.keys(b"\x03")
    person.until(PROMPT)
    assert person.run(b"echo $?") == b"130\r"


def test_a_job_can_be_stopped_and_continued(person: Person) -> None:
    person.begin("cat")
    person.keys(b"\x1a")
    person.until(rb"Stopped")
    person.until(PROMPT)
    person.keys(b"fg\r")
    person.until(rb"\ncat")
    person.keys(b"heard\r")
    person.until(rb"heard\r\nheard\r\n")  # the second time by cat: it has the terminal
    person.keys(b"\x03")
    person.until(PROMPT)
    assert person.run(b"jobs") == b""


def test_a_program_gets_what_is_typed(person: Person) -> None:
    person.begin("cat")
    person.keys(b"hello\r")
    assert person.until(rb"hello\r\nhello\r\n")  # the terminal's echo, then cat's own
    person.keys(b"wrong\x15right\r")
    person.until(rb"\nright\r\n")
    person.keys(b"\x04")
    person.until(PROMPT)
    person.keys(b"read -rsp 'speak''-now' secret; echo; echo ${#secret}\r")
    person.until(rb"speak-now")
    person.keys(b"hidden\r")
    assert b"hidden" not in person.until(rb"6\r\n" + b".*" + PROMPT)


def test_lines_typed_ahead_run(person: Person, gate: Gate) -> None:
    person.keys(gate.pass_.encode() + b"\r")
    gate.reached()
    person.keys(b"echo ahead-$((1 + 1))\runfinished")
    person.until(rb"unfinished")  # the terminal's echo, while the command runs
    gate.open()
    person.until(rb"ahead-2\r\n")
    person.until(PROMPT + b".*unfinished")
    person.keys(b"\x15")
    assert person.run(b"echo $((2 + 2))") == b"4\r"


def test_python_can_be_talked_to(person: Person) -> None:
    person.keys(b"PYTHON_BASIC_REPL=1 PYTHONSTARTUP= " + os.fsencode(sys.executable) + b" -q\r")
    person.until(rb">>> ")
    person.keys(b"print(6 * 7)\r")
    person.until(rb"\n42\r\n")
    person.until(rb">>> ")
    person.keys(b"import time; print('be' + 'gun'); [time.sleep(0.01) for _ in iter(int, 1)]\r")
    person.until(rb"begun")
    person.keys(b"\x03")
    person.until(rb"KeyboardInterrupt")
    person.until(rb">>> ")
    person.keys(b"raise SystemExit(9)\r")
    person.until(PROMPT)
    assert person.run(b"echo $?") in (b"9\r", b"130\r")  # 130 from 3.14 on, because of the interrupt


def test_vim_edits_a_file(person: Person, place: Path) -> None:
    person.keys(b"vim -u NONE -N note.txt\r")
    person.until(rb"\x1b\[\?1049h")
    person.until(rb"note.txt")
    person.keys(b"ihello from vim\x1b:wq\r")
    person.until(rb"\x1b\[\?1049l")
    person.until(PROMPT)
    assert (place / "note.txt").read_text() == "hello from vim\n"


def test_less_shows_pages(person: Person, place: Path) -> None:
    (place / "long").write_text("".join(f"line {i}\n" for i in range(200)))
    person.keys(b"less long\r")
    person.until(rb"line 22\r\n")
    assert b"line 100" not in person.said
    person.keys(b"G")
    person.until(rb"line 199\r\n")
    person.keys(b"q")
    person.until(PROMPT)
    assert person.run(b"echo $?") == b"0\r"


def test_bytes_pass_unchanged(person: Person, place: Path) -> None:
    data = bytes(range(1, 256)) * 40
    (place / "bytes").write_bytes(data)
    person.keys(b"stty raw; cat bytes; stty sane\r")
    person.until(rb"stty sane\r?\n")
    shown = person.until(PROMPT)
    assert data in shown


def test_the_size_is_the_persons(person: Person) -> None:
    assert person.run(b"stty size") == b"24 80\r"
    fcntl.ioctl(person.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 99, 0, 0))
    person.keys(b"stty size\r")
    person.until(rb"\n33 99\r\n")
    person.until(PROMPT)
    # Within a command it is passed on when it happens.
    person.keys(b"sh -c \"trap 'stty size; exit' WINCH; echo on; while :; do sleep 0.1; done\"\r")
    person.until(rb"\non\r\n")
    fcntl.ioctl(person.slave, termios.TIOCSWINSZ, struct.pack("HHHH", 44, 111, 0, 0))
    person.until(rb"44 111\r\n")
    person.until(PROMPT)


def test_stty_lasts(person: Person) -> None:
    person.run(b"stty -echo")
    person.begin("cat")
    person.keys(b"once\r")
    assert person.until(rb"once\r\n").count(b"once") == 1
    person.keys(b"\x04")
    assert b"once" not in person.until(PROMPT)
    assert b"-echo " in person.run(b"stty -a")


@pytest.mark.parametrize(
    ("last", "code", "says"),
    [
        (b"exit 5\r", 5, rb"ended with status 5"),
        (b"set -e\rfalse\r", 1, rb"ended with status 1"),
        (b"kill -9 $$\r", 137, rb"ended by signal 9"),
        (b"exec true\r", 0, rb"ended with status 0"),
        (b"(exit 3)\r\x04", 3, rb"exit"),
        (b"\x04", 0, rb"exit"),
    ],
)
def test_it_ends_with_the_last_exit_code(person: Person, last: bytes, code: int, says: bytes) -> None:
    for keys in re.findall(rb"[^\r\x04]*[\r\x04]", last)[:-1]:
        person.run(keys[:-1])
    person.keys(re.findall(rb"[^\r\x04]*[\r\x04]", last)[-1])
    person.until(says)
    assert person.exit_code() == code
    assert readable_modes(person.slave) == person.modes


def test_modes_are_restored_after_a_program_in_raw_mode_is_killed(person: Person) -> None:
    person.keys(b"stty raw -echo; kill -9 $$\r")
    person.until(rb"signal 9")
    assert person.exit_code() == 137
    assert readable_modes(person.slave) == person.modes


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("running", [False, True])
def test_modes_are_restored_after_a_signal(person: Person, number: signal.Signals, running: bool) -> None:
    if running:
        person.begin("sleep 1000")
    person.process.send_signal(number)
    assert person.exit_code() == 128 + number
    assert readable_modes(person.slave) == person.modes


RIGHT_BEFORE = """\
import ctypes, readline, signal
from swerex_c.cli.main import main
readline.set_pre_input_hook(map(ctypes.CDLL(None)['raise'], [signal.{}]).__next__)
main()
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_a_signal_right_before_the_wait_for_a_key(family: Family, name: str) -> None:
    """Python has noted it, and readline's wait, which it would have ended, begins only then."""
    someone = Person(command=[sys.executable, "-c", RIGHT_BEFORE.format(name), "shell"])
    try:
        someone.until(PROMPT)
        if name == "SIGINT":
            someone.until(PROMPT)
            assert someone.run(b"echo again") == b"again\r"
        else:
            assert someone.exit_code() == 128 + signal.Signals[name]
    finally:
        someone.end()
    assert not family.left()


def test_many_interrupts_end_nothing(person: Person) -> None:
    """They come while a prompt is made, while a command is judged, and while it runs."""
    person.run(b"x=kept")
    for _ in range(30):
        person.keys(b"for i in 1; do sleep 0.01; done\r\x03\x03\x03")
        time.sleep(0.01)
    for tries in range(5, 0, -1):  # a ^C that is handled late takes the line with it that was typed meanwhile
        person.keys(b"echo the-end-$((1 + 1)) $x\r")
        with contextlib.nullcontext() if tries == 1 else contextlib.suppress(AssertionError):
            person.until(rb"\nthe-end-2 kept\r\n", 5.0)
            break


@pytest.mark.parametrize("running", [False, True])
def test_it_ends_when_the_terminal_goes_away(family: Family, running: bool) -> None:
    someone = Person()
    try:
        someone.until(PROMPT)
        if running:
            someone.begin("sleep 1000")
        os.close(someone.slave)
        os.close(someone.master)
        someone.process.wait(DEADLINE)
        assert not family.left()
    finally:
        someone.slave, someone.master = os.openpty()
        someone.end()


def test_the_persons_terminal_answers_queries(person: Person) -> None:
    """The engine answers them when nobody is there; here that would be one answer too many."""
    program = "import os,time; os.write(1, b'\\x1b[6n'); time.sleep(0.5); print(ascii(os.read(0, 99)))"
    person.keys(b"stty raw -echo; " + os.fsencode(sys.executable) + b' -c "' + program.encode() + b'"; stty sane\r')
    person.until(rb"\x1b\[6n")
    person.keys(b"\x1b[5;7R")
    assert rb"b'\x1b[5;7R'" in person.until(PROMPT)


# interact(), without the command line


class Attached:
    """A session of a runtime in this process."""

    def __init__(self) -> None:
        self.runtime = LocalRuntime()
        asyncio.run(self.runtime.create_session(CreateBashSessionRequest(startup_timeout=DEADLINE)))
        self.session: Any = self.runtime.sessions["default"]

    def api(self, command: str, timeout: float = DEADLINE) -> Any:
        return asyncio.run(self.runtime.run_in_session(BashAction(command=command, check="silent", timeout=timeout)))

    def interact(self, text: bytes) -> tuple[int, bytes]:
        """The lines of a pipe as commands: the exit code, and what was shown."""
        given, take = os.pipe()
        shown, show = os.pipe()
        os.write(take, text)
        os.close(take)
        pieces: list[bytes] = []
        reader = threading.Thread(target=lambda: pieces.extend(iter(lambda: os.read(shown, 65536), b"")))
        reader.start()
        try:
            code = self.session.interact(given, show)
        finally:
            os.close(show)
            reader.join()
            os.close(given)
            os.close(shown)
        return code, b"".join(pieces)


@pytest.fixture
def attached(family: Family) -> Iterator[Attached]:
    it = Attached()
    yield it
    asyncio.run(it.runtime.close())


def test_lines_of_a_pipe_are_commands(attached: Attached) -> None:
    text = b"x=4\nfor i in 1 2; do\necho $i\ndone\n\n# nothing\ncat <<E\nhere $x\nE\n"
    text += b"echo \\\nlonger\nprintf '\\033[1m'\nfalse\n"
    assert attached.interact(text) == (1, b"1\n2\nhere 4\nlonger\n\033[1m")
    assert attached.interact(b"echo $x") == (0, b"4\n")  # without a newline at the end
    assert attached.interact(b"(exit 9)\n") == (9, b"")
    assert attached.interact(b"") == (9, b"")
    assert attached.api("echo $?").output == "9\n"


def test_wrong_and_open_ends_of_a_pipe(attached: Attached) -> None:
    code, said = attached.interact(b"echo a; )\n")
    assert code == 2 and b"syntax error" in said and not said.startswith(b"a")
    code, said = attached.interact(b"if true\n")
    assert code == 2 and b"unexpected end of file" in said
    code, said = attached.interact(b"echo a\0b\n")
    assert code == 2 and b"NUL" in said
    assert attached.interact(b"cat <<END\nopen\n")[1].endswith(b"open\n")
    assert attached.interact(b"exit 4\necho never\n") == (4, b"exit\n")  # bash's own word
    assert attached.interact(b"echo never\n") == (4, b"")


def test_much_output_comes_whole(attached: Attached) -> None:
    code, said = attached.interact(b"head -c 3000000 /dev/zero | tr '\\0' x\necho end\n")
    assert code == 0 and said == b"x" * 3_000_000 + b"end\n"


def test_the_session_is_as_it_was_afterwards(attached: Attached, tmp_path: Path) -> None:
    before = attached.api("stty -a; stty size").output
    program = (
        "import asyncio, sys\n"
        "from swerex_c.runtime.abstract import BashAction, CreateBashSessionRequest\n"
        "from swerex_c.runtime.local import LocalRuntime\n"
        "runtime = LocalRuntime()\n"
        "asyncio.run(runtime.create_session(CreateBashSessionRequest(startup_timeout=60)))\n"
        "code = runtime.sessions['default'].interact(0, 1)\n"
        "run = lambda c: asyncio.run(runtime.run_in_session(BashAction(command=c, check='silent', timeout=60)))\n"
        "print('code', code, flush=True)\n"
        "open(sys.argv[1], 'w').write(run('stty -a; stty size').output)\n"
        "print('answer', run('echo $x').output, flush=True)\n"
        "asyncio.run(runtime.close())\n"
    )
    path = str(tmp_path / "modes")
    someone = Person(path, rows=50, columns=150, command=[sys.executable, "-c", program])
    try:
        someone.until(PROMPT)
        assert someone.run(b"stty size") == b"50 150\r"
        someone.run(b"x=kept; (exit 6)")
        someone.keys(b"\x04")
        someone.until(rb"code 6\r\n")
        someone.until(rb"answer kept\r\n")
        assert someone.exit_code() == 0
        assert Path(path).read_text() == before
    finally:
        someone.end()


@pytest.mark.idle  # the person has to come before the command's end
def test_a_person_joins_what_runs(attached: Attached) -> None:
    with pytest.raises(TimeoutError):
        attached.api("echo begin; sleep 0.8; echo rest; (exit 4)", timeout=0.2)
    code, said = attached.interact(b"echo then\n")
    assert (code, said) == (0, b"rest\nthen\n")
