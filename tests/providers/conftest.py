"""Sandboxes of every kind, as the backends see them."""

from tests.support.sandboxes import docker_place, place

__all__ = ["docker_place", "place"]
