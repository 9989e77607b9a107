"""Sandboxes that are reached by running a program.

They are containers, other hosts, or isolated views of this machine. Nothing is installed in a sandbox and no port is
opened. `backend` defines the interface of one kind of sandbox; all other modules here are shared by every kind.
"""
