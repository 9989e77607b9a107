"""`python -m swerex_c` is the command `swerex-c`; under the name of the original, `python -m swerex` is its server."""

from __future__ import annotations


def main() -> None:
    if __spec__ is not None and __spec__.parent == "swerex":
        from swerex_c.remote.serve_cli import main as serve

        serve()
    else:
        from swerex_c.cli import main as command

        command()


if __name__ == "__main__":
    main()
