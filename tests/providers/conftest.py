"""The fixtures of `tests.support.engine_fixtures`, and those of places by their kinds."""

from tests.support.engine_fixtures import (
    ash_min,
    bash_min,
    bash_only,
    bwrap,
    container,
    debian_py,
    docker,
    kubernetes,
    podman,
    sshd,
    swebench,
    swebench_user,
)
from tests.support.sandboxes import docker_place, place

__all__ = [
    "ash_min",
    "bash_min",
    "bash_only",
    "bwrap",
    "container",
    "debian_py",
    "docker",
    "docker_place",
    "kubernetes",
    "place",
    "podman",
    "sshd",
    "swebench",
    "swebench_user",
]
