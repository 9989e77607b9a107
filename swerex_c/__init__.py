"""Package root: SWE-ReX's API on an engine written in C.

Importing this package is cheap: submodules are imported on first use.

    from swerex_c.runtime.local import LocalRuntime

To make code that imports `swerex` use these modules instead:

    import swerex_c

    swerex_c.install()

`swerex_c.__version__` is the version of SWE-ReX's API; `swerex_c._version.__version__` is that of this distribution.
"""

from __future__ import annotations

from swerex_c._version import API_VERSION as __version__
from swerex_c._version import PACKAGE_NAME, REMOTE_EXECUTABLE_NAME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from swerex_c.swap import install as install
    from swerex_c.swap import uninstall as uninstall

__all__ = ["PACKAGE_NAME", "REMOTE_EXECUTABLE_NAME", "__version__", "install", "uninstall"]


def __getattr__(name: str) -> object:
    if name in ("install", "uninstall"):
        from swerex_c import swap

        return getattr(swap, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
