"""SWE-ReX's API on an engine written in C.

Importing this package costs next to nothing: everything else is imported when it is used.

    from swerex_c.runtime.local import LocalRuntime

or, to give code that imports `swerex` these modules instead:

    import swerex_c

    swerex_c.install()
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from swerex_c.swap import install as install
    from swerex_c.swap import uninstall as uninstall

__all__ = ["PACKAGE_NAME", "REMOTE_EXECUTABLE_NAME", "__version__", "install", "uninstall"]

__version__ = "1.4.0"
"""The version of the SWE-ReX API that this package implements; callers compare it with the version they need.

The version of this distribution is `swerex_c._version.__version__`.
"""

PACKAGE_NAME = "swe-rex"
"""The distribution that has the server's command, as callers write it into the start command of a container."""

REMOTE_EXECUTABLE_NAME = "swerex-remote"
"""The server's command."""


def __getattr__(name: str) -> object:
    if name in ("install", "uninstall"):
        from swerex_c import swap

        return getattr(swap, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
