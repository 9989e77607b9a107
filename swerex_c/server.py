"""The server, under the names of the original: `app` for an ASGI server, `runtime` and `AUTH_TOKEN` to be replaced."""

from __future__ import annotations

import sys

from swerex_c.remote.http_app import create_app
from swerex_c.remote.service import Service
from swerex_c.runtime._base import AbstractRuntime
from swerex_c.runtime.local import LocalRuntime

__all__ = ["AUTH_TOKEN", "app", "main", "runtime"]

runtime: AbstractRuntime = LocalRuntime()
"""Where everything is done. May be replaced, by one of any kind."""

AUTH_TOKEN = ""
"""What clients have to send as `X-API-Key`; empty lets everybody in. May be set at any time."""

app = create_app(Service(sys.modules[__name__]))
"""The server as an ASGI application."""


def main() -> None:
    """The command `swerex-remote`."""
    from swerex_c.remote.serve_cli import main as serve

    serve()


if __name__ == "__main__":
    sys.modules.setdefault("swerex_c.server", sys.modules[__name__])
    main()
