"""Hosts behind a real ssh server."""
