"""The benchmark suite: the rows of `swerex-c bench` at full size, and beside plain C, on servers and in containers."""
