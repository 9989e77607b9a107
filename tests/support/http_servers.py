"""Servers of HTTP/JSON as processes of their own: our application under uvicorn, and the original."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.original import original_python
from tests.support.server_process import KEY, UVICORN, Server, serving


def serving_original(log: Path) -> contextlib.AbstractContextManager[Server]:
    command = ["sh", "-c", 'exec "$@" >&2', "sh", original_python(), "-m", "swerex.server"]
    return serving(log, "--auth-token", KEY, command=command, key=None, TERM="dumb", PYTHONPATH="")


@pytest.fixture(scope="session")
def our_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("ours") / "log", command=UVICORN, TERM="dumb") as server:
        yield server


@pytest.fixture(scope="session")
def original_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving_original(tmp_path_factory.mktemp("original") / "log") as server:
        yield server
