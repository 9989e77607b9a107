"""Utilities that runtimes and deployments share."""
