"""The behaviour tests share their fixtures, options and markers through one plugin."""

pytest_plugins = ["traps.plugin"]
