"""`python -m swerex_c` is the command `swerex-c`; under the name of the original, `python -m swerex` is its server."""

from __future__ import annotations

import sys


def main() -> None:
    if __spec__ is not None and __spec__.parent == "swerex":
        from swerex_c._load import load_class
        from swerex_c.exceptions import NotAvailableError

        try:
            serve = load_class("swerex_c.server", "main")
        except NotAvailableError as error:
            sys.exit(f"python -m swerex is SWE-ReX's server: {error}")
        serve()
        return
    from swerex_c.cli import main as command

    command()


if __name__ == "__main__":
    main()
