"""Sessions and commands on this machine: execute, attach, streams, patterns, pre-started shells, threads."""
