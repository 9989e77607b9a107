"""Functions that check, pull and remove images, and a Dockerfile that extends one.

Three functions appear in `swerex_c.deployment.docker` under SWE-ReX's names. `DockerDeployment` calls them there with
only the image and the engine's command, so that replacing them has an effect. The platform comes from a context
variable of the caller.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from contextvars import ContextVar

from swerex_c._version import PACKAGE_NAME, REMOTE_EXECUTABLE_NAME
from swerex_c.providers.docker.engine import Engine
from swerex_c.utils.visible import visible

__all__ = [
    "_is_image_available",
    "_pull_image",
    "_remove_image",
    "error_output",
    "image_platform",
    "standalone_dockerfile",
]

_platform: ContextVar[str | None] = ContextVar("_platform", default=None)


@contextlib.contextmanager
def image_platform(platform: str | None) -> Iterator[None]:
    """Set the platform of these functions for the block."""
    before = _platform.set(platform)
    try:
        yield
    finally:
        _platform.reset(before)


def _is_image_available(image: str, runtime: str = "docker") -> bool:
    """Check whether the image is on this machine. Blocks.

    Args:
        runtime: the engine's command.

    Raises:
        DeploymentStartupError: if there is no such command, or its engine cannot be reached.
    """
    return Engine(runtime).has_image(image, _platform.get())


def _pull_image(image: str, runtime: str = "docker") -> bytes:
    """Pull the image from its registry, and return the engine's output. Blocks.

    Raises:
        subprocess.CalledProcessError: if the engine refuses; its message is in `stderr` and `output`.
        DeploymentStartupError: as `_is_image_available`.
    """
    words, said = Engine(runtime).pull(image, _platform.get())
    if said.code:
        raise subprocess.CalledProcessError(said.code, [runtime, *words], said.stdout, said.stderr)
    return said.stdout


def _remove_image(image: str, runtime: str = "docker") -> bytes:
    """Remove the image, and return the engine's output. Blocks.

    Raises:
        subprocess.CalledProcessError: if the engine refuses.
        TimeoutError: if the engine does not respond.
        DeploymentStartupError: if there is no such command.
    """
    words = ["rmi", image]
    said = Engine(runtime).ask(*words)
    if said.code:
        raise subprocess.CalledProcessError(said.code, [runtime, *words], said.stdout, said.stderr)
    return said.stdout


def error_output(refused: subprocess.CalledProcessError) -> str:
    """Return the engine's output from an error, or else the error's text.

    An image function that was replaced may raise an error without output.
    """
    words = []
    for said in (refused.stderr, refused.output):
        words.append(said if isinstance(said, str) else (said or b"").decode(errors="replace"))
    return visible("\n".join(text.strip() for text in words).strip() or str(refused))


def standalone_dockerfile(where: str, platform: str | None) -> str:
    """Return a Dockerfile that adds a Python and a server to an image with glibc.

    Args:
        where: directory to install them in.
        platform: the image's platform, such as `linux/amd64`; None lets the engine choose.
    """
    on = f"--platform={platform} " if platform else ""
    apt = "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends"
    source = "https://www.python.org/ftp/python/3.11.9/Python-3.11.9.tgz"
    lines = [
        "ARG BASE_IMAGE",
        "",
        f"FROM {on}python:3.11-slim-bookworm AS builder",
        f"RUN {apt} gcc libc6-dev libffi-dev libssl-dev make wget zlib1g-dev",
        f"RUN wget -qO- {source} | tar -xz -C /usr/src",
        "WORKDIR /usr/src/Python-3.11.9",
        f"RUN ./configure --prefix={where} --enable-shared LDFLAGS=-Wl,-rpath={where}/lib \\",
        '    && make -j"$(nproc)" && make install',
        f"RUN {where}/bin/pip3 install --no-cache-dir {PACKAGE_NAME} aiohttp",
        "",
        f"FROM {on}$BASE_IMAGE",
        f"COPY --from=builder {where} {where}",
        f"RUN {where}/bin/python3 --version && {where}/bin/{REMOTE_EXECUTABLE_NAME} --version",
    ]
    return "\n".join(lines) + "\n"
