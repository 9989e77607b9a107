"""Implement the commands `swerex-c` and `swerex-remote`."""
