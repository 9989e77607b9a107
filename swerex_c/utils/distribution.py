"""Substitute distribution that `importlib.metadata.version("swe-rex")` finds while this package replaces SWE-ReX."""

from __future__ import annotations

import importlib.metadata
import os
import re
from collections.abc import Iterable
from pathlib import Path

from swerex_c._version import API_VERSION, PACKAGE_NAME

__all__ = ["original_distribution", "stand_in"]

_METADATA = f"""\
Metadata-Version: 2.1
Name: {PACKAGE_NAME}
Version: {API_VERSION}
Summary: SWE-ReX's API, provided by swerex-c
Requires-Dist: swerex-c
"""


class StandIn(importlib.metadata.Distribution):
    """A substitute distribution that has metadata and no files."""

    def read_text(self, filename: str) -> str | None:
        return _METADATA if filename in ("METADATA", "PKG-INFO") else None

    def locate_file(self, path: str | os.PathLike[str]) -> Path:
        return Path(__file__).parent.parent.parent / path


def original_distribution() -> importlib.metadata.Distribution | None:
    """Return the distribution of the original package; None if the import path of this process has none."""
    context = importlib.metadata.DistributionFinder.Context(name=PACKAGE_NAME)
    return next(iter(importlib.metadata.MetadataPathFinder.find_distributions(context)), None)


def stand_in(
    context: importlib.metadata.DistributionFinder.Context | None,
) -> Iterable[importlib.metadata.Distribution]:
    """Return the substitute for a query of exactly the original's name, unless that is installed; else []."""
    name = getattr(context, "name", None)
    if name is None or re.sub(r"[-_.]+", "-", name).lower() != PACKAGE_NAME:
        return []
    return [] if original_distribution() is not None else [StandIn()]
