"""Deployments in containers of Docker and Podman."""
