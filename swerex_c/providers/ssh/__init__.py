"""Deployments on hosts that run an SSH server."""
