"""What a client sees of a server, case by case: run by the Python of either package, as a program of its own.

    python table.py PACKAGE URL KEY DIRECTORY [CASE ...]

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

    async def create(self, name: str = "default", **more: Any) -> Any:
        request = self.api.CreateBashSessionRequest(session=name, startup_timeout=20, **more)
        return await self.runtime.create_session(request)

    async def run(self, command: str, timeout: float = 20.0, check: str = "silent", **more: Any) -> Any:
        action = self.api.BashAction(command=command, timeout=timeout, check=check, **more)
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
async def alive_in_time(w: World) -> Any:
    """Within the time that both packages' clients have by default, on a machine that may be busy at times."""
    await w.runtime.is_alive()
    return any([bool(await w.runtime.is_alive(timeout=0.15)) for _ in range(5)])


@case
async def wrong_key(w: World) -> Any:
    answer = await w.make("wrong").is_alive()
    return [bool(answer), "401" in answer.message]


@case
async def echo(w: World) -> Any:
    await w.create()
    try:
        seen = await w.run("echo hi")
        return [seen.output, seen.exit_code]
    finally:
        await w.runtime.close_session(w.api.CloseBashSessionRequest())


@case
async def exit_codes_and_state(w: World) -> Any:
    await w.create()
    try:
        first = await w.run("x=5; false")
        second = await w.run("echo $x")
        ignored = await w.run("true", check="ignore")
        return [first.exit_code, second.output, ignored.exit_code]
    finally:
        await w.runtime.close_session(w.api.CloseBashSessionRequest())


@case
async def failed_command(w: World) -> Any:
    await w.create()
    try:
        return await caught(w.run("false", check="raise", error_msg="Oh no"))
    finally:
        await w.runtime.close_session(w.api.CloseBashSessionRequest())


@case
async def syntax_error(w: World) -> Any:
    await w.create()
    try:
        await w.run("if; fi", check="raise")
    except w.exceptions.BashIncorrectSyntaxError as error:
        extra = error.extra_info
        return [sorted(extra)[:2], "unexpected" in extra["bash_stderr"] + extra["bash_stdout"]]
    finally:
        await w.runtime.close_session(w.api.CloseBashSessionRequest())


@case
async def timeout_interrupt_and_on(w: World) -> Any:
    await w.create()
    try:
        seen = await caught(w.run("sleep 30", timeout=0.3))
        await w.runtime.run_in_session(w.api.BashInterruptAction())
        after = await w.run("echo on")
        return [seen["type"], seen["text"], after.output.endswith("on\n"), after.exit_code]
    finally:
        await w.runtime.close_session(w.api.CloseBashSessionRequest())


@case
async def partial_output(w: World) -> Any:
    await w.create()
    try:
        await w.run("echo so far; sleep 30", timeout=0.5)
    except w.exceptions.CommandTimeoutError as error:
        return getattr(error, "output", None)
    finally:
        await w.runtime.close_session(w.api.CloseBashSessionRequest())


@case
async def session_twice(w: World) -> Any:
    await w.create()
    try:
        return await caught(w.create())
    finally:
        await w.runtime.close_session(w.api.CloseBashSessionRequest())


@case
async def no_session(w: World) -> Any:
    return await caught(w.run("true"))


@case
async def dead_session(w: World) -> Any:
    await w.create()
    try:
        await caught(w.run("exit 3"))
        await caught(w.run("true"))
        seen = await caught(w.run("true"))
        return [seen["type"], "SwerexException" in seen["bases"] or "RuntimeError" in seen["bases"]]
    finally:
        await caught(w.runtime.close_session(w.api.CloseBashSessionRequest()))


@case
async def many_sessions(w: World) -> Any:
    async def one(i: int) -> str:
        await w.create(f"s{i}")
        action = w.api.BashAction(command=f"echo {i}", session=f"s{i}", timeout=30, check="silent")
        seen = await w.runtime.run_in_session(action)
        await w.runtime.close_session(w.api.CloseBashSessionRequest(session=f"s{i}"))
        return seen.output

    return await asyncio.gather(*(one(i) for i in range(6)))


@case
async def startup_source(w: World) -> Any:
    source = w.directory / "source.sh"
    source.write_text("sourced=yes\n")
    await w.create(startup_source=[str(source)])
    try:
        return (await w.run("echo $sourced")).output
    finally:
        await w.runtime.close_session(w.api.CloseBashSessionRequest())


@case
async def execute_streams(w: World) -> Any:
    apart = await w.execute("echo out; echo err >&2; exit 3")
    together = await w.execute("echo out; echo err >&2", merge_output_streams=True)
    return [apart.stdout, apart.stderr, apart.exit_code, together.stdout]


@case
async def execute_environment(w: World) -> Any:
    seen = await w.execute("echo $A; echo ${HOME:-none}; pwd", env={"A": "b"}, cwd="/")
    return seen.stdout


@case
async def execute_list(w: World) -> Any:
    return (await w.runtime.execute(w.api.Command(command=["printf", "%s|", "a b", "$c"]))).stdout


@case
async def execute_timeout(w: World) -> Any:
    return (await caught(w.execute("sleep 30", timeout=0.3)))["type"]


@case
async def execute_check(w: World) -> Any:
    return (await caught(w.execute("exit 3", check=True, error_msg="Oh no")))["type"]


@case
async def execute_missing_program(w: World) -> Any:
    return (await caught(w.runtime.execute(w.api.Command(command=["/no/such/program"]))))["type"]


@case
async def execute_stdin_is_at_its_end(w: World) -> Any:
    return (await w.execute("cat", timeout=10)).stdout


@case
async def many_at_once(w: World) -> Any:
    seen = await asyncio.gather(*(w.execute(f"echo {i}") for i in range(30)))
    return [answer.stdout for answer in seen]


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
async def directory_as_file(w: World) -> Any:
    return (await caught(w.runtime.read_file(w.api.ReadFileRequest(path=str(w.directory)))))["type"]


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
async def nobody_there(w: World) -> Any:
    runtime = w.remote.RemoteRuntime(auth_token="k", host="http://127.0.0.1", port=1, timeout=60)
    answer = await runtime.is_alive()
    return [bool(answer), bool(answer.message)]


@case
async def not_there_in_time(w: World) -> Any:
    runtime = w.remote.RemoteRuntime(auth_token="k", host="http://127.0.0.1", port=1, timeout=1)
    return (await caught(runtime.wait_until_alive(timeout=0.5)))["type"]


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
        await caught(world.runtime.close_session(world.api.CloseBashSessionRequest()))
        return f"{type(error).__name__}: {error}"


def main() -> None:
    package, url, key, directory, *names = sys.argv[1:]
    results = {}
    for name in names or CASES:
        place = Path(directory, name)
        place.mkdir()
        # Every case in an event loop of its own, as callers do, and on one runtime.
        world = World(package, url, key, place)
        results[name] = asyncio.run(run_one(CASES[name], world))
    print("\n" + json.dumps(results))


if __name__ == "__main__":
    main()
