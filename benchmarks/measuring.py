"""The measuring core: `swerex_c/bench` of this tree, whichever version of the package is measured, or none."""

from __future__ import annotations

from pathlib import Path

__path__ = [str(Path(__file__).resolve().parent.parent / "swerex_c" / "bench")]
