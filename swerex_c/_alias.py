"""Import hook that makes `import swerex` load the modules of this package.

`swerex.X.Y` becomes another name of the module object `swerex_c.X.Y`, so a class, a setting or a patch is the same
through either name. The hook is small enough to load at the start of every Python process. It imports a module of the
package only when the module is requested.
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
"""Environment variable that disables `swerex-c run` and `swerex-c enable` when it is set to 0."""

_ORIGINAL = "swerex"
_OURS = "swerex_c"


def our_name(name: str) -> str | None:
    """Return this package's name for a `swerex` module, or None for other modules.

    The module need not exist.
    """
    if name == _ORIGINAL or name.startswith(_ORIGINAL + "."):
        return _OURS + name[len(_ORIGINAL) :]
    return None


class AliasFinder:
    """Finder that resolves only `swerex` and its submodules, to this package."""

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
        """Return a stand-in for the distribution `swe-rex` if it is not installed.

        The result is empty unless the lookup asks for exactly that distribution.
        """
        from swerex_c.utils.distribution import stand_in

        return stand_in(context)


class AliasLoader:
    """Loader that imports the module of this package.

    The module's own `__spec__` and `__name__` stay unchanged.
    """

    def __init__(self, found: ModuleSpec):
        self._found = found
        self._inspect: Any = found.loader
        self._own_spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._found.name)
        self._own_spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The import system has just replaced the module's spec with the alias's.
        module.__spec__ = self._own_spec

    # `python -m swerex.X` uses these methods: it does not import the module but runs its code as `__main__`.

    def get_code(self, name: str) -> CodeType | None:
        code: CodeType | None = self._inspect.get_code(self._found.name)
        return code

    def is_package(self, name: str) -> bool:
        return self._found.submodule_search_locations is not None


def installed_finders() -> list[Any]:
    """Return the alias finders of this process.

    Finders of another copy of this module are included.
    """
    return [finder for finder in sys.meta_path if type(finder).__name__ == AliasFinder.__name__]


def add_finder() -> None:
    """Install the finder for later imports of `swerex`.

    Modules that are already imported are not checked.
    """
    if not installed_finders():
        sys.meta_path.insert(0, AliasFinder())


def add_finder_at_startup() -> None:
    """Install the finder unless `SWITCH` is 0 or `swerex` is already imported."""
    if os.environ.get(SWITCH) != "0" and _ORIGINAL not in sys.modules:
        add_finder()
