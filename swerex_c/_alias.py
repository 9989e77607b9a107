"""The import hook that gives the modules of this package to code that imports `swerex`.

`swerex.X.Y` becomes another name of the module object `swerex_c.X.Y`, so that a class, a setting or a patch is the same
through either name. It needs little enough to be loaded at the start of every Python process, and imports no module of
the package before somebody asks for it.
"""

from __future__ import annotations

import importlib
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from importlib.machinery import ModuleSpec
    from importlib.metadata import Distribution, DistributionFinder
    from types import CodeType, ModuleType
    from typing import Any

__all__ = ["AliasFinder", "SWITCH", "add_finder", "add_finder_at_startup", "installed_finders", "our_name"]

SWITCH = "SWEREX_C_SWAP"
"""The environment variable that, set to 0, keeps `swerex-c run` and `swerex-c enable` from having any effect."""

_ORIGINAL = "swerex"
_OURS = "swerex_c"


def our_name(name: str) -> str | None:
    """The module of this package that stands behind a module of the original, existing or not; None for all others."""
    if name == _ORIGINAL or name.startswith(_ORIGINAL + "."):
        return _OURS + name[len(_ORIGINAL) :]
    return None


class AliasFinder:
    """Finds `swerex` and everything below it in this package, and nothing else."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        ours = our_name(name)
        if ours is None:
            return None
        from importlib.machinery import ModuleSpec
        from importlib.util import find_spec

        found = find_spec(ours)
        if found is None:
            why = f"No module named {name!r}: {_OURS}, which stands in for it, has no {ours}"
            raise ModuleNotFoundError(why, name=name)
        loader: Any = AliasLoader(found)
        spec = ModuleSpec(name, loader, origin=found.origin, is_package=loader.is_package(name))
        if found.submodule_search_locations is not None:
            spec.submodule_search_locations = list(found.submodule_search_locations)
        return spec

    @staticmethod
    def find_distributions(context: DistributionFinder.Context | None = None) -> Iterable[Distribution]:
        """Answer who asks for the version of swe-rex by its name, where the original is not installed to answer."""
        from swerex_c._distribution import stand_in

        return stand_in(context)

    def invalidate_caches(self) -> None:
        """Part of what a finder has; there is no cache."""


class AliasLoader:
    """Loads a module by importing ours, whose own `__spec__` and `__name__` stay as they are."""

    def __init__(self, found: ModuleSpec):
        self._found = found
        self._inspect: Any = found.loader
        self._own_spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._found.name)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has just put the alias's spec in its place.
        module.__spec__ = self._own_spec

    # `python -m swerex.X` does not import the module but runs its code as `__main__`.

    def get_code(self, name: str) -> CodeType | None:
        code: CodeType | None = self._inspect.get_code(self._found.name)
        return code

    def get_source(self, name: str) -> str | None:
        source: str | None = self._inspect.get_source(self._found.name)
        return source

    def is_package(self, name: str) -> bool:
        return self._found.submodule_search_locations is not None


def installed_finders() -> list[Any]:
    """The finders of this kind that this process has, also those of another copy of this module."""
    return [finder for finder in sys.meta_path if type(finder).__name__ == AliasFinder.__name__]


def add_finder() -> None:
    """Have imports of `swerex` answered from now on. What was imported before is not looked at."""
    if not installed_finders():
        sys.meta_path.insert(0, AliasFinder())


def add_finder_at_startup() -> None:
    """The same at the start of a process that did not ask for it by itself, unless the environment says no."""
    if os.environ.get(SWITCH) != "0" and _ORIGINAL not in sys.modules:
        add_finder()
