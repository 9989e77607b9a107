"""Hooks: callables that are told what a deployment is doing."""
