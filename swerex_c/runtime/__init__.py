"""Runtimes, which run sessions and commands and access files: in this process, in a sandbox, or behind a server."""
