"""The blocks of README.md and of the pages in swerex_c/docs, and how they are run: as somebody who pastes them."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.original import our_environment
from tests.support.processes import ran

__all__ = ["BLOCK", "DOCS", "PAGES", "PASTE", "PROVIDERS", "ROOT", "SHOWN", "TEXTS"]
__all__ += ["check", "paste", "provider", "shown"]

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"^```python\n([^`]*)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A block of Python, and the block after it with what it prints."""

DOCS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "swerex_c/docs").glob("*.md"))
PAGES = ["README.md", "CHANGELOG.md", "csrc/README.md", "benchmarks/README.md", "benchmarks/core.md", *DOCS]
TEXTS = {page: (ROOT / page).read_text() for page in PAGES}

PROVIDERS = ("Ray", "Kubernetes", "Modal", "Daytona", "Fargate", "Docker")
"""Providers whose blocks run where the tests have an engine, a cluster or a cloud."""

# As `python -m asyncio` does, but to the end of the block.
PASTE = """\
import ast, asyncio, inspect, sys
code = compile(sys.stdin.read(), "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
names = {"__name__": "__main__"}
if code.co_flags & inspect.CO_COROUTINE:
    async def main():
        await eval(code, names)
    asyncio.run(main())
else:
    exec(code, names)
"""


def provider(block: str) -> str:
    """Return the provider that a block needs; "server" for one that has to run, or "" if this machine suffices."""
    if "RemoteRuntime(" in block:
        return "server"
    return next((name.lower() for name in PROVIDERS if f"{name}Deployment(" in block), "")


def shown(wanted: str) -> list[tuple[str, str]]:
    """Return the blocks that need this provider, each with what the page says that it prints."""
    return [pair for text in TEXTS.values() for pair in SHOWN.findall(text) if provider(pair[0]) == wanted]


def paste(block: str, environment: Mapping[str, str]) -> str:
    """Run a block as it stands on the page, and return what it prints."""
    done = ran(sys.executable, "-c", PASTE, seconds=100, input=block, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def check(block: str, output: str, **environment: str) -> None:
    """Run a block in this process's environment, and compare what it prints with what the page shows."""
    assert paste(block, our_environment() | environment).rstrip("\n") == output.rstrip("\n")
