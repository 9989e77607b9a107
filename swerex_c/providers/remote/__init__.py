"""Deployments with a server that is already running."""
