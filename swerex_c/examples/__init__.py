"""Programs that show how the package is used, and are of use themselves: `python -m swerex_c.examples.batch --help`."""
