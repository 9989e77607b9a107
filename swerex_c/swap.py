"""Replace SWE-ReX by this package for code that imports `swerex`.

There are three scopes:

- `install()` changes the process that calls it, from the next import of `swerex` on.
- `run_environment()`, used by `swerex-c run`, changes one command and every Python process below it.
- `enable()`, used by `swerex-c enable`, changes one environment (a venv, or an installation of Python) until
  `disable()`.

In all of them `swerex.X` and `swerex_c.X` are two names of one module, whether or not the original is installed. The
original's files are never changed. Classes keep their own names: `type(e).__module__` is `swerex_c.exceptions`. Pickles
refer to `swerex_c`, so they can be loaded wherever this package is installed, with or without the swap. Pickles made
with the original refer to `swerex` and can be loaded while the swap is on.

`swerex-c run` does not affect a Python that is started with -E, -I or -S, or whose environment was replaced.
"""

from __future__ import annotations

import contextlib
import os
import site
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from swerex_c._alias import SWITCH, add_finder, installed_finders, our_name
from swerex_c.exceptions import SwapError

__all__ = ["Status", "disable", "enable", "install", "run_environment", "status", "uninstall"]

PTH_NAME = "zz_swerex_c_swap.pth"
"""Name of the file that `enable` writes. It sorts after the files that make editable installations importable."""

_PTH_TEXT = (
    "import sys; exec("
    '"try:\\n    from swerex_c._alias import add_finder_at_startup\\nexcept ImportError:\\n    pass\\n'
    'else:\\n    add_finder_at_startup()")\n'
)
"""Content of that file. It does nothing if this package was removed without `disable`."""


def install() -> None:
    """Make `import swerex` load this package in this process.

    A second call does nothing.

    Raises:
        SwapError: if the original is already imported, because the importing code holds its classes.
    """
    if loaded := _loaded_original():
        where = getattr(sys.modules[loaded], "__file__", None) or "an unknown location"
        raise SwapError(
            f"{loaded} of the original SWE-ReX is already imported (from {where}): "
            "call swerex_c.install() before the first import of swerex"
        )
    add_finder()


def uninstall() -> None:
    """Undo `install()`: the next `import swerex` finds the original, or nothing.

    Code that has imported these modules under either name keeps them.
    """
    for finder in installed_finders():
        sys.meta_path.remove(finder)
    for name in [name for name in sys.modules if _is_alias(name)]:
        del sys.modules[name]


def run_environment(environment: dict[str, str]) -> dict[str, str]:
    """Return a copy of `environment` that enables the swap.

    The swap is enabled in every Python process with this environment, and in its child processes. A Python that does
    not have this package (another venv) loads it from this installation, if that Python has version 3.11 or later.
    """
    changed = dict(environment)
    entries = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry != _startup_directory()]
    changed["PYTHONPATH"] = os.pathsep.join([_startup_directory(), *filter(None, entries)])
    changed[SWITCH] = "1"
    return changed


def enable(*, user: bool = False) -> Path:
    """Enable the swap for every process of this environment.

    Returns the path of the file that enables it.

    Args:
        user: enable it in the user's site-packages instead; needed if the environment is not writable.

    Raises:
        SwapError: if the file cannot be written.
    """
    directory = Path(site.getusersitepackages() if user else sysconfig.get_path("purelib"))
    path, temporary = directory / PTH_NAME, directory / f".{PTH_NAME}.{os.getpid()}"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        temporary.write_text(_PTH_TEXT)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise SwapError(f"Cannot write {path}: {error.strerror}") from error
    return path


def disable() -> list[Path]:
    """Undo `enable()` for processes that start later.

    Returns the files that were removed.

    Raises:
        SwapError: if a file cannot be removed.
    """
    removed = []
    for path in _switches():
        try:
            path.unlink()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise SwapError(f"Cannot remove {path}: {error.strerror}") from error
        removed.append(path)
    return removed


@dataclass(frozen=True)
class Status:
    """State of the swap in this process and environment, and the installed original."""

    active: bool
    """True if `import swerex` loads this package in this process."""

    enabled: tuple[Path, ...]
    """Files that enable the swap for this environment."""

    run: bool
    """True if `swerex-c run` started this process, directly or indirectly."""

    switched_off: bool
    """True if the environment variable `SWEREX_C_SWAP` is 0, which disables both `enabled` and `run`."""

    original_version: str | None
    """Version of the installed original, or None."""

    original_path: str | None
    """Path from which the original would be imported, or None."""


def status() -> Status:
    """Return the state of the swap without importing the original."""
    from swerex_c.utils.distribution import original_distribution

    distribution = original_distribution()
    return Status(
        active=bool(installed_finders()) and _loaded_original() is None,
        enabled=tuple(path for path in _switches() if path.is_file()),
        run=_startup_directory() in os.environ.get("PYTHONPATH", "").split(os.pathsep),
        switched_off=os.environ.get(SWITCH) == "0",
        original_version=distribution.version if distribution else None,
        original_path=_original_path(),
    )


def _is_alias(name: str) -> bool:
    """Check whether a `swerex` name is imported and is a module of this package."""
    ours = our_name(name)
    return ours is not None and sys.modules.get(name) is not None and sys.modules[name] is sys.modules.get(ours)


def _loaded_original() -> str | None:
    """Return the name of an imported module of the original, or None."""
    for name, module in list(sys.modules.items()):
        if module is not None and our_name(name) is not None and not _is_alias(name):
            return name
    return None


def _original_path() -> str | None:
    for finder in sys.meta_path:
        find_spec = getattr(finder, "find_spec", None)
        if find_spec is None or finder in installed_finders():
            continue
        if (spec := find_spec("swerex", None)) is not None:
            origin: str | None = spec.origin
            return origin
    return None


def _startup_directory() -> str:
    return str(Path(__file__).resolve().parent / "startup")


def _switches() -> list[Path]:
    """Return the paths that `enable` may have written for this environment or user."""
    directories = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        directories.append(site.getusersitepackages())
    return [Path(directory) / PTH_NAME for directory in dict.fromkeys(directories)]
