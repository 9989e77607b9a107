"""Files of the package that the benchmarks use too, by their paths: interpreters of other engines have no package."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

__all__ = ["of_bench"]


def of_bench(name: str) -> Any:
    """The module `swerex_c.bench.NAME`, which needs nothing but the standard library."""
    known = f"swerex_c_bench_{name}"
    if known not in sys.modules:
        path = Path(__file__).resolve().parent.parent / "swerex_c" / "bench" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(known, path)
        assert spec is not None and spec.loader is not None
        module = sys.modules[known] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[known]
