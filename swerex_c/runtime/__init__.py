"""Runtimes in this process, in a sandbox, or behind a server.

A runtime runs sessions and commands, and accesses files.
"""
