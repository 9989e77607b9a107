"""What a client sees of a server: each case is a few calls, made by the Python of either package in its own program.

    python client_cases.py PACKAGE URL KEY DIRECTORY

Prints one JSON object: what each case came to. DIR in a call, or in what is told of it, is the case's own directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

Call = tuple[str, str, dict[str, Any]]
"""A method, the class of its request ("" without one) and the fields of that."""

LARGE = "x" * 3_000_000
TEXT = "a\nä €\t\U0001f600 \\ \" ' end"
ALIVE: Call = ("is_alive", "", {})
OPEN: Call = ("create_session", "CreateBashSessionRequest", {"startup_timeout": 20})
INTERRUPT: Call = ("run_in_session", "BashInterruptAction", {})
CLOSE: Call = ("close", "", {})


def run(command: str, **fields: Any) -> Call:
    return "run_in_session", "BashAction", {"command": command, "timeout": 20, "check": "silent", **fields}


def execute(command: str | list[str], **fields: Any) -> Call:
    return "execute", "Command", {"command": command, "shell": isinstance(command, str), **fields}


def read(name: str, **fields: Any) -> Call:
    return "read_file", "ReadFileRequest", {"path": f"DIR/{name}", **fields}


def write(name: str, content: str) -> Call:
    return "write_file", "WriteFileRequest", {"path": f"DIR/{name}", "content": content}


def upload(source: str, target: str) -> Call:
    return "upload", "UploadRequest", {"source_path": f"DIR/{source}", "target_path": f"DIR/{target}"}


CASES: dict[str, list[Call]] = {
    "alive": [ALIVE],
    "wrong key": [ALIVE],
    "commands": [OPEN, run("echo hi"), run("x=5; false"), run("echo $x"), run("true", check="ignore")],
    "failed command": [OPEN, run("false", check="raise", error_msg="Oh no")],
    "syntax error": [OPEN, run("if; fi", check="raise")],
    "timeout": [OPEN, run("echo so far; sleep 30", timeout=0.5), INTERRUPT, run("echo on")],
    "session twice": [OPEN, OPEN],
    "no session": [run("true")],
    "dead session": [OPEN, run("exit 3"), run("true"), run("true")],
    "execute": [
        execute("echo out; echo err >&2; exit 3"),
        execute("echo out; echo err >&2", merge_output_streams=True),
        execute(["printf", "%s|", "a b", "$c"]),
        execute("echo $A; echo ${HOME:-none}; pwd", env={"A": "b"}, cwd="/"),
    ],
    "late": [execute("sleep 30", timeout=0.3)],
    "failed": [execute("exit 3", check=True, error_msg="Oh no")],
    "no program": [execute(["/no/such/program"])],
    "files": [write("new/deep/file.txt", TEXT), read("new/deep/file.txt"), execute(["cat", "DIR/new/deep/file.txt"])],
    "latin-1": [read("latin", encoding="latin-1")],
    "replaced": [read("latin", encoding="utf-8", errors="replace")],
    "surrogates": [read("latin", encoding="utf-8", errors="surrogateescape")],
    "undecodable file": [read("latin", encoding="utf-8")],
    "missing file": [read("it's not there")],
    "upload of a file": [upload("source", "target/new/file")],
    "upload of a tree": [upload("tree", "target/new")],
    "upload that merges": [upload("more", "target")],
    "upload of nothing": [upload("nothing", "target")],
    "closed": [OPEN, CLOSE, OPEN, CLOSE],
}


def luggage(root: Path) -> None:
    """Make what the cases read and bring."""
    (root / "latin").write_bytes(b"caf\xe9")
    for name, text, mode in (
        ("source", LARGE, 0o750),
        ("tree/bin/run.sh", "#!/bin/sh\n", 0o755),
        ("tree/a ü.txt", "text", 0o644),
        *((name, name.partition("/")[0], 0o644) for name in ("more/new", "more/both", "target/both", "target/old")),
    ):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
    (root / "tree" / "empty").mkdir()
    (root / "tree" / "link").symlink_to("bin/run.sh")


def look(root: Path) -> dict[str, str]:
    """Return everything below a directory, with the modes of files."""
    found = {}
    for path in sorted(root.rglob("*")):
        if path.is_symlink():
            what = f"-> {os.readlink(path)}"
        elif path.is_dir():
            what = "directory"
        else:
            what = f"{stat.S_IMODE(path.stat().st_mode):o} {path.read_text().replace(LARGE, 'large')}"
        found[str(path.relative_to(root))] = what
    return found


def raised(error: Exception) -> dict[str, Any]:
    """Return the parts of an error that callers look at."""
    told: dict[str, Any] = {"type": type(error).__name__, "text": str(error)}
    told["bases"] = [base.__name__ for base in type(error).__mro__[1:]]
    for name in ("output", "errno", "filename", "object", "start", "end"):
        told[name] = getattr(error, name, None)
    if info := getattr(error, "extra_info", None):
        told["extra"] = [sorted(info)[:2], "unexpected" in str(info)]
    return told


def answered(answer: Any) -> Any:
    """Return an answer's value, or a program's output and exit code."""
    if hasattr(answer, "is_alive"):
        return [answer.is_alive, answer.message and "401" in answer.message]
    for names in (("stdout", "stderr", "exit_code"), ("output", "exit_code"), ("content",)):
        if all(hasattr(answer, name) for name in names):
            return [getattr(answer, name) for name in names]
    return None


async def told(package: str, url: str, key: str, calls: list[Call], directory: Path) -> list[Any]:
    """Make the calls of a case, and tell what each came to."""
    api = importlib.import_module(f"{package}.runtime.abstract")
    runtime = importlib.import_module(f"{package}.runtime.remote").RemoteRuntime(auth_token=key, host=url, timeout=10.0)
    came = []
    for method, request, fields in calls:
        given = json.loads(json.dumps(fields).replace("DIR", str(directory)))
        try:
            work = getattr(runtime, method)(*([getattr(api, request)(**given)] if request else []))
            came.append(answered(await asyncio.wait_for(work, 60)))
        except Exception as error:
            came.append(raised(error))
    with contextlib.suppress(Exception):  # most have one, and some have lost it
        await runtime.close_session(api.CloseBashSessionRequest())
    return came


def main() -> None:
    package, url, key, place = sys.argv[1:]
    results = {}
    for name, calls in CASES.items():
        directory = Path(place, name)
        directory.mkdir()
        luggage(directory)
        # Every case in an event loop of its own, as callers do.
        used = "wrong" if name == "wrong key" else key
        came = asyncio.run(told(package, url, used, calls, directory))
        if name.startswith("upload"):
            came.append(look(directory / "target"))
        results[name] = json.loads(json.dumps(came, default=repr).replace(str(directory), "DIR"))
    print("\n" + json.dumps(results))


if __name__ == "__main__":
    main()
