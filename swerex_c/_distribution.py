"""An answer for `importlib.metadata.version("swe-rex")` while this package stands in for it."""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Iterable
from pathlib import Path

import swerex_c

__all__ = ["StandIn", "original_distribution", "stand_in"]

_METADATA = f"""\
Metadata-Version: 2.1
Name: {swerex_c.PACKAGE_NAME}
Version: {swerex_c.__version__}
Summary: The API of this name, as swerex-c has it
Requires-Dist: swerex-c
"""


class StandIn(importlib.metadata.Distribution):
    """A distribution that has metadata and no files."""

    def read_text(self, filename: str) -> str | None:
        return _METADATA if filename in ("METADATA", "PKG-INFO") else None

    def locate_file(self, path: str | os.PathLike[str]) -> Path:
        return Path(swerex_c.__file__).parent.parent / path


def original_distribution() -> importlib.metadata.Distribution | None:
    """The original, if it is installed where this process looks."""
    context = importlib.metadata.DistributionFinder.Context(name=swerex_c.PACKAGE_NAME)
    return next(iter(importlib.metadata.MetadataPathFinder.find_distributions(context)), None)


def stand_in(
    context: importlib.metadata.DistributionFinder.Context | None,
) -> Iterable[importlib.metadata.Distribution]:
    """The stand-in for who asks for exactly the original, unless that can answer. Lists of all are not touched."""
    name = getattr(context, "name", None)
    if name is None or re.sub(r"[-_.]+", "-", name).lower() != swerex_c.PACKAGE_NAME:
        return []
    return [] if original_distribution() is not None else [StandIn()]
