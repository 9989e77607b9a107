"""The command `swerex-c` and the demo."""
