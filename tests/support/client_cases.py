"""What a client sees of a server, case by case: run by the Python of either package, as a program of its own.

    python client_cases.py PACKAGE URL KEY DIRECTORY

Prints one JSON object: what each case came to. An exception that a case does not catch stands for its result.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import stat
import sys
from pathlib import Path
from typing import Any

CASES: dict[str, Any] = {}


def case(function: Any) -> Any:
    CASES[function.__name__] = function
    return function


def in_session(function: Any) -> Any:
    """A case in a session that is there meanwhile."""

    async def work(w: World) -> Any:
        await w.create()
        try:
            return await function(w)
        finally:
            await caught(w.runtime.close_session(w.api.CloseBashSessionRequest()))

    CASES[function.__name__] = work
    return function


class World:
    """A runtime, the package's modules and a directory that client and server see."""

    def __init__(self, package: str, url: str, key: str, directory: Path):
        self.api = importlib.import_module(f"{package}.runtime.abstract")
        self.exceptions = importlib.import_module(f"{package}.exceptions")
        self.remote = importlib.import_module(f"{package}.runtime.remote")
        self.url = url
        self.runtime = self.make(key)
        self.directory = directory

    def make(self, key: str, timeout: float = 10.0) -> Any:
        return self.remote.RemoteRuntime(auth_token=key, host=self.url, timeout=timeout)

    async def create(self, name: str = "default") -> Any:
        request = self.api.CreateBashSessionRequest(session=name, startup_timeout=20)
        return await self.runtime.create_session(request)

    async def run(self, command: str, timeout: float = 20.0, check: str = "silent", error_msg: str = "") -> Any:
        action = self.api.BashAction(command=command, timeout=timeout, check=check, error_msg=error_msg)
        return await self.runtime.run_in_session(action)

    async def execute(self, command: str, **more: Any) -> Any:
        return await self.runtime.execute(self.api.Command(command=command, shell=True, **more))


async def caught(work: Any) -> dict[str, Any]:
    """What is raised, as far as callers look at it."""
    try:
        value = await work
    except Exception as error:
        return {"type": type(error).__name__, "text": str(error), "bases": [c.__name__ for c in type(error).__mro__]}
    return {"type": None, "value": repr(value)}


@case
async def alive(w: World) -> Any:
    answer = await w.runtime.is_alive()
    return [bool(answer), answer.message]


@case
async def wrong_key(w: World) -> Any:
    answer = await w.make("wrong").is_alive()
    return [bool(answer), "401" in answer.message]


@in_session
async def commands(w: World) -> Any:
    said = [await w.run(command) for command in ("echo hi", "x=5; false", "echo $x")]
    ignored = await w.run("true", check="ignore")
    return [*((answer.output, answer.exit_code) for answer in said), ignored.exit_code]


@in_session
async def failed_command(w: World) -> Any:
    return await caught(w.run("false", check="raise", error_msg="Oh no"))


@in_session
async def syntax_error(w: World) -> Any:
    try:
        await w.run("if; fi", check="raise")
    except w.exceptions.BashIncorrectSyntaxError as error:
        extra = error.extra_info
        return [sorted(extra)[:2], "unexpected" in extra["bash_stderr"] + extra["bash_stdout"]]


@in_session
async def timeout_interrupt_and_on(w: World) -> Any:
    seen = await caught(w.run("sleep 30", timeout=0.3))
    await w.runtime.run_in_session(w.api.BashInterruptAction())
    after = await w.run("echo on")
    return [seen["type"], seen["text"], after.output.endswith("on\n"), after.exit_code]


@in_session
async def partial_output(w: World) -> Any:
    try:
        await w.run("echo so far; sleep 30", timeout=0.5)
    except w.exceptions.CommandTimeoutError as error:
        return getattr(error, "output", None)


@in_session
async def session_twice(w: World) -> Any:
    return await caught(w.create())


@case
async def no_session(w: World) -> Any:
    return await caught(w.run("true"))


@in_session
async def dead_session(w: World) -> Any:
    await caught(w.run("exit 3"))
    await caught(w.run("true"))
    seen = await caught(w.run("true"))
    return [seen["type"], "SwerexException" in seen["bases"] or "RuntimeError" in seen["bases"]]


@case
async def execute(w: World) -> Any:
    apart = await w.execute("echo out; echo err >&2; exit 3")
    together = await w.execute("echo out; echo err >&2", merge_output_streams=True)
    words = await w.runtime.execute(w.api.Command(command=["printf", "%s|", "a b", "$c"]))
    elsewhere = await w.execute("echo $A; echo ${HOME:-none}; pwd", env={"A": "b"}, cwd="/")
    return [apart.stdout, apart.stderr, apart.exit_code, together.stdout, words.stdout, elsewhere.stdout]


@case
async def execute_errors(w: World) -> Any:
    late = caught(w.execute("sleep 30", timeout=0.3))
    failed = caught(w.execute("exit 3", check=True, error_msg="Oh no"))
    missing = caught(w.runtime.execute(w.api.Command(command=["/no/such/program"])))
    return [(await error)["type"] for error in (late, failed, missing)]


