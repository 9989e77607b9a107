"""Shells as agents use and break them: these tests run on this machine, in a sandbox, and on the original."""
