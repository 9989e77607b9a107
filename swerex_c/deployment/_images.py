"""Images of containers: whether one is here, getting it, removing it, and what one with a Python of its own is made of.

Three functions stand in `swerex_c.deployment.docker` under the names of the original, and a `DockerDeployment` calls
them there with the image and the engine's command alone: so whoever replaces them is heard. What else they have to heed
(how long it may take, for which platform) they find in the context of their caller.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from contextvars import ContextVar

from swerex_c import PACKAGE_NAME, REMOTE_EXECUTABLE_NAME
from swerex_c.deployment._engine import Engine
from swerex_c.deployment._exec import Effort

__all__ = ["_is_image_available", "_pull_image", "_remove_image", "heeding", "standalone_dockerfile", "words_of"]

_heeded: ContextVar[tuple[Effort | None, str | None]] = ContextVar("_heeded", default=(None, None))


@contextlib.contextmanager
def heeding(effort: Effort, platform: str | None = None) -> Iterator[None]:
    """What these functions do meanwhile is a part of this work, and about images for this platform."""
    before = _heeded.set((effort, platform))
    try:
        yield
    finally:
        _heeded.reset(before)


def _is_image_available(image: str, runtime: str = "docker") -> bool:
    """Whether the image is on this machine. Blocks.

    Args:
        runtime: the engine's command.

    Raises:
        DeploymentStartupError: if there is no such command, or its engine cannot be reached.
    """
    effort, platform = _heeded.get()
    return Engine(runtime).has_image(image, effort or Effort(None), platform)


def _pull_image(image: str, runtime: str = "docker") -> bytes:
    """Get the image from its registry; what the engine printed. Blocks.

    Raises:
        subprocess.CalledProcessError: if it refuses; `stderr` and `output` have its words.
        DeploymentStartupError: as above.
    """
    effort, platform = _heeded.get()
    words, said = Engine(runtime).pull(image, platform, effort or Effort(None))
    if said.code:
        raise subprocess.CalledProcessError(said.code, [runtime, *words], said.stdout, said.stderr)
    return said.stdout


def _remove_image(image: str, runtime: str = "docker") -> bytes:
    """Remove the image; what the engine printed. Blocks.

    Raises:
        subprocess.CalledProcessError: if it refuses.
        TimeoutError: if it does not answer.
        DeploymentStartupError: as above.
    """
    words = ["rmi", image]
    said = Engine(runtime).ask(*words)
    if said.code:
        raise subprocess.CalledProcessError(said.code, [runtime, *words], said.stdout, said.stderr)
    return said.stdout


def words_of(refused: subprocess.CalledProcessError) -> str:
    """What the engine said; whoever replaced the function that tells may have left it out."""
    words = []
    for said in (refused.stderr, refused.output):
        words.append(said if isinstance(said, str) else (said or b"").decode(errors="replace"))
    return "\n".join(text.strip() for text in words).strip() or str(refused)


def standalone_dockerfile(where: str, platform: str | None) -> str:
    """What makes an image with a Python and a server in a directory out of one with apt and glibc."""
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
