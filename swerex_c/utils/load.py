"""Import classes that a configuration names, when they are needed."""

from __future__ import annotations

import importlib
from typing import Any

from swerex_c.exceptions import NotAvailableError

__all__ = ["load_class"]


def load_class(target: str) -> Any:
    """Import the class that `target` names as "module:Class".

    Raises:
        NotAvailableError: if this version of the package does not have that module.
        ImportError: if the module cannot import another module.
    """
    module, _, name = target.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        from swerex_c._version import __version__

        raise NotAvailableError(f"swerex-c {__version__} has no {name} (there is no module {module})") from None
