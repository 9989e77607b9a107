"""Deployment and backend for sandboxes of Modal."""
