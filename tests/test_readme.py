"""README.md and the pages of swerex_c/docs: their blocks run, their names exist, their links lead somewhere."""

from __future__ import annotations

import ast
import builtins
import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from swerex_c import exceptions
from tests.support import api_page
from tests.support.original import our_environment

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
DOCS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "swerex_c/docs").glob("*.md"))
PAGES = ["README.md", "CHANGELOG.md", "csrc/README.md", "benchmarks/README.md", *DOCS]
TEXTS = {page: (ROOT / page).read_text() for page in PAGES}
PYTHON = [text for page in ["README.md", *DOCS] for kind, text in BLOCK.findall(TEXTS[page]) if kind == "python"]
SHOWN = re.compile(r"^```python\n([^`]*)^```\n\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A block of Python, and the block after it with what it prints."""

# As `python -m asyncio` does, but to the end of the block.
PASTE = """\
import ast, asyncio, inspect, sys
code = compile(sys.stdin.read(), "README.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
names = {"__name__": "__main__"}
if code.co_flags & inspect.CO_COROUTINE:
    async def main():
        await eval(code, names)
    asyncio.run(main())
else:
    exec(code, names)
"""


@pytest.fixture
def slow_home(tmp_path: Path) -> Path:
    """A home directory whose startup files take more than SWE-ReX's second, as those of many people do."""
    (tmp_path / ".bashrc").write_text("sleep 1.6\n")
    return tmp_path


def paste(block: str, home: Path) -> str:
    """Run a block as it stands on the page, and return what it prints."""
    environment = our_environment() | {"HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", PASTE], input=block, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("block", "shown"), [pair for text in TEXTS.values() for pair in SHOWN.findall(text)])
def test_a_block_prints_what_the_page_shows(block: str, shown: str, slow_home: Path) -> None:
    assert paste(block, slow_home).rstrip("\n") == shown.rstrip("\n")


def test_the_readme_shows_what_three_blocks_print() -> None:
    assert len(SHOWN.findall(TEXTS["README.md"])) == 3


def test_the_pools_block_runs(slow_home: Path) -> None:
    (block,) = (text for text in PYTHON if "Pool(" in text)
    assert paste(block, slow_home).startswith("is_alive=True")


def test_the_agents_block_runs(slow_home: Path) -> None:
    (block,) = (text for text in PYTHON if "async def main" in text)
    said = paste(block, slow_home)
    assert re.fullmatch(
        r"\[exit code 0\]\n42 in /usr\n\[exit code 0\]\nNothing was run:\n.+\n"
        r"(slow\n)?\[interrupted after 3 seconds\]\n",
        said,
        re.DOTALL,
    ), said


@pytest.mark.parametrize("block", PYTHON)
def test_what_blocks_of_python_import_is_there(block: str) -> None:
    tree = compile(block, "README.md", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    assert isinstance(tree, ast.Module)
    bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    bound |= {node.name for node in ast.walk(tree) if isinstance(node, ast.AsyncFunctionDef)}
    bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    bound |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(node.module or "")
            for alias in node.names:
                assert hasattr(module, alias.name)
                bound.add(alias.name)
        elif isinstance(node, ast.Import):
            bound |= {alias.name for alias in node.names}
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    assert used - bound <= set(dir(builtins))


def test_deployments_and_runtimes_in_tables_can_be_made() -> None:
    names: dict[str, Any] = {"KEY": "x"}
    for module in (
        *(f"deployment.{name}" for name in ("config", "docker", "podman", "ssh", "local", "remote")),
        *("runtime.sandbox", "runtime.remote", "providers.docker.backend", "providers.kubernetes.kubectl"),
    ):
        names |= vars(importlib.import_module(f"swerex_c.{module}"))
    classes = r"(?:\w+Deployment|SandboxRuntime|RemoteRuntime|\w+DeploymentConfig)"
    cells = re.findall(rf"`({classes}\([^`]*\))`", "".join(TEXTS.values()))
    cells = [cell for cell in cells if "..." not in cell]
    assert len(cells) > 12
    for cell in cells:
        eval(cell, dict(names))  # none of them is started


def test_every_error_is_in_the_table_and_no_other() -> None:
    rows = [line.split("|")[1] for line in TEXTS["swerex_c/docs/errors.md"].splitlines() if line.startswith("| `")]
    told = {name for row in rows for name in re.findall(r"`(\w+Error)`", row)}
    assert told <= set(exceptions.__all__)
    assert set(exceptions.__all__) - told <= {"SwerexException", "SessionError"}


def test_the_page_of_fields_is_that_of_the_classes() -> None:
    assert api_page.page() == api_page.PAGE.read_text(), "write it anew: python -m tests.support.api_page"


def test_the_first_two_blocks_are_commands_of_one_line() -> None:
    blocks = BLOCK.findall(TEXTS["README.md"])
    assert [(language, text.count("\n")) for language, text in blocks[:2]] == [("", 1), ("", 1)]


def test_every_page_can_be_reached_from_the_readme() -> None:
    assert [page for page in DOCS if f"({page}" not in TEXTS["README.md"]] == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for link, part in re.findall(r"\]\(([^)#\s]*)#?([^)\s]*)[^)]*\)", TEXTS[page]):
        if link.startswith("http"):
            continue
        target = ((ROOT / page).parent / link).resolve() if link else ROOT / page
        assert target.exists(), link
        if part:
            titles = re.findall(r"^#+ (.*)$", target.read_text(), re.MULTILINE)
            assert part in {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}, (link, part)
