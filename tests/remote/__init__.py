"""Servers, clients and what is between them. Real processes on both ends."""
