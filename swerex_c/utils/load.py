"""Import classes that a configuration names, and libraries of an extra, when they are needed."""

from __future__ import annotations

import functools
import importlib
import sys
from typing import TYPE_CHECKING, Any

from swerex_c.exceptions import NotAvailableError

if TYPE_CHECKING:
    import inspect

__all__ = ["ConfigSignature", "add_alias", "handed_on", "load_class", "load_library"]

_HANDED_ON = (
    "swerex_c.models",
    "swerex_c.exceptions",
    "swerex_c.interfaces",
    "swerex_c.runtime.config",
    "swerex_c.runtime.remote",
    "swerex_c.utils.log",
    "swerex_c.utils.free_port",
    "swerex_c.utils.wait",
    "swerex_c._version",
)
"""Modules whose names callers import from any module of SWE-ReX that imports them."""


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


def handed_on(module: str, name: str) -> Any:
    """Return what `name` is in one of the modules that SWE-ReX's `module` imports.

    Raises:
        AttributeError: if none of them has it.
    """
    for each in () if name.startswith("__") else _HANDED_ON:
        if each != module and name in vars(found := importlib.import_module(each)):
            return vars(found)[name]
    raise AttributeError(f"module {module!r} has no attribute {name!r}")


def add_alias(name: str, kind: type[Any]) -> None:
    """Make `name` a name of the module in which a class is, with the names that SWE-ReX's module hands on."""
    module = sys.modules[name] = sys.modules[kind.__module__]
    vars(module)["__getattr__"] = functools.partial(handed_on, module.__name__)


def load_library(name: str, extra: str, user: str = "This") -> Any:
    """Import and return a library that an extra of this package requires.

    Args:
        user: what needs the library, for the message, such as an option.

    Raises:
        NotAvailableError: if the library cannot be imported; the message says how to install it.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        msg = f"{user} needs the package {name}, which cannot be imported ({error}): pip install 'swerex-c[{extra}]'"
        raise NotAvailableError(msg) from error


class ConfigSignature:
    """`__signature__` of a class whose constructor takes the fields of a configuration.

    `help()` and notebooks show it; editors and type checkers read the annotation of `**kwargs`. The configuration is
    imported only when the signature is asked for.
    """

    def __init__(self, config: str):
        """Take the configuration as "module:Class"."""
        self._config = config

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._owner = owner

    def __get__(self, instance: object, owner: type[Any]) -> inspect.Signature:
        if owner.__init__ is not self._owner.__init__:
            raise AttributeError("__signature__")  # the arguments of a subclass are its own
        import inspect

        _, *own = inspect.signature(owner.__init__).parameters.values()
        arguments = {argument.name: argument for argument in own if argument.kind is not argument.VAR_KEYWORD}
        for field in inspect.signature(load_class(self._config)).parameters.values():
            if field.name != "type":
                arguments.setdefault(field.name, field)
        return inspect.Signature(list(arguments.values()))
