"""What tests of Modal's deployment have in common: the server of `modal_server` as a process, and orders to it."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.wait import DEADLINE, until

__all__ = ["ModalWorld", "modal", "modal_world", "world"]


class ModalWorld:
    """A server that runs."""

    def __init__(self, url: str, orders: str, certificate: str) -> None:
        self.url, self._orders, self.certificate = url, orders, certificate
        self._from = 0

    def order(self, do: str, **order: Any) -> Any:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(DEADLINE)
            connection.connect(self._orders)
            connection.sendall(json.dumps({"do": do, **order}).encode() + b"\n")
            with connection.makefile("rb") as answer:
                return json.loads(answer.readline())

    def begin(self) -> None:
        """Calls before are no longer told."""
        self._from = len(self.order("look")["calls"])

    def calls(self, name: str) -> list[dict[str, Any]]:
        return [request for called, request in self.order("look")["calls"][self._from :] if called == name]

    def directory(self, sandbox: str) -> Path:
        return Path(self.order("look")["sandboxes"][sandbox]["directory"])

    def running(self) -> list[str]:
        return [it for it, facts in self.order("look")["sandboxes"].items() if not facts["ended"]]


@pytest.fixture(scope="module")
def modal_world() -> Iterator[ModalWorld]:
    with modal() as world:
        yield world


@pytest.fixture
def world(modal_world: ModalWorld) -> Iterator[ModalWorld]:
    """The server; when a test has ended no sandbox runs there."""
    modal_world.begin()
    yield modal_world
    until(lambda: not modal_world.running())


@contextmanager
def modal() -> Iterator[ModalWorld]:
    """A server, to which the environment leads."""
    with tempfile.TemporaryDirectory(prefix="modal-") as directory:
        server = Path(__file__).with_name("modal_server.py")
        with subprocess.Popen(
            [sys.executable, str(server), directory], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            try:
                assert process.stdout is not None and process.stdin is not None
                said = json.loads(process.stdout.readline())
                with pytest.MonkeyPatch.context() as patch:
                    patch.setenv("MODAL_SERVER_URL", said["url"])
                    patch.setenv("MODAL_TOKEN_ID", "ak-test")
                    patch.setenv("MODAL_TOKEN_SECRET", "as-right")
                    patch.setenv("SSL_CERT_FILE", said["certificate"])
                    patch.setenv("MODAL_CONFIG_PATH", str(Path(directory, "none.toml")))
                    _forget_client()
                    yield ModalWorld(**said)
                    _forget_client()
                process.stdin.close()
                process.wait(DEADLINE)
            finally:
                process.kill()


def _forget_client() -> None:
    """The SDK keeps one client for the whole process, which belongs to the server of before."""
    from modal.client import _Client

    _Client._client_from_env = None
