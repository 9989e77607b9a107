"""Agents and subclasses written for SWE-ReX, and its own tests, run unchanged on this package."""
