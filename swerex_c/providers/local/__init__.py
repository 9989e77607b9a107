"""Deployments on this machine, directly or in an isolated view made by bubblewrap."""
