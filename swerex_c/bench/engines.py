"""Engines that run commands in shells: this package, a bare terminal, programs, pexpect, ptyprocess and SWE-ReX.

A worker process has one engine. This module needs only the standard library, because it also runs in the interpreter
that has pexpect, ptyprocess and SWE-ReX; those are imported when their engine is created.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import tempfile
import termios
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

__all__ = [
    "Answer",
    "BareTerminal",
    "Engine",
    "Ours",
    "Pexpect",
    "Ptyprocess",
    "Runtime",
    "Subprocess",
    "SweRex",
    "TunedPexpect",
]

Answer = tuple["str | bytes", "int | None"]
"""Output and exit code of a command; the code is None from an engine that does not know it."""

GIVE_UP = 0.2
"""Seconds that the caller of `begin` waits before it gives up on the command."""

CHUNK = 65536
"""Maximum number of bytes of one read."""

PROMPT = "\x1eF$?;\x1f"
"""Prompt for PS1 that shows the exit code."""

SHOWN = re.compile(rb"\x1eF(\d+);\x1f")
"""Pattern of that prompt as bash shows it; its group is the exit code."""

PLAIN_PROMPT = "\x1eREADY\x1f"
"""Prompt without the exit code, as users of pexpect have it."""

STARTUP = """\
[[ ! -r /etc/bash.bashrc ]] || . /etc/bash.bashrc
[[ ! -r ~/.bashrc ]] || . ~/.bashrc
unset PROMPT_COMMAND
PS2= PS1=$'{prompt}'
"""
"""Startup file that reads what any interactive bash reads, so that the cost of a start is comparable."""


class Engine:
    """Base class of the engines, which run commands in shells named by keys.

    The rows select the engines, so an operation that an engine does not support is not called.
    """

    blocking = False
    """True if commands block the event loop, so that a signal must end the process without the event loop."""

    threads = False
    """True if many shells at once need a thread each."""

    exit_codes = True
    """False if the engine does not know the exit codes of commands."""

    version = ""
    """Version of the measured package, if it is not this one."""

    async def start(self) -> None:
        """Prepare the engine; called once."""

    async def end(self) -> None:
        """End the engine, whose shells have been closed."""

    async def open(self, key: str) -> None:
        """Start a shell, and wait until it accepts commands. An engine without shells does nothing."""

    async def close(self, key: str) -> None:
        """End a shell."""

    async def run(self, key: str, text: str) -> Answer:
        """Run a command in a shell."""
        raise NotImplementedError

    async def begin(self, key: str, text: str) -> None:
        """Run a command that does not end by itself, and return after `GIVE_UP`."""
        raise NotImplementedError

    async def interrupt(self, key: str) -> None:
        """Interrupt the command that `begin` left running, and wait until the shell is ready."""
        raise NotImplementedError

    async def execute(self, text: str) -> Answer:
        """Run a command without a persistent shell."""
        raise NotImplementedError

    async def upload(self, path: str) -> str:
        """Copy a local file to the machine of the commands, and return its path there."""
        return path

    def is_right(self, answer: Answer, output: str = "") -> bool:
        """Check whether a command succeeded and printed `output`."""
        said, code = answer
        text = said.decode(errors="replace") if isinstance(said, bytes) else said
        return text == output and (code == 0 if self.exit_codes else code is None)

    async def at_once(self, keys: list[str], text: str, count: int, until: float) -> tuple[list[float], int]:
        """Run a command again and again in all shells at once.

        Each shell runs it `count` times, or until `until` by `time.perf_counter`, but at least once.

        Returns:
            the microseconds of each right answer, and the number of wrong ones.
        """
        samples: list[float] = []
        clock = time.perf_counter_ns
        wrong = 0

        async def work(key: str) -> None:
            nonlocal wrong
            for _ in range(count):
                began = clock()
                answer = await self.run(key, text)
                took = (clock() - began) / 1e3
                if self.is_right(answer):
                    samples.append(took)
                else:
                    wrong += 1
                if time.perf_counter() >= until:
                    break

        if self.threads:
            with ThreadPoolExecutor(len(keys)) as pool:
                list(pool.map(lambda key: asyncio.run(work(key)), keys))
        else:
            await asyncio.gather(*map(work, keys))
        return samples, wrong


# Without a library


async def until_it_runs(fd: int, text: str) -> None:
    """Wait until the program of a command has a terminal, and then `GIVE_UP`.

    A child of bash may forget a signal that comes before it has become that program.
    """
    name = text.split()[0]
    while Path(f"/proc/{os.tcgetpgrp(fd)}/comm").read_text() != f"{name}\n":
        await asyncio.sleep(0.001)
    await asyncio.sleep(GIVE_UP)


def plain_terminal() -> None:
    """Turn off echo and output processing, so that the terminal of this process returns what commands print.

    Call this before bash starts, which restores the modes that it found after the end of a command by a signal.
    """
    mode = termios.tcgetattr(0)
    mode[1] &= ~termios.OPOST
    mode[3] &= ~termios.ECHO
    termios.tcsetattr(0, termios.TCSANOW, mode)


def read_answer(fd: int) -> Answer:
    """Read a terminal up to the next prompt; block until then."""
    chunks = []
    tail = b""
    while True:
        chunk = os.read(fd, CHUNK)
        chunks.append(chunk)
        tail = tail[-24:] + chunk[-24:]
        if tail.endswith(b"\x1f") and (found := SHOWN.search(tail)):
            output = b"".join(chunks)
            return output[: output.rindex(b"\x1e")], int(found[1])


class Terminals(Engine):
    """Base class of engines that start bash on a terminal by hand."""

    prompt = PROMPT

    async def start(self) -> None:
        self.startup = tempfile.NamedTemporaryFile("w", prefix="swerex-c-bench-")
        self.startup.write(STARTUP.format(prompt=self.prompt.replace("\x1e", "\\036").replace("\x1f", "\\037")))
        self.startup.flush()
        self.shells: dict[str, Any] = {}
        self.command = [shutil.which("bash") or "/bin/bash", "--noediting", "--rcfile", self.startup.name, "-i"]

    async def end(self) -> None:
        self.startup.close()


class RawTerminals(Terminals):
    """Base class of engines that write to the descriptor of a terminal, and read from it."""

    blocking = True

    async def run(self, key: str, text: str) -> Answer:
        fd = self.shells[key].fd
        os.write(fd, text.encode() + b"\n")
        return read_answer(fd)

    async def begin(self, key: str, text: str) -> None:
        os.write(self.shells[key].fd, text.encode() + b"\n")
        await until_it_runs(self.shells[key].fd, text)

    async def interrupt(self, key: str) -> None:
        os.write(self.shells[key].fd, b"\x03")
        read_answer(self.shells[key].fd)


class Shell(NamedTuple):
    pid: int
    fd: int


class BareTerminal(RawTerminals):
    """The limit in plain Python: a terminal, `os.write`, `os.read` and a prompt that shows the exit code.

    It has no timeouts and no proof that a command has ended, and trusts any output that looks like the prompt.
    """

    async def open(self, key: str) -> None:
        shell = self.shells[key] = Shell(*pty.fork())
        if shell.pid == 0:
            try:
                plain_terminal()
                os.execv(self.command[0], self.command)
            finally:
                os._exit(127)
        read_answer(shell.fd)

    async def close(self, key: str) -> None:
        shell = self.shells.pop(key)
        os.kill(shell.pid, signal.SIGKILL)
        os.waitpid(shell.pid, 0)
        os.close(shell.fd)

    async def at_once(self, keys: list[str], text: str, count: int, until: float) -> tuple[list[float], int]:
        line, clock = text.encode() + b"\n", time.perf_counter_ns
        left = {self.shells[key].fd: count for key in keys}
        said: dict[int, bytes] = {}
        began: dict[int, int] = {}
        samples: list[float] = []
        wrong = 0
        with select.epoll() as waiting:
            for fd in left:
                waiting.register(fd, select.EPOLLIN)
                said[fd], began[fd] = b"", clock()
                os.write(fd, line)
            while left:
                for fd, _ in waiting.poll():
                    said[fd] += os.read(fd, CHUNK)
                    if not (found := SHOWN.search(said[fd])):
                        continue
                    took = (clock() - began[fd]) / 1e3
                    if self.is_right((said[fd][: found.start()], int(found[1]))):
                        samples.append(took)
                    else:
                        wrong += 1
                    left[fd] -= 1
                    if left[fd] and time.perf_counter() < until:
                        said[fd], began[fd] = b"", clock()
                        os.write(fd, line)
                    else:
                        del left[fd]
        return samples, wrong


class Subprocess(Engine):
    """`subprocess.run` of a new shell for each command, which keeps no state."""

    blocking = True
    threads = True

    async def run(self, key: str, text: str) -> Answer:
        done = subprocess.run(["bash", "-c", text], stdin=subprocess.DEVNULL, capture_output=True)
        return done.stdout, done.returncode

    async def execute(self, text: str) -> Answer:
        done = subprocess.run(["sh", "-c", text], stdin=subprocess.DEVNULL, capture_output=True)
        return done.stdout, done.returncode


# Peers


class Pexpect(Terminals):
    """pexpect with its defaults, but for the terminal's echo: 50 ms before each line, a search of all that came.

    The prompt is known, so `before` is the output; the exit code would need a second command.
    """

    blocking = True
    threads = True
    exit_codes = False
    prompt = PLAIN_PROMPT
    options: dict[str, Any] = {}
    delays: dict[str, Any] = {}

    def __init__(self) -> None:
        self.pexpect: Any = importlib.import_module("pexpect")
        self.version = str(self.pexpect.__version__)

    async def open(self, key: str) -> None:
        options = {"timeout": None, "preexec_fn": plain_terminal, **self.options}
        child = self.shells[key] = self.pexpect.spawn(self.command[0], self.command[1:], **options)
        vars(child).update(self.delays)
        self.wait(child)

    def wait(self, child: Any) -> None:
        child.expect(self.prompt)

    async def close(self, key: str) -> None:
        child = self.shells.pop(key)
        child.kill(signal.SIGKILL)
        child.wait()
        child.ptyproc.delayafterclose = 0
        child.close()

    async def run(self, key: str, text: str) -> Answer:
        child = self.shells[key]
        child.sendline(text)
        self.wait(child)
        return child.before, None

    async def begin(self, key: str, text: str) -> None:
        self.shells[key].sendline(text)
        await until_it_runs(self.shells[key].child_fd, text)

    async def interrupt(self, key: str) -> None:
        self.shells[key].sendintr()
        self.wait(self.shells[key])


class TunedPexpect(Pexpect):
    """pexpect as a careful user tunes it: no delays, large reads, an exact match at the end of what came."""

    options = {"maxread": CHUNK, "searchwindowsize": 200}
    delays = {"delaybeforesend": None, "delayafterread": None}

    def wait(self, child: Any) -> None:
        child.expect_exact(self.prompt)


class Ptyprocess(RawTerminals):
    """ptyprocess for the start and the end of a shell, `os.write` and `os.read` for the commands."""

    threads = True

    def __init__(self) -> None:
        package: Any = importlib.import_module("ptyprocess")
        self.version = str(package.__version__)
        self.spawn = package.PtyProcess.spawn

    async def open(self, key: str) -> None:
        process = self.shells[key] = self.spawn(self.command, preexec_fn=plain_terminal)
        process.delayafterclose = 0  # instead of a tenth of a second
        read_answer(process.fd)

    async def close(self, key: str) -> None:
        process = self.shells.pop(key)
        process.kill(signal.SIGKILL)
        process.wait()
        process.close()


# SWE-ReX's API


class Runtime(Engine):
    """Base class of engines with SWE-ReX's API: this package and the original have the same names."""

    runtime: Any

    startup_timeout = 30.0
    """Maximum seconds for the start of a shell or the first response of a server."""

    def __init__(self, package: str) -> None:
        self.api: Any = importlib.import_module(f"{package}.runtime.abstract")
        self.timeout_error: Any = importlib.import_module(f"{package}.exceptions").CommandTimeoutError

    async def end(self) -> None:
        await self.runtime.close()

    async def open(self, key: str) -> None:
        request = self.api.CreateBashSessionRequest(session=key, startup_timeout=self.startup_timeout)
        await self.runtime.create_session(request)

    async def close(self, key: str) -> None:
        await self.runtime.close_session(self.api.CloseBashSessionRequest(session=key))

    async def run(self, key: str, text: str) -> Answer:
        answer = await self.runtime.run_in_session(self.api.BashAction(command=text, session=key, check="silent"))
        return answer.output, answer.exit_code

    async def execute(self, text: str) -> Answer:
        answer = await self.runtime.execute(self.api.Command(command=text, shell=True))
        return answer.stdout, answer.exit_code

    async def begin(self, key: str, text: str) -> None:
        action = self.api.BashAction(command=text, session=key, check="silent", timeout=GIVE_UP)
        try:
            await self.runtime.run_in_session(action)
        except self.timeout_error:
            return
        raise RuntimeError(f"{text!r} has ended by itself")

    async def interrupt(self, key: str) -> None:
        await self.runtime.run_in_session(self.api.BashInterruptAction(session=key))


