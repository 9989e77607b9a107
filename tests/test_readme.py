"""What README.md says can be pasted, called and looked up."""

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

from original import our_environment
from swerex_c import exceptions

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
PYTHON = [text for language, text in BLOCKS if language == "python"]
PAGES = ["README.md", "CHANGELOG.md", "csrc/README.md", "benchmarks/README.md"]

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


def paste(block: str) -> str:
    """What a block prints; on a slow machine the startup files may take long."""
    block = block.replace("CreateBashSessionRequest()", "CreateBashSessionRequest(startup_timeout=60)")
    done = subprocess.run(
        [sys.executable, "-c", PASTE], input=block, env=our_environment(), capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_first_block_of_python_runs() -> None:
    assert re.fullmatch(r"\d+\n 0\n", paste(PYTHON[0].replace("timeout=10", "timeout=60")))


def test_the_agents_block_runs() -> None:
    (block,) = (text for text in PYTHON if "async def main" in text)
    assert "timeout=1)" in block
    said = paste(block.replace("timeout=1)", "timeout=1 if 'sleep' in command else 60)"))
    assert re.fullmatch(
        r"\[exit code 0\]\n42 in /usr\n\[exit code 0\]\nNothing was run:\n.+\n"
        r"(slow\n)?\[interrupted after 1 seconds\]\n",
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
        *("runtime.exec", "runtime.remote", "exec.docker", "exec.kubectl"),
    ):
        names |= vars(importlib.import_module(f"swerex_c.{module}"))
    cells = re.findall(r"`((?:\w+Deployment|ExecRuntime|RemoteRuntime|\w+DeploymentConfig)\([^`]*\))`", README)
    cells = [cell for cell in cells if "..." not in cell]
    assert len(cells) > 12
    for cell in cells:
        eval(cell, dict(names))  # none of them is started


def test_every_error_is_in_the_table_and_no_other() -> None:
    table = README.split("\n## Errors\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    told = {name for row in rows for name in re.findall(r"`(\w+Error)`", row)}
    assert told <= set(exceptions.__all__)
    assert set(exceptions.__all__) - told <= {"SwerexException", "SessionError"}


def test_the_first_two_blocks_are_commands_of_one_line() -> None:
    assert [(language, text.count("\n")) for language, text in BLOCKS[:2]] == [("", 1), ("", 1)]


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        assert link.startswith("http") or ((ROOT / page).parent / link).exists(), link
