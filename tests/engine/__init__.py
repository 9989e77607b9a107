"""Sessions and commands on this machine: execute, streams, patterns, pre-started shells, threads."""
