"""Entry point of `python -m swerex_c` and `python -m swerex`.

The first runs the command `swerex-c`, the second `swerex-remote`.
"""

from __future__ import annotations

import sys


def main() -> None:
    try:
        from swerex_c import _core  # noqa: F401  (a checkout may not be built)
    except ImportError as error:
        sys.exit(f"swerex_c: {error}")
    if __spec__ is not None and __spec__.parent == "swerex":
        from swerex_c.cli.serve import main as serve

        serve()
    else:
        from swerex_c.cli.main import main as command

        command()


if __name__ == "__main__":
    main()
