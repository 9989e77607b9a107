"""`swerex-c bench` and the programs of `benchmarks/`."""
