"""Small helpers of many tests."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import shutil
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.needs import Lacking, skip


@contextlib.contextmanager
def busy_machine(processes: int = 3) -> Iterator[None]:
    """Keep the processors busy during the block."""
    busy = [subprocess.Popen([sys.executable, "-c", "while 1: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


@contextlib.contextmanager
def few_descriptors(left: int = 0) -> Iterator[None]:
    """Let this process open that many files, and no more."""
    gc.collect()  # what has been dropped gives its descriptors back now, and not in the middle
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + left, hard))
    filled: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                filled.append(os.open("/dev/null", os.O_RDONLY))
        for _ in range(left):
            os.close(filled.pop())
        yield
    finally:
        for fd in filled:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def in_thread(work: Callable[[threading.Event], object]) -> Iterator[None]:
    """Run a function in a thread during the block; it is given the event of the block's end."""
    over = threading.Event()
    thread = threading.Thread(target=work, args=(over,))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def no_signals(status: str) -> bool:
    """Return whether a /proc status has no signal ignored or blocked, except the C library's own 32 and 33."""
    masks = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigIgn", "SigBlk"))]
    return len(masks) == 2 and not any(mask & ~0x1_8000_0000 for mask in masks)


def build_library(directory: Path, source: str, *flags: str) -> str:
    """Compile a library to preload, and return its path; the test is skipped where another one has that place."""
    if "LD_PRELOAD" in os.environ or "SWX_ASAN_PYTHON" in os.environ:
        pytest.skip("another library is preloaded")
    library = directory / "preloaded.so"
    command = [needs("cc"), *flags, "-shared", "-fPIC", "-o", str(library), "-xc", "-", "-ldl"]
    subprocess.run(command, input=source, text=True, check=True, timeout=60)
    return str(library)


def needs(program: str) -> str:
    """Return the path of a program; the test is skipped, by its name, on a machine that lacks it."""
    return shutil.which(program) or skip(Lacking(program))


def raises(kind: type[OSError], number: int, path: object = None) -> Any:
    """`with raises(...)`: an OSError of this class and number, and of this file if one is given."""
    wanted = None if path is None else str(path)
    return pytest.raises(kind, check=lambda it: it.errno == number and wanted in (None, it.filename))


def in_forked_child(work: Callable[[], object]) -> None:
    """Run a function in a forked child, where it must not fail."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def write_script(path: Path, text: str, interpreter: str = "/bin/sh") -> str:
    """Write a script that can be executed, and return its path."""
    path.write_text(f"#!{interpreter}\n{text}\n")
    path.chmod(0o755)
    return str(path)


def certificate(directory: Path) -> tuple[Path, Path]:
    """Make a self-signed certificate for localhost and 127.0.0.1; return it and its key."""
    certified, key = directory / "cert.pem", directory / "key.pem"
    command = [needs("openssl"), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    subprocess.run([*command, "-keyout", key, "-out", certified], check=True, capture_output=True)
    return certified, key
