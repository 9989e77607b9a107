"""The server under the names of SWE-ReX.

`app` is for an ASGI server. `runtime` and `AUTH_TOKEN` may be replaced.
"""

from __future__ import annotations

import functools
import sys

from swerex_c.interfaces import AbstractRuntime
from swerex_c.remote.server.app import create_app
from swerex_c.remote.server.service import Service
from swerex_c.runtime.local import LocalRuntime
from swerex_c.utils.load import handed_on

__all__ = ["AUTH_TOKEN", "app", "main", "runtime"]

__getattr__ = functools.partial(handed_on, __name__)

runtime: AbstractRuntime = LocalRuntime()
"""Runtime that executes all requests. It may be replaced by a runtime of any kind."""

AUTH_TOKEN = ""
"""Key that clients must send as `X-API-Key`; while it is empty, all are refused. It may be set at any time."""

app = create_app(Service(sys.modules[__name__]), own_process=True)
"""The server as an ASGI application. If `AUTH_TOKEN` is empty at startup, it takes the key from the environment
variable SWEREX_AUTH_TOKEN. It does not start without a key."""


def main() -> None:
    """Run the command `swerex-remote`."""
    from swerex_c.cli.serve import main as serve

    serve()


if __name__ == "__main__":
    sys.modules.setdefault("swerex_c.server", sys.modules[__name__])
    main()
