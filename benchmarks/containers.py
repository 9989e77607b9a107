"""The Docker engine for the engines named "docker: ...": one of its own, with one small Debian for all.

It needs what tests/support needs: root, Docker's programs, a source of packages for the image, which has the original's
server in it and is kept below .cache/. Containers have the host's network: the engine has no bridge, and the original
serves on a port.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

from measure import ROOT, Absent, BenchError, Floor, Worker, build_floor, needed_original, our_path
from rows import Result

__all__ = ["Containers"]

SHELL = ["bash", "--noprofile", "--norc", "--noediting", "-i"]


class Carried(Floor):
    """The C loop over the terminal of a program that carries a shell's."""

    def __init__(self, binary: str, environment: dict[str, str], carrier: list[str]) -> None:
        super().__init__(binary, environment)
        self.carrier = carrier

    def ask(self, *arguments: object, cpus: list[int] | None = None) -> Result:
        return super().ask("carried", *arguments, *self.carrier, cpus=cpus)


class Containers:
    """An engine that runs, with the image, and one container for what needs no container of its own."""

    def __init__(self, environment: dict[str, str], directory: Path, *, may_install: bool) -> None:
        """Raises Absent where no engine can run."""
        sys.path.insert(0, str(ROOT))
        try:
            from tests.support import images
            from tests.support.docker_engine import Engine
            from tests.support.needs import Lacking
        except ImportError as error:
            raise Absent(f"no Docker engine: the tests are not here, which can start one ({error})") from error
        self.directory, self.may_install = directory, may_install
        with contextlib.ExitStack() as started:
            try:
                engine = started.enter_context(Engine())
                self.image = images.provide(engine, "debian-rex")
            except Lacking as lack:
                raise Absent(f"no Docker engine: this machine lacks {lack}") from lack
            except (RuntimeError, subprocess.SubprocessError) as error:
                raise BenchError(f"the Docker engine: {error}") from error
            self.environment = {**environment, "SWE_REX_LOG_STREAM_LEVEL": "ERROR", "PATH": engine.environment["PATH"]}
            self.environment |= {key: it for key, it in engine.environment.items() if key.startswith("DOCKER_")}
            self.container = engine.docker("run", "-di", "--pull", "never", "--network", "none", self.image)
            self.started = started.pop_all()

    def client(self, name: str) -> Floor | Worker:
        """What drives containers under this name. Raises Absent or BenchError if it cannot be had."""
        if name == "bare C":
            names = [word for variable in ("PS1", "PS2", "TERM") for word in ("-e", variable)]
            carrier = ["docker", "exec", "-it", *names, self.container, *SHELL]
            return Carried(build_floor(self.directory), self.environment, carrier)
        python, environment = sys.executable, self.environment
        if name == "original":
            python = needed_original(self.may_install)
        elif path := our_path():
            environment = {**environment, "PYTHONPATH": path}
        worker = Worker(f"docker: {name}", python, environment, "place_worker.py")
        worker.want("connect", place={"image": self.image, "container": self.container}, key="")
        return worker

    def close(self) -> None:
        self.started.close()
