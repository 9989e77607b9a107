"""Objects of the core that are dropped early, or outlive what they belong to.

Each case runs in a Python of its own, with freed memory overwritten, so that a use of it shows even without
a sanitizer.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.original import run_python

PROLOGUE = """
import select, time
from swerex_c import _core
from swerex_c.engine.patterns import make_matcher
ENVIRONMENT = [b"PATH=/usr/bin:/bin"]

def has_ended(operation, seconds=60):
    limit = time.monotonic() + seconds
    while not operation.done and time.monotonic() < limit:
        time.sleep(0.001)
    return operation.done

def session():
    made = _core.Session(b"/bin/bash", ENVIRONMENT, None, 24, 80, 1 << 20)
    start = made.start(b":", 10, None, None)
    assert has_ended(start) and start.end == "done"
    return made

ends = _core.Completions()

def process(script):
    return _core.Process(b"/bin/sh", [b"sh", b"-c", script], ENVIRONMENT, None, b"", False, None, 1 << 20, ends, "end")

def wait_for_end():
    select.select([ends.fileno()], [], [])
    assert ends.take() == ["end"]

def nodes_left():
    limit = time.monotonic() + 60
    while _core.node_count() and time.monotonic() < limit:
        time.sleep(0.01)
    return _core.node_count()
"""


def check(script: str, output: str) -> None:
    """Run the script and compare what it printed; its exit code must be 0."""
    done = run_python(PROLOGUE + script, MALLOC_PERTURB_="165", PYTHONMALLOC="malloc")
    assert (done.returncode, done.stdout) == (0, output), done.stderr


def test_a_process_object_may_go_before_what_its_program_started(tmp_path: Path) -> None:
    """A grandchild keeps the pipes open: the end of that comes when nobody knows the Process any more."""
    os.mkfifo(tmp_path / "gate")
    check(
        f"gate = {str(tmp_path / 'gate')!r}"
        """
import os
opened = os.open(gate, os.O_RDWR)
for _ in range(20):
    ended = process(b"read x <%b &" % gate.encode())
    wait_for_end()
    assert ended.end == "done"
    del ended
assert _core.node_count() == 20
os.write(opened, b"\\n" * 20)
print(nodes_left())
""",
        "0\n",
    )


# Threads that use the core in every way until its end, or until `over`; `begun` says that all do.
USERS = """
import threading
over = threading.Event()

def uses(shell, matcher):
    yield shell.facts
    yield lambda: shell.run("true", 1, None, None, None, None, None, None, 150).take()
    yield lambda: has_ended(shell.run("echo text", 1, None, None, matcher, None, None, None, 0), 0.001)
    yield lambda: (shell.type(b"x"), shell.resync(0))
    yield lambda: process(b"echo text").cancel()
    yield lambda: _core.Session(b"/bin/bash", ENVIRONMENT, None, 24, 80, 1 << 20)

def use(what, begun):
    while not over.is_set():
        try:
            what()
        except RuntimeError as error:
            assert "ended with the interpreter" in str(error), error
            return
        finally:
            begun.set()

def begin():
    threads = []
    for what in uses(session(), make_matcher(["nothing"])):
        begun = threading.Event()
        threads.append(threading.Thread(target=use, args=(what, begun), daemon=True))
        threads[-1].start()
        assert begun.wait(60)
    return threads
"""

SCRIPTS: dict[str, tuple[str, str]] = {
    # Dropped right at their end, while the reactor still handles it.
    "many short processes leave no node": ("""
for _ in range(300):
    ended = process(b":")
    wait_for_end()
    del ended
print(nodes_left())
""", "0\n"),
    # As at the interpreter's exit, where the reactor ends first and the objects go later, in any order.
    "objects that outlive the reactor": ("""
waker = _core.Completions()
living, idle = session(), session()
running = living.run("sleep 100", 1, None, None, None, waker, None, None, 0)
waiting = living.run("echo", 1, None, None, None, waker, None, None, 0)
ended = idle.run("echo text", 1, None, None, None, None, None, None, 0)
assert has_ended(ended)
program = process(b"sleep 100")
_core._shutdown()
for call in (
    lambda: living.run("echo", 1, None, None, None, None, None, None, 0), living.facts, running.take,
    running.unsearched,
):
    try:
        call()
    except RuntimeError as error:
        print(str(error).split(maxsplit=2)[2])
running.cancel()
program.cancel()
print(ended.output, end="")
del living, running
later = session()
print(later.facts()["dead"])
""", "ended with the interpreter\n" * 4 + "text\nFalse\n"),
    # Strings are taken from anything that is a sequence, also from one that makes them anew each time.
    "arguments may change while they are used": ("""
