"""The fixtures of the contracts."""

from tests.support.targets import pytest_collection_modifyitems, pytest_generate_tests, session, target

__all__ = ["pytest_collection_modifyitems", "pytest_generate_tests", "session", "target"]
