"""Example programs that are also useful themselves.

See `python -m swerex_c.examples.batch --help`.
"""