class Words:
    def __len__(self):
        return 3
    def __getitem__(self, i):
        if i >= 3:
            raise IndexError(i)
        return b"".join([b"word-", b"x" * 100, b"%d" % i])
program = _core.Process(b"/bin/echo", Words(), ENVIRONMENT, None, b"", False, None, 1 << 20, ends, "end")
wait_for_end()
print(program.stdout == b" ".join(Words()[i] for i in (1, 2)) + b"\\n")
""", "True\n"),
    # Until an operation has gone; and nothing else is one, whatever the module's name for it is bound to.
    "a matcher is that of one stream": ("""
shell, matcher = session(), make_matcher(["a"])
reads = shell.run("read", 1, None, None, matcher, None, None, None, 0)
_core.Matcher = object
for use in (
    matcher.reset, lambda: matcher.feed(b"a"),
    *(lambda one=one: shell.run("echo", 1, None, None, one, None, None, None, 0) for one in (matcher, object())),
):
    try:
        use()
    except (RuntimeError, TypeError) as error:
        print(error)
del reads
print(matcher.feed(b"a"))
""", "the matcher is in use\n" * 3 + "a Matcher is needed\n(0, 0, 1)\n"),
    # The limit dropped the middle, the match is longer than the tail that was kept.
    "dropped output is told when a match took the tail": ("""
shell = _core.Session(b"/bin/bash", ENVIRONMENT, None, 24, 80, 10)
assert has_ended(shell.start(b":", 10, None, None))
found = shell.run("printf pre0123456789abcdef", 1, None, None, make_matcher(["0123456789abcdef"]), None, None, None, 0)
assert has_ended(found) and found.end == "matched"
print(found.dropped > 0, "bytes of output were dropped here" in found.output)
""", "True True\n"),
    # As at the interpreter's exit, between any two steps of a command that waits: what is raised is one of ours.
    "the engine ends while bash is asked about a command": ("""
import asyncio
from swerex_c.exceptions import SwerexException
from swerex_c.engine.session import BashSession
from swerex_c.runtime.abstract import CreateBashSessionRequest
from swerex_c.runtime.local import LocalRuntime
asked = BashSession._ask_bash

async def one(last):
    answers = 0
    async def ask(*arguments):
        nonlocal answers
        answers += 1
        try:
            return await asked(*arguments)
        finally:
            if answers == last:
                _core._shutdown()
    BashSession._ask_bash = ask
    runtime = LocalRuntime()
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=60))
    await runtime.run("shopt -s extglob", timeout=60)
    try:
        await runtime.run("echo !(nothing) | wc -w", timeout=60)
        print("no error")
    except SwerexException as error:
        print(type(error).__name__)

asyncio.run(one(last=1))  # the command alone was not accepted
asyncio.run(one(last=2))  # with extglob it was
""", "SwerexException\nSwerexException\n"),
    "the engine ends while threads use it": (USERS + """
for _ in range(8):
    over.clear()
    threads = begin()
    _core._shutdown()
    over.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
print("done")
""", "done\n"),
    # Sequences are Python code, which may do anything; the objects live in a new engine then.
    "the engine ends while arguments are read": ("""
class Ends(tuple):
    def __iter__(self):
        _core._shutdown()
        return super().__iter__()

def begin_session():
    return _core.Session(b"/bin/bash", Ends(ENVIRONMENT), None, 24, 80, 1 << 20)

def begin_process():
    return _core.Process(b"/bin/true", Ends([b"true"]), ENVIRONMENT, None, b"", False, None, 1 << 20, None, None)

for begin in (begin_session, begin_process):
    print(type(begin()).__name__)
""", "Session\nProcess\n"),
}  # fmt: skip
"""Scripts, and what they print."""


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script(name: str) -> None:
    check(*SCRIPTS[name])


@pytest.mark.idle
@pytest.mark.parametrize(
    "make", ['_core.Session(b"/bin/bash", ENVIRONMENT, None, 24, 80, 1 << 20)', 'process(b"exec sleep 1000")']
)
def test_what_is_thrown_away_ends_together(make: str) -> None:
    """One by one, with a look at all processes for each, they would end more slowly than others can be made."""
    check(
        f"""
import resource
limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
session()
begin = time.process_time()
made = [{make} for _ in range(512)]
middle = time.process_time()
del made
_core._shutdown()
making, ending = middle - begin, time.process_time() - middle
print(ending < 50 * making or (making, ending))
""",
        "True\n",
    )


def test_the_interpreter_ends_while_threads_use_the_engine() -> None:
    for _ in range(5):
        check(USERS + "begin()\nprint('done')", "done\n")
