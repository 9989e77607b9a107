"""What callers bring along."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Luggage:
    """A git repository and a directory of tool bundles."""

    repository: Path
    tools: Path
