"""Fixtures that only the session tests need; the shared ones are in `tests/support/plugin.py`."""

from __future__ import annotations

import pytest

from tests.support.processes import Family
from tests.support.session import Engine


@pytest.fixture(autouse=True)
def _marked(family: Family) -> None:
    """Every test of this package runs in the quiet environment."""


@pytest.fixture
def timeout_error(engine: Engine) -> type[Exception]:
    """The engine's CommandTimeoutError."""
    return engine.exceptions.CommandTimeoutError


@pytest.fixture
def swerex_error(engine: Engine) -> type[Exception]:
    """The base of all typed errors."""
    return engine.exceptions.SwerexException
