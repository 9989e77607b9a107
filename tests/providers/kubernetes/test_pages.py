"""The blocks of the pages that create a pod."""

from __future__ import annotations

import pytest

pytest.importorskip("kubernetes_asyncio")

from tests.support.kubernetes_fixtures import server
from tests.support.kubernetes_server import ApiServer
from tests.support.pages import check, shown

__all__ = ["server"]

pytestmark = pytest.mark.slice


@pytest.mark.parametrize(("block", "output"), shown("kubernetes"))
def test_a_block_prints_what_the_page_shows(block: str, output: str, server: ApiServer) -> None:
    check(block, output, KUBECONFIG=server.kubeconfig)
