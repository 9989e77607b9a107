"""Serve a runtime to clients, over the frame protocol and over HTTP with JSON."""
