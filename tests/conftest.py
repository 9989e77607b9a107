"""What all tests share: the fixtures, options and markers of the behaviour tests, and a limit of time."""

import pytest
from hypothesis import settings

settings.register_profile("repeatable", derandomize=True)
settings.register_profile("search")
settings.load_profile("repeatable")  # `--hypothesis-profile search` looks for new examples
pytest.register_assert_rewrite("traps.harness", "original")  # so that a failure there shows the values too
pytest_plugins = ["traps.plugin", "budget"]
