"""A registry of the tests' own: the real server of Debian's docker-registry, on a port of this machine, without TLS.

Engines take a registry at 127.0.0.1 without TLS by themselves.
"""

from __future__ import annotations

import socket
from typing import Self

from swerex_c.utils.free_port import find_free_port
from tests.support import needs
from tests.support.docker_engine import Daemon

CONFIG = """\
version: 0.1
log: {{level: warn}}
storage:
  filesystem: {{rootdirectory: {directory}/images}}
  delete: {{enabled: true}}
http: {{addr: "127.0.0.1:{port}"}}
"""


class Registry(Daemon):
    """`with Registry() as registry: registry.name("x")` is what an image is called that comes from there."""

    def __init__(self) -> None:
        self._server = needs.program("docker-registry", "docker-registry")
        super().__init__("swx-registry-")
        self.port = find_free_port()

    def name(self, image: str) -> str:
        return f"127.0.0.1:{self.port}/{image}"

    def answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def start(self) -> Self:
        config = self.directory / "config.yml"
        config.write_text(CONFIG.format(directory=self.directory, port=self.port))
        if not self.launch([self._server, "serve", str(config)]):
            self.fail()
        return self
