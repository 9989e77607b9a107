"""A registry of the tests' own: the real server of Debian's docker-registry, on a port of this machine, without TLS.

Engines take a registry at 127.0.0.1 without TLS by themselves.
"""

from __future__ import annotations

import socket
import subprocess
import tempfile
from pathlib import Path

from tests.support import needs

START_SECONDS = 30.0

CONFIG = """\
version: 0.1
log: {{level: warn}}
storage:
  filesystem: {{rootdirectory: {directory}/images}}
  delete: {{enabled: true}}
http: {{addr: "127.0.0.1:{port}"}}
"""


class Registry:
    """`with Registry() as registry: registry.name("x")` is what an image is called that comes from there."""

    def __init__(self) -> None:
        self._server = needs.program("docker-registry", "docker-registry")
        self.directory = Path(tempfile.mkdtemp(prefix="swx-registry-"))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self._process: subprocess.Popen[bytes] | None = None

    def name(self, image: str) -> str:
        return f"127.0.0.1:{self.port}/{image}"

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def __enter__(self) -> Registry:
        config = self.directory / "config.yml"
        config.write_text(CONFIG.format(directory=self.directory, port=self.port))
        log = self.directory / "log"
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                [self._server, "serve", str(config)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                preexec_fn=needs.die_with_parent,
            )
        if not needs.wait_until(self._listens, START_SECONDS) or self._process.poll() is not None:
            said = needs.tail(log)
            self.__exit__()
            raise RuntimeError(f"docker-registry does not start:\n{said}")
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        needs.remove(self.directory)
