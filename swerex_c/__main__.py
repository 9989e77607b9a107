"""Entry point of `python -m swerex_c` and `python -m swerex`.

The first runs the command `swerex-c`, the second `swerex-remote`.
"""

from __future__ import annotations


def main() -> None:
    if __spec__ is not None and __spec__.parent == "swerex":
        from swerex_c.cli.serve import main as serve

        serve()
    else:
        from swerex_c.cli.main import main as command

        command()


if __name__ == "__main__":
    main()
