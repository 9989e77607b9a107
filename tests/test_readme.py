"""README.md and the pages of swerex_c/docs: their blocks run, their names exist, their links lead somewhere."""

from __future__ import annotations

import importlib
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from swerex_c import exceptions
from tests.support import api_page
from tests.support.original import our_environment
from tests.support.pages import BLOCK, DOCS, PAGES, PASTE, PROVIDERS, ROOT, SHOWN, TEXTS, check, paste, provider, shown
from tests.support.processes import ran

PYTHON = [text for page in ["README.md", *DOCS] for kind, text in BLOCK.findall(TEXTS[page]) if kind == "python"]
AGENT = "async def main"
"""In the block whose output depends on bash and on the time."""


@pytest.fixture
def slow_home(tmp_path: Path) -> Path:
    """A home directory whose startup files take more than SWE-ReX's second, as those of many people do."""
    (tmp_path / ".bashrc").write_text("sleep 1.6\n")
    return tmp_path


@pytest.mark.parametrize(("block", "output"), shown(""))
def test_a_block_prints_what_the_page_shows(block: str, output: str, slow_home: Path) -> None:
    check(block, output, HOME=str(slow_home))


SERVER = """\
import fcntl, socket, struct, subprocess, sys
with socket.socket() as any:  # a network of its own has a loopback device that is down, and a free port
    flags = struct.pack("16sh14x", b"lo", 1)
    fcntl.ioctl(any, 0x8914, flags)
command = [sys.executable, "-m", "swerex_c", "serve", "--auth-token", "KEY"]
with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
    try:
        while "Listening on http://127.0.0.1:8000" not in (line := server.stdout.readline()):
            assert line
        code = subprocess.run([sys.executable, "-c", sys.argv[1]]).returncode
    finally:
        server.terminate()
sys.exit(code)
"""


@pytest.mark.parametrize(("block", "output"), shown("server"))
def test_a_block_with_a_server(block: str, output: str) -> None:
    as_root = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    alone = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", *as_root]
    command = [*alone, sys.executable, "-c", SERVER, PASTE]
    done = ran(*command, seconds=100, input=block, env=our_environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout == output


def test_every_block_runs_and_shows_what_it_prints() -> None:
    with_output = [block for text in TEXTS.values() for block, _ in SHOWN.findall(text)]
    assert [block for block in PYTHON if AGENT not in block and block not in with_output] == []
    assert {provider(block) for block in PYTHON} == {"", "server", *map(str.lower, PROVIDERS)}


def test_the_agents_block_runs(slow_home: Path) -> None:
    (block,) = (text for text in PYTHON if AGENT in text)
    said = paste(block, {**our_environment(), "HOME": str(slow_home)})
    assert re.fullmatch(
        r"\[exit code 0\]\n42 in /usr\n\[exit code 0\]\nNothing was run:\n.+\n"
        r"(slow\n)?\[interrupted after 3 seconds\]\n",
        said,
        re.DOTALL,
    ), said


def test_deployments_and_runtimes_in_tables_can_be_made() -> None:
    names: dict[str, Any] = {"KEY": "x"}
    for module in (
        *(f"deployment.{name}" for name in ("config", "docker", "ssh", "local", "remote")),
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


def test_the_first_screen_has_what_convinces() -> None:
    lines = TEXTS["README.md"].splitlines()
    assert len(lines) < 200
    assert [(language, text.count("\n")) for language, text in BLOCK.findall(TEXTS["README.md"])[:2]] == [("", 1)] * 2
    first = "\n".join(lines[:60])
    for part in ("<picture>", "half a minute", "five minutes", "install swerex-c", "your machine"):
        assert part in first, part
    said = re.findall(r"takes ([\d.]+) ms; in SWE-ReX it takes ([\d.]+) ms", first)
    measured = re.findall(r"SWE-ReX ([\d.]+) ms;.*; swerex_c ([\d.]+) ms", first)
    assert [(f"{float(ours):.2g}", theirs) for theirs, ours in measured] == said  # the record's, as the chart has them
    assert len(SHOWN.findall(first)) == 1 and "swerex-c run -- sweagent run" in first
    assert len(re.findall(r"\]\(swerex_c/docs/", first)) == 6


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
