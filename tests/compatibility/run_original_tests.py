"""Runs SWE-ReX's own tests against swerex_c, through the swap, under TERM=dumb and TERM=xterm.

    python tests/compatibility/run_original_tests.py [--term TERM] [pytest arguments]

The source distribution on PyPI carries the tests without their conftest.py. It is fetched with pip into a temporary
directory for each run; the fixtures that the tests ask for are supplied here. What is not run is printed with its
reason.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ORIGINAL = "swe-rex==1.4.0"
TERMS = ("dumb", "xterm")
LEAST = 8
"""Minimum number of files to run: so many need nothing but this machine."""

ELSEWHERE = {
    "test_docker_deployment.py": "needs Docker",
    "test_fargate_deployment.py": "needs an AWS account",
    "test_modal_deployment.py": "needs a Modal account",
}

WRONG = {
    "test_execution.py::test_interrupt_pager": "asserts that the interrupted program's last words appear in the output "
    "of the next command, which is the leak between commands that this package rules out",
}

CONFTEST = """
import socket
import sys
import threading
import time
from dataclasses import dataclass

import pytest
import uvicorn

import swerex_c

swerex_c.install()

import swerex.runtime.local
import swerex.server
from swerex.runtime.abstract import BashAction, CloseBashSessionRequest, Command, CreateBashSessionRequest
from swerex.runtime.remote import RemoteRuntime

assert swerex.runtime.local.__file__ == sys.modules["swerex_c.runtime.local"].__file__
TEST_API_KEY = "a key for tests"


class _Action(BashAction):
    timeout: float | None = 5


class _Command(Command):
    timeout: float | None = 5


@dataclass
class RemoteServer:
    port: int
    headers: dict[str, str]


@pytest.fixture(scope="session")
def remote_server():
    swerex.server.AUTH_TOKEN = TEST_API_KEY
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(swerex.server.app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        yield RemoteServer(listener.getsockname()[1], {"X-API-Key": TEST_API_KEY})
        server.should_exit = True
        thread.join(30)


@pytest.fixture
async def remote_runtime(remote_server):
    runtime = RemoteRuntime(port=remote_server.port, auth_token=TEST_API_KEY)
    yield runtime
    await runtime.close()


@pytest.fixture
async def runtime_with_default_session(remote_runtime):
    await remote_runtime.create_session(CreateBashSessionRequest())
    yield remote_runtime
    await remote_runtime.close_session(CloseBashSessionRequest())

"""

SETTINGS = """[pytest]
asyncio_mode = auto
asyncio_default_fixture_loop_scope = function
markers =
    slow: as the original marks it
    cloud: as the original marks it
"""


def fetch(folder: Path) -> Path:
    """Unpacks the original's tests as a package in `folder` and adds what they import from their conftest."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--no-binary=:all:", f"--dest={folder}", ORIGINAL], check=True)
    (archive,) = folder.glob("swe_rex-*.tar.gz")
    tests = folder / "tests"
    tests.mkdir()
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            if match := re.fullmatch(r"[^/]+/tests/(test_\w+\.py)", member.name):
                source = tar.extractfile(member)
                assert source is not None
                (tests / match[1]).write_bytes(source.read())
    (tests / "__init__.py").touch()
    (tests / "conftest.py").write_text(CONFTEST)
    (folder / "pytest.ini").write_text(SETTINGS)
    return tests


def choose(tests: Path) -> list[str]:
    """Return pytest's arguments for what to run, and print a line for each thing that is not run."""
    for name, reason in (ELSEWHERE | WRONG).items():
        print(f"not run here: {name}: {reason}")
    files = [f"tests/{test.name}" for test in sorted(tests.glob("test_*.py")) if test.name not in ELSEWHERE]
    if len(files) < LEAST:
        raise SystemExit(f"the original's source distribution has only {files}")
    return files + [f"--deselect=tests/{name}" for name in WRONG]


def run(folder: Path, term: str, arguments: list[str]) -> int:
    # The tests start a program called `python`.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    root = Path(__file__).resolve().parents[2]
    # A home of their own: see tests/conftest.py.
    environment = os.environ | {"TERM": term, "PATH": path, "PYTHONPATH": str(root), "HOME": str(folder)}
    print(f"TERM={term}", flush=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, env=environment).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--term", action="append", choices=TERMS, help="this TERM only")
    options, pytest_arguments = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        chosen = choose(fetch(folder))
        return max(run(folder, term, [*chosen, *pytest_arguments]) for term in options.term or TERMS)


if __name__ == "__main__":
    sys.exit(main())
