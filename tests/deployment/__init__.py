"""Deployments, hooks and orphans, without an engine or a cloud."""
