"""First process of a container (PID 1), which collects orphans.

A process whose parent has ended becomes a child of the first process of its PID namespace, and later stays a zombie
until that collects it. A server that is the first process therefore moves into a child process: there it collects the
processes that it started itself, and the first process collects all others.
"""

from __future__ import annotations

import os
import signal
from typing import NoReturn

__all__ = ["leave_first_process"]

_FORWARDED = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2}

_FROM_KERNEL = 0x80
"""`si_code` of a signal from a terminal, which goes to all processes there."""


def leave_first_process() -> None:
    """Return in a child process if this is the first process of its namespace, which then never returns.

    Call it before threads are started.
    """
    if os.getpid() != 1:
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, *_FORWARDED})
    server = os.fork()
    if server:
        _collect(server)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _collect(server: int) -> NoReturn:
    """Collect children and forward signals until the server ends, then exit with its code."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):  # their other ends would otherwise not see that the server closes them
        os.dup2(nothing, fd)
    while True:
        told = signal.sigwaitinfo({signal.SIGCHLD, *_FORWARDED})
        if told.si_signo != signal.SIGCHLD:
            if told.si_code != _FROM_KERNEL:
                os.kill(server, told.si_signo)
            continue
        while True:
            child, status = os.waitpid(-1, os.WNOHANG)
            if child == server:
                code = os.waitstatus_to_exitcode(status)
                os._exit(code if code >= 0 else 128 - code)
            if not child:
                break
