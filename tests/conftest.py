"""What all tests share: the fixtures, options and markers of the behaviour tests, and a limit of time."""

import pytest

pytest.register_assert_rewrite("traps.harness", "original")  # so that a failure there shows the values too
pytest_plugins = ["traps.plugin", "budget"]
