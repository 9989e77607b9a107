"""Classes that a configuration names, imported when they are asked for."""

from __future__ import annotations

import importlib
from typing import Any

from swerex_c.exceptions import NotAvailableError

__all__ = ["load_class"]


def load_class(module: str, name: str) -> Any:
    """The class `name` of the module `module` of this package.

    Raises:
        NotAvailableError: if this version of the package does not have that module. What the module itself fails to
            import comes as the ImportError that it is.
    """
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        from swerex_c._version import __version__

        raise NotAvailableError(f"swerex-c {__version__} has no {name} (there is no module {module})") from None
