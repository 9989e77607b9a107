"""Sandbox providers: a folder for each one, and the modules that they share."""
