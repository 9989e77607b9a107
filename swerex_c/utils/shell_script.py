"""The shell scripts of this package: read from their files, and run by bash."""

from __future__ import annotations

import functools
import posixpath
from importlib import resources

__all__ = ["bash_command", "read_script"]


@functools.cache
def read_script(path: str) -> str:
    """Return the text of a shell script; `path` is relative to the package.

    A line `. NAME` becomes the text of that file beside the script. Lines that are only a comment are left out, because
    most scripts are sent over a connection.
    """
    lines = []
    for line in resources.files("swerex_c").joinpath(path).read_text("ascii").splitlines(keepends=True):
        words = line.split()
        if words[:1] == ["."] and len(words) == 2:
            lines.append(read_script(posixpath.join(posixpath.dirname(path), words[1])))
        elif not line.lstrip().startswith("#"):
            lines.append(line)
    return "".join(lines)


def bash_command(script: str, *arguments: str) -> list[str]:
    """Return the command that runs a script. Because of `-p` bash ignores BASH_ENV, SHELLOPTS and functions."""
    return ["bash", "--noprofile", "--norc", "-p", "-c", script, "swerex", *arguments]
