"""Startup module that installs the swap in every Python below `swerex-c run`.

The Python may have its own `sitecustomize`, which this module hides; this module then imports it. The Python may have
any version, so this code must also be valid Python 2, where it does nothing.
"""

# mypy: allow-untyped-defs, allow-untyped-calls

import os
import sys


def _take_from(package):
    """Import swerex_c from the installation of `swerex-c run`, for a Python that does not have it."""
    import importlib.util

    spec = importlib.util.spec_from_file_location(
        "swerex_c", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["swerex_c"] = module
    spec.loader.exec_module(module)


def _swap(here):
    try:
        import swerex_c  # noqa: F401
    except ImportError:
        _take_from(os.path.dirname(here))
    from swerex_c._alias import add_finder_at_startup

    add_finder_at_startup()


def _import_hidden(me):
    """Import the `sitecustomize` module that this one hides, if one exists."""
    del sys.modules["sitecustomize"]
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        if getattr(error, "name", "sitecustomize") != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault("sitecustomize", me)


def _start():
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    if sys.version_info >= (3, 11):  # noqa: UP036
        _swap(here)
    _import_hidden(sys.modules["sitecustomize"])


_start()
