"""Deployment and backend for sandboxes of Daytona."""