class SweRex(Runtime):
    """SWE-ReX, whose sessions block the event loop and do not run concurrently."""

    blocking = True

    def __init__(self) -> None:
        package = importlib.import_module("swerex")
        if package.__name__ != "swerex":
            raise ImportError("`import swerex` gives this package, not SWE-ReX")
        super().__init__("swerex")
        self.version = str(package.__version__)
        self.runtime = importlib.import_module("swerex.runtime.local").LocalRuntime()


class Ours(Runtime):
    """This package: `LocalRuntime`, or the runtime of a deployment.

    Args:
        deployment: configuration of the deployment as JSON data; None means a `LocalRuntime`.
        options: keyword arguments of `LocalRuntime`.
    """

    def __init__(self, deployment: dict[str, Any] | None = None, **options: Any) -> None:
        super().__init__("swerex_c")
        self.deployment: Any = None
        self.files: list[str] = []
        if deployment is None:
            self.runtime = importlib.import_module("swerex_c.runtime.local").LocalRuntime(**options)
        else:
            from_json = importlib.import_module("swerex_c.deployment.config").config_from_json
            self.deployment = from_json(json.dumps(deployment)).get_deployment()
        self.shared = deployment is not None and deployment["type"] == "remote"
        """True if others may use the sessions of the server."""

    async def start(self) -> None:
        if self.deployment:
            await self.deployment.start()
            self.runtime = self.deployment.runtime
        if self.shared:  # `start` only creates the client and does not contact the server
            await self.runtime.wait_until_alive(timeout=self.startup_timeout)

    async def end(self) -> None:
        if not self.shared:
            await (self.deployment.stop() if self.deployment else self.runtime.close())
            return
        with contextlib.suppress(Exception):
            removal = self.api.Command(command=["rm", "-f", *self.files])
            await asyncio.wait_for(self.runtime.execute(removal), 2)

    async def upload(self, path: str) -> str:
        if self.deployment is None:
            return path
        there = f"/tmp/{uuid.uuid4().hex[:12]}-{os.path.basename(path)}"
        self.files.append(there)
        await self.runtime.upload(self.api.UploadRequest(source_path=path, target_path=there))
        return there
