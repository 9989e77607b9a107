"""Deployment that does nothing, for tests."""
