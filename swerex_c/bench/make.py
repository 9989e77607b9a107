"""Engines of `swerex-c bench`, and the program of a worker process for one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .engine import Engine
from .operations import Operations
from .programs import Programs
from .pty import RawTerminal
from .runtime import Original, Ours
from .worker import serve

__all__ = ["main", "make"]

_KINDS: dict[str, Callable[..., Engine]] = {
    "pty": RawTerminal,
    "programs": Programs,
    "ours": Ours,
    "original": Original,
}


def make(kind: str, options: dict[str, Any]) -> Operations:
    """Create an engine of this kind, with its operations.

    Raises:
        Exception: what the engine's library raises if it is not available.
    """
    return Operations(_KINDS[kind](**options))


def main() -> None:
    """Serve the requests for an engine."""
    serve(make)
