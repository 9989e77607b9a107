"""Servers as processes of their own, of ours and of the original; and clients that try again at once."""

from collections.abc import Iterator

import pytest

from tests.support.frames_tools import hasty
from tests.support.http_servers import original_server, our_server

__all__ = ["original_server", "our_server"]


@pytest.fixture
def reconnects_at_once() -> Iterator[None]:
    with hasty():
        yield
