"""What tests of Modal's deployment have in common: a server, to which the environment leads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from modal.client import _Client

from tests.support.modal_server import ModalWorld
from tests.support.wait import until

__all__ = ["ModalWorld", "modal", "modal_world", "world"]


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
    with TemporaryDirectory(prefix="modal-") as directory, closing(ModalWorld(Path(directory))) as world:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MODAL_SERVER_URL", world.url)
            patch.setenv("MODAL_TOKEN_ID", "ak-test")
            patch.setenv("MODAL_TOKEN_SECRET", "as-right")
            patch.setenv("MODAL_CONFIG_PATH", str(Path(directory, "none.toml")))
            # The SDK keeps one client for the whole process, which belongs to the server of before.
            patch.setattr(_Client, "_client_from_env", None)
            yield world
