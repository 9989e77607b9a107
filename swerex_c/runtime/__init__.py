"""Runtimes: where commands run and files are."""
