"""An agent's day, from start to stop, has the same answers on the original and on ours, wherever ours works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.docker_engine import Engine
from tests.support.original import ROOT, original_python
from tests.support.processes import ran
from tests.support.server_process import KEY, serving

SECONDS = 200
pytestmark = pytest.mark.timeout(400)  # the first one may have an image to make

PATCH = """\
diff --git a/greet.py b/greet.py
index 2f9a147..9d4aa75 100644
--- a/greet.py
+++ b/greet.py
@@ -1 +1,5 @@
-print("Hello")
+def greet(name):
+    return f"Good day, {name}!"
+
+
+print(greet("wörld"))
"""
ANSWERS: dict[str, Any] = {
    "variables": [0, ""],
    "startup file": [0, "read\n"],
    "alive": True,
    "owner": [0, "", ""],
    "reset": [0, "On branch main\nnothing to commit, working tree clean\nHEAD is now at bf1fba1 begin\n"],
    "install edit": [0, "edit\n"],
    "install look": [0, ""],
    "install state": [0, ""],
    "back": [0, ""],
    "available": [
        *("HOME/tools/edit/bin/replace\n", "HOME/tools/state/bin/state\n", "HOME/tools/look/bin/number\n"),
        "NonZeroExitCodeError",
    ],
    "variable of a tool": [0, "1\n"],
    "tool": [0, '1:print("Hello")\n'],
    "here-document": [0, "[5 lines in greet.py]\n"],
    "state": [[0, ""], {"work": "work"}],
    "the program": [0, "Good day, wörld!\n"],
    "syntax": ["BashIncorrectSyntaxError", {"bash_stdout": False, "bash_stderr": True}],
    "nothing of it ran": [1, ""],
    "timeout": ["CommandTimeoutError", "timeout after 0.7 seconds while running command 'echo before; sleep 100'"],
    "file after the timeout": '{"work": "work"}',
    "next command": [0, "next\n"],
    "debugger": [0, ["42"]],
    "debugger left": [0, [0, "outside\n"]],
    "diff": [0, PATCH],
    "submit": [0, "<<SUBMISSION>>\n"],
    "patch": PATCH,
    "closed": ["SessionDoesNotExistError", "session 'default' does not exist"],
}


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


def spend(python: str, place: dict[str, Any], directory: Path, environment: dict[str, str]) -> dict[str, Any]:
    """The answers of a day in a process of its own."""
    answers, script = directory / "answers.json", str(ROOT / "tests" / "support" / "agents_day.py")
    variables = {**os.environ, "TERM": "dumb", "SWE_REX_LOG_STREAM_LEVEL": "WARNING", **environment}
    done = ran(python, script, json.dumps(place), str(answers), seconds=SECONDS, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(answers.read_text())
    return found


@pytest.fixture
def here(tmp_path: Path, luggage: dict[str, str]) -> dict[str, Any]:
    """A place on this machine."""
    (tmp_path / "home").mkdir()
    (tmp_path / "root").mkdir()
    return {"home": f"{tmp_path}/home", "root": f"{tmp_path}/root", **luggage}


def test_the_original(tmp_path: Path, here: dict[str, Any]) -> None:
    here["deployment"] = {"type": "local"}
    assert spend(original_python(), here, tmp_path, {"HOME": here["home"], "PYTHONPATH": ""}) == ANSWERS


@pytest.mark.slice
def test_in_this_process(tmp_path: Path, here: dict[str, Any]) -> None:
    here |= {"deployment": {"type": "local"}, "swap": True}
    assert spend(sys.executable, here, tmp_path, {"HOME": here["home"], "PYTHONPATH": str(ROOT)}) == ANSWERS


@pytest.mark.slice
def test_behind_our_server(tmp_path: Path, here: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", here["home"])
    with serving(tmp_path / "log") as server:
        remote = {"host": "http://127.0.0.1", "port": server.port, "auth_token": KEY, "timeout": 10}
        here |= {"remote": remote, "swap": True}
        assert spend(sys.executable, here, tmp_path, {"HOME": here["home"], "PYTHONPATH": str(ROOT)}) == ANSWERS


@pytest.mark.xdist_group("engine")
@pytest.mark.parametrize("server", [False, True], ids=["by exec", "by a server in it"])
def test_in_a_container(tmp_path: Path, luggage: dict[str, str], docker: Engine, debian_py: str, server: bool) -> None:
    container = {"type": "docker", "image": debian_py, "pull": "never", "server": server}
    # Where an engine has no bridge, a container's port is reached on this machine's network.
    container["docker_args"] = ["--network", "host" if server else "none"]
    place = {"home": "/root", "root": "/day", **luggage, "deployment": container, "swap": True}
    environment = {**docker.environment, "PYTHONPATH": str(ROOT)}
    assert spend(sys.executable, place, tmp_path, environment) == ANSWERS
