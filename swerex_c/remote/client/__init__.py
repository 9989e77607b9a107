"""Clients of a server, over frames or over HTTP/JSON."""
