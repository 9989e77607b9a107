"""Putting this package in the place of SWE-ReX, for code that imports `swerex`.

Three ways, for three reaches:

- `install()` changes the process that calls it, from the next import of `swerex` on.
- `run_environment()`, which is `swerex-c run`, changes one command and every Python that it starts in turn.
- `enable()`, which is `swerex-c enable`, changes one environment (a venv, or an installation of Python) until
  `disable()`.

In each of them `swerex.X` and `swerex_c.X` are two names of the same module, whether or not the original is installed.
Its files are never touched. Classes keep their own names: `type(e).__module__` is `swerex_c.exceptions`, and what is
pickled names `swerex_c`, so it can be loaded where this package is installed, swapped in or not. What was pickled with
the original names `swerex` and can be loaded while the swap is on.

Not reached by `swerex-c run`: a Python that is started with -E, -I or -S, or whose environment was replaced.
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
"""The file that `enable` writes. Its name sorts it behind those that make editable installations importable."""

_PTH_TEXT = (
    "import sys; exec("
    '"try:\\n    from swerex_c._alias import add_finder_at_startup\\nexcept ImportError:\\n    pass\\n'
    'else:\\n    add_finder_at_startup()")\n'
)
"""What it holds. It is silent when this package was removed without `disable`."""


def install() -> None:
    """Have `import swerex` give this package in this process. Calling it again does nothing.

    Raises:
        SwapError: if the original was imported already, since whoever did it holds its classes.
    """
    if loaded := _loaded_original():
        where = getattr(sys.modules[loaded], "__file__", None) or "an unknown place"
        raise SwapError(
            f"{loaded} of the original SWE-ReX is already imported (from {where}): "
            "call swerex_c.install() before the first import of swerex"
        )
    add_finder()


def uninstall() -> None:
    """Take `install()` back: the next `import swerex` finds the original, or nothing.

    Who has imported these modules under either name keeps them.
    """
    for finder in installed_finders():
        sys.meta_path.remove(finder)
    for name in [name for name in sys.modules if _is_alias(name)]:
        del sys.modules[name]


def run_environment(environment: dict[str, str]) -> dict[str, str]:
    """A copy of an environment in which every Python has the swap, and hands it on to what it starts.

    A Python that does not have this package (another venv) takes it from where it is installed for this one, if it is
    of version 3.11 or later.
    """
    changed = dict(environment)
    entries = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry != _startup_directory()]
    changed["PYTHONPATH"] = os.pathsep.join([_startup_directory(), *filter(None, entries)])
    changed[SWITCH] = "1"
    return changed


def enable(*, user: bool = False) -> Path:
    """Switch the swap on for every process of this environment, and return the file that does it.

    Args:
        user: switch it on for the packages of this user instead; needed where the environment cannot be written.

    Raises:
        SwapError: if the file cannot be written.
    """
    directory = Path(site.getusersitepackages() if user else sysconfig.get_path("purelib"))
    path = directory / PTH_NAME
    try:
        directory.mkdir(parents=True, exist_ok=True)
        temporary = directory / f".{PTH_NAME}.{os.getpid()}"
        temporary.write_text(_PTH_TEXT)
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError, UnboundLocalError):
            temporary.unlink()
        raise SwapError(f"Cannot write {path}: {error.strerror}") from error
    return path


def disable() -> list[Path]:
    """Take `enable()` back for processes that start from now on, and return the files that were removed.

    Raises:
        SwapError: if one of them cannot be removed.
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
    """Where the swap is on, and what stands behind it."""

    active: bool
    """Whether `import swerex` gives this package in this process."""

    enabled: tuple[Path, ...]
    """The files by which it is on for this environment."""

    run: bool
    """Whether this process was started by `swerex-c run`, directly or not."""

    switched_off: bool
    """Whether the environment variable `SWEREX_C_SWAP` is 0, so that neither of the two counts."""

    original_version: str | None
    """The version of the original that is installed, or None."""

    original_path: str | None
    """Where the original would be imported from, or None."""


def status() -> Status:
    """The state of this process and its environment, found without importing the original."""
    from swerex_c._distribution import original_distribution

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
    """Whether this name of the original is imported and is a name of ours."""
    ours = our_name(name)
    return ours is not None and sys.modules.get(name) is not None and sys.modules[name] is sys.modules.get(ours)


def _loaded_original() -> str | None:
    """The name of a module of the original that is imported."""
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
    """Where `enable` may have written, for this environment and this user."""
    directories = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        directories.append(site.getusersitepackages())
    return [Path(directory) / PTH_NAME for directory in dict.fromkeys(directories)]
