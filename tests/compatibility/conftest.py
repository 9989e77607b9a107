"""What callers bring along, and the places that they work in."""

from __future__ import annotations

import os
import subprocess

import pytest

REPLACE = """\
#!/bin/bash
# replace FILE: its new text is on standard input.
cat >"$1" && echo "[$(wc -l <"$1") lines in $1]"
"""
NUMBER = """\
#!/usr/bin/env python3
import os
import sys

for number, line in enumerate(open(sys.argv[1]), int(os.environ["NUMBERED"])):
    print(f"{number}:{line}", end="")
"""
STATE = """\
#!/usr/bin/env python3
import json
import os

home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
with open(os.path.join(home, "state.json"), "w") as state:
    json.dump({"work": os.path.basename(os.getcwd())}, state)
"""
TOOLS = {
    "edit": {"bin/replace": REPLACE, "install.sh": 'echo "$(basename "$PWD")"\n'},
    "look": {"bin/number": NUMBER, "install.sh": "export NUMBERED=1\n"},
    "state": {"bin/state": STATE, "install.sh": "[[ -n $NUMBERED ]]\n"},
}
GIT = {
    **dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "t"),
    **dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "t@example.org"),
    **dict.fromkeys(("GIT_AUTHOR_DATE", "GIT_COMMITTER_DATE"), "2024-01-01T00:00:00 +0000"),
    **dict.fromkeys(("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"), os.devnull),
}


@pytest.fixture(scope="session")
def luggage(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A git repository and a directory of tool bundles."""
    here = tmp_path_factory.mktemp("luggage")
    for bundle, files in TOOLS.items():
        for name, text in files.items():
            path = here / "tools" / bundle / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)
    repository = here / "repository"
    repository.mkdir()
    (repository / "greet.py").write_text('print("Hello")\n')
    (repository / "notes.txt").write_text("a\n")
    environment = {**os.environ, **GIT}
    for words in ("init -q -b main", "add -A", "commit -q -m begin"):
        subprocess.run(["git", *words.split()], cwd=repository, env=environment, check=True)
    return {"repository": str(repository), "tools": str(here / "tools")}
