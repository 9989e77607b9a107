"""The engines that are compared: small adapters, each in the room of the library that it drives.

Those in C (`floor.c`, `engine.c`) and in Tcl (`floor.tcl`) are programs, which the drivers run themselves.
"""

from __future__ import annotations

import importlib
from typing import Any

from engines.base import Engine

__all__ = ["ENGINES", "make"]

WHOLE = {"output_limit": 1 << 30}
"""For the rows of long output: all of it is in the answer."""

ENGINES: dict[str, tuple[str, str, tuple[Any, ...]]] = {
    "ours": ("runtimes", "Runtime", ("swerex_c", WHOLE)),
    "ours, uvloop": ("runtimes", "UvloopRuntime", ("swerex_c", WHOLE)),
    "ours, bounded": ("runtimes", "Runtime", ("swerex_c", {"output_limit": 1 << 20})),
    "ours, streamed": ("runtimes", "Runtime", ("swerex_c", {"output_limit": 16 << 20})),
    "ours, warm": ("runtimes", "Runtime", ("swerex_c", {"warm_sessions": 64, "warm_startup_files": True})),
    "ours, warm, files read then": ("runtimes", "Runtime", ("swerex_c", {"warm_sessions": 16})),
    "core": ("core", "Core", ()),
    "core, one thread": ("core", "CoreInOneThread", ()),
    "original": ("runtimes", "Runtime", ("swerex",)),
    "pexpect": ("pexpects", "Pexpect", ()),
    "pexpect, as it comes": ("pexpects", "PlainPexpect", ()),
    "replwrap": ("pexpects", "Replwrap", ()),
    "ptyprocess": ("ptys", "Ptyprocess", ()),
    "tmux": ("tmux", "Tmux", ()),
    "pipes": ("pipes", "Pipes", ()),
    "subprocess": ("measuring.programs", "Programs", ()),
    "remote: ours": ("remote", "Ours", ("msgpack",)),
    "remote: ours, uvloop": ("remote", "UvloopOurs", ("msgpack",)),
    "remote: ours, JSON": ("remote", "Ours", ("json",)),
    "remote: original": ("remote", "Remote", ("swerex",)),
    "remote: no server": ("remote", "Here", ("swerex_c",)),
    "remote: echo": ("remote", "Echo", ()),
    "remote: echo, uvloop": ("remote", "UvloopEcho", ()),
    "remote: local": ("remote", "Local", ()),
    "remote: copy": ("remote", "Copy", ("Copy",)),
    "remote: copy to text": ("remote", "Copy", ("Text",)),
    "remote: copy of files": ("remote", "Files", ()),
    "remote: bare run": ("remote", "Bare", ()),
    "docker: docker": ("docker", "Docker", ()),
    "docker: ours": ("docker", "Deployment", ("swerex_c",)),
    "docker: original": ("docker", "Deployment", ("swerex",)),
}
"""By their names in the tables: the module (here, unless it has a dot), the class, and what it is made with."""


def make(name: str) -> Engine:
    """The engine of this name. Raises what its library raises if it cannot be had."""
    module, kind, arguments = ENGINES[name]
    module = module if "." in module else f"engines.{module}"
    engine: Engine = getattr(importlib.import_module(module), kind)(*arguments)
    return engine
