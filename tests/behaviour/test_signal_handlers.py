"""Handlers of signals that others have set, below Python."""

from __future__ import annotations

import subprocess
import sys

from tests.support.harness import python_environment

_SCRIPT = """
import ctypes, signal, sys, threading, time
from swerex_c import _core
from swerex_c.engine.signals import Signals

def caught():
    with open("/proc/self/status") as status:
        mask = next(line.split()[1] for line in status if line.startswith("SigCgt:"))
    return bool(int(mask, 16) >> (signal.SIGURG - 1) & 1)

libc = ctypes.CDLL(None)
libc.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
if sys.argv[1] == "theirs":  # as a runtime of another language does that preempts its threads so
    libc.signal(signal.SIGURG, ctypes.cast(libc.abs, ctypes.c_void_p))
before = caught()
with Signals():
    _core.interrupt_thread(threading.get_ident())
    during = caught()
print(before, during, caught())
"""


def _handlers(whose: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, whose], env=python_environment(), capture_output=True, text=True, timeout=60
    )
    return done.stdout + done.stderr


def test_a_handler_of_sigurg_that_python_does_not_know_stays() -> None:
    assert _handlers("theirs") == "True True True\n"


def test_a_handler_of_sigurg_of_our_own_goes() -> None:
    assert _handlers("nobody's") == "False True False\n"
