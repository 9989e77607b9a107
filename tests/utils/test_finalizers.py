"""Objects that are collected while their thread is in a critical section: nothing waits for itself."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest

import swerex_c
from swerex_c.utils.finalizers import call_from_finalizer
from tests.support.original import run_python
from tests.support.wait import until

PROLOGUE = """
import asyncio, faulthandler, gc, threading
faulthandler.dump_traceback_later(60, exit=True)
gc.disable()

def drop(thing):
    # It can be collected, and is not yet.
    ring = [thing]
    ring.append(ring)

from tests.support.wait import until
"""

DEPLOYMENT = """
from swerex_c.providers.sandbox_deployment import ProviderDeployment
from swerex_c.runtime.dummy import DummyRuntime
from swerex_c.utils import background

class Nowhere(ProviderDeployment):
    class _config: startup_timeout = 10.0
    ended = []
    async def _start(self):
        self._runtime = DummyRuntime()
    async def _end_sandbox(self):
        self.ended.append(threading.get_ident())

async def started():
    made = Nowhere()
    await made.start()
    return made

drop(asyncio.run(started()))
with background._lock:  # as a caller has it that starts the loop
    gc.collect()
    assert not Nowhere.ended
until(lambda: Nowhere.ended)
"""

PLACE = """
from pathlib import Path
from tests.support import needs
from swerex_c.sandbox.sandbox import Sandbox
from swerex_c.utils import background
from tests.support.local_backend import Here

class Closes(Here):
    closed = threading.Event()
    async def close(self):
        self.closed.set()

place = Sandbox(Closes())
background.run_blocking(place.open(60))
shells, mark = place._shells, place.mark
drop(place)
del place
with background._lock:  # as a caller has it that starts the loop
    gc.collect()
    assert not shells.closed
until(lambda: not needs.mentioning(mark))
until(Closes.closed.is_set, "the connections of a backend")
tasks = Path("/proc/self/task")
until(lambda: not "".join((task / "children").read_text() for task in tasks.iterdir()), "a zombie")
"""


@pytest.mark.timeout(100)
@pytest.mark.parametrize("program", [DEPLOYMENT, PLACE], ids=["deployment", "place"])
def test_a_collection_inside_a_critical_section(program: str) -> None:
    done = run_python(PROLOGUE + program, SWE_REX_LOG_STREAM_LEVEL="ERROR")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_work_of_a_finalizer_leaves_no_thread_on_record() -> None:
    before = set(threading.enumerate())
    done = threading.Event()
    call_from_finalizer(done.set)
    assert done.wait(60)
    until(lambda: set(threading.enumerate()) <= before)


def test_finalizers_are_known() -> None:
    """One that is new comes into this file, with what it does while its thread has a lock."""
    found = set()
    for path in Path(swerex_c.__file__).parent.rglob("*.py"):
        for number in re.findall(r"def __del__|weakref\.finalize\(.*", path.read_text()):
            found.add((path.name, number))
    assert found == {
        ("interfaces.py", "def __del__"),
        ("frames.py", "def __del__"),  # tells loops to close their connections
        ("sandbox.py", "weakref.finalize(self, _drop, self._shells, self.backend, self._owner).atexit = False"),
    }
