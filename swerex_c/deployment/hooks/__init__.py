"""Hooks: objects whose methods are called with the progress of a deployment."""