@case
async def files(w: World) -> Any:
    path = w.directory / "new" / "deep" / "file.txt"
    text = "a\nä €\t\U0001f600 \\ \" ' end"
    await w.runtime.write_file(w.api.WriteFileRequest(path=str(path), content=text))
    answer = await w.runtime.read_file(w.api.ReadFileRequest(path=str(path)))
    return [answer.content == text, path.read_text(encoding="utf-8") == text]


@case
async def encodings(w: World) -> Any:
    path = w.directory / "latin"
    path.write_bytes(b"caf\xe9")
    answer = await w.runtime.read_file(w.api.ReadFileRequest(path=str(path), encoding="latin-1"))
    replaced = await w.runtime.read_file(w.api.ReadFileRequest(path=str(path), encoding="utf-8", errors="replace"))
    return [answer.content, replaced.content]


@case
async def surrogates(w: World) -> Any:
    path = w.directory / "bytes"
    path.write_bytes(b"caf\xe9")
    request = w.api.ReadFileRequest(path=str(path), encoding="utf-8", errors="surrogateescape")
    try:
        return ascii((await w.runtime.read_file(request)).content)
    except Exception as error:
        return type(error).__name__


@case
async def missing_file(w: World) -> Any:
    path = str(w.directory / "it's not there")
    try:
        await w.runtime.read_file(w.api.ReadFileRequest(path=path))
    except FileNotFoundError as error:
        return [str(error).replace(str(w.directory), "D"), error.errno, error.filename == path]


@case
async def undecodable_file(w: World) -> Any:
    path = w.directory / "undecodable"
    path.write_bytes(b"ab\xff")
    try:
        await w.runtime.read_file(w.api.ReadFileRequest(path=str(path), encoding="utf-8"))
    except UnicodeDecodeError as error:
        return ["UnicodeDecodeError", error.object.decode("latin-1"), error.start, error.end]
    except Exception as error:
        return type(error).__name__


def look(root: Path) -> dict[str, str]:
    """Everything below a directory, with the modes of files."""
    found = {}
    for directory, names, files in os.walk(root):
        for name in names + files:
            path = Path(directory, name)
            relative = str(path.relative_to(root))
            if path.is_symlink():
                found[relative] = f"-> {os.readlink(path)}"
            elif path.is_dir():
                found[relative] = "directory"
            else:
                found[relative] = f"{stat.S_IMODE(path.stat().st_mode):o} {path.read_text()}"
    return dict(sorted(found.items()))


def tree(root: Path) -> Path:
    (root / "empty").mkdir(parents=True)
    (root / "bin").mkdir()
    (root / "bin" / "run.sh").write_text("#!/bin/sh\n")
    (root / "bin" / "run.sh").chmod(0o755)
    (root / "a ü.txt").write_text("text")
    (root / "a ü.txt").chmod(0o644)
    (root / "link").symlink_to("bin/run.sh")
    return root


@case
async def upload_file(w: World) -> Any:
    source = w.directory / "source file"
    source.write_text("x" * 3_000_000)
    source.chmod(0o750)
    target = w.directory / "up" / "target"
    await w.runtime.upload(w.api.UploadRequest(source_path=str(source), target_path=str(target)))
    return [target.read_text() == source.read_text(), f"{stat.S_IMODE(target.stat().st_mode):o}"]


@case
async def upload_tree(w: World) -> Any:
    source, target = tree(w.directory / "tree"), w.directory / "tree copy"
    await w.runtime.upload(w.api.UploadRequest(source_path=str(source), target_path=str(target)))
    return look(target)


@case
async def upload_merges(w: World) -> Any:
    source, target = w.directory / "more", w.directory / "merged"
    for directory, name in ((source, "new"), (source, "both"), (target, "both"), (target, "old")):
        directory.mkdir(exist_ok=True)
        (directory / name).write_text(directory.name)
        (directory / name).chmod(0o644)
    await w.runtime.upload(w.api.UploadRequest(source_path=str(source), target_path=str(target)))
    return look(target)


@case
async def upload_nothing(w: World) -> Any:
    request = w.api.UploadRequest(source_path=str(w.directory / "nothing"), target_path=str(w.directory / "t"))
    return (await caught(w.runtime.upload(request)))["type"]


@case
async def closed(w: World) -> Any:
    await w.create("last")
    await w.runtime.close()
    await w.create("last")
    await w.runtime.close()
    return True


async def run_one(function: Any, world: World) -> Any:
    try:
        return await asyncio.wait_for(function(world), 60)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def main() -> None:
    package, url, key, directory = sys.argv[1:]
    results = {}
    for name, function in CASES.items():
        place = Path(directory, name)
        place.mkdir()
        # Every case in an event loop of its own, as callers do, and on one runtime.
        world = World(package, url, key, place)
        results[name] = asyncio.run(run_one(function, world))
    print("\n" + json.dumps(results))


if __name__ == "__main__":
    main()
