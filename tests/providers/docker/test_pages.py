"""The blocks of the pages that start a container."""

from __future__ import annotations

import pytest

from tests.support.docker_engine import Engine
from tests.support.pages import check, shown

pytestmark = pytest.mark.timeout(600)  # a Debian is made first


@pytest.mark.parametrize(("block", "output"), shown("docker"))
def test_a_block_prints_what_the_page_shows(block: str, output: str, docker: Engine, debian_py: str) -> None:
    docker.docker("tag", debian_py, "python:3.11")  # the page's image, without a registry
    check(block, output, **docker.environment)
