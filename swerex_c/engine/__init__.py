"""Bash sessions and single commands on this machine: asyncio over the C core."""
