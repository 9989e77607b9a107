"""The behaviour tests share their fixtures, options and markers through one plugin."""

import pytest

pytest.register_assert_rewrite("traps.harness", "original")  # so that a failure there shows the values too
pytest_plugins = ["traps.plugin"]
