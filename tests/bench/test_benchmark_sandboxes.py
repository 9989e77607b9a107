"""What the benchmarks say of engines whose shells are elsewhere: right answers, wrong ones, missing engines."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

DIRECTORY = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def benchmarks() -> Iterator[None]:
    """The modules of the benchmarks, which are a program and no package."""
    sys.path.insert(0, str(DIRECTORY))
    yield
    sys.path.remove(str(DIRECTORY))


def places(engine: str) -> Any:
    return importlib.import_module("place_worker").Places(importlib.import_module("engines").make(engine))


def bench(directory: Path) -> Any:
    arguments = argparse.Namespace(seed=1, contenders=None, no_install=True)
    return importlib.import_module("bench").Bench(arguments, directory)


def on_a_server(path: str, protocol: Any, work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        server = await asyncio.get_running_loop().create_unix_server(protocol, path)
        await work()
        server.close()

    asyncio.run(main())


def test_the_bare_echo_is_checked_too(tmp_path: Path) -> None:
    floor = importlib.import_module("remote_floor")

    class Wrong(floor.Echo):  # type: ignore[misc, name-defined]
        def frame(self, frame: Any) -> None:
            super().frame([*frame[:2], "something else", {"command": "something else"}, *frame[4:]])

    async def ask() -> list[object]:
        engine = places("remote: echo")
        await engine.connect({"unix": str(tmp_path / "socket")}, "")
        found = [await engine.calls(what, 3, 1) for what in ("true", "alive")]
        found.append(await engine.in_flight("alive", 4, 3))
        engine.engine.end.transport.close()
        return [(it["count"], it["wrong"]) for it in found]

    for protocol, expected in ((floor.Echo, [(3, 0), (3, 0), (12, 0)]), (Wrong, [(3, 3), (3, 3), (12, 12)])):

        async def work(expected: Any = expected) -> None:
            assert await ask() == expected

        on_a_server(str(tmp_path / "socket"), protocol, work)
        (tmp_path / "socket").unlink(missing_ok=True)


def test_files_are_compared(tmp_path: Path) -> None:
    path, copy = tmp_path / "file", str(tmp_path / "copy")
    path.write_text("one line\nand another\n")

    async def moved(how: str, *, short: bool) -> object:
        engine = places("remote: no server")
        move, copied = engine.engine.move, engine.engine.copied

        async def cut(*arguments: str) -> str | None:
            return ((await move(*arguments)) or "")[:-1]

        async def cut_copy(copy: str) -> bytes:
            return bytes((await copied(copy))[:-1])

        if short:
            engine.engine.move, engine.engine.copied = cut, cut_copy
        return (await engine.transfer(how, str(path), copy, 2))["wrong"]

    for how in ("write", "read", "upload"):
        assert asyncio.run(moved(how, short=False)) == 0
        assert asyncio.run(moved(how, short=True)) == 2


def test_a_container_gives_back_what_was_written(tmp_path: Path) -> None:
    """The check asks the container, not what was sent to it."""
    container = importlib.import_module("engines.docker").Container

    class Forgetful(container):  # type: ignore[misc, valid-type]
        async def move(self, how: str, path: str, copy: str, content: str) -> str | None:
            return "what was there before" if how == "read" else None

    (tmp_path / "file").write_text("content")
    engine = importlib.import_module("place_worker").Places(Forgetful())
    answer = asyncio.run(engine.transfer("write", str(tmp_path / "file"), str(tmp_path / "copy"), 2))
    assert answer["wrong"] == 2


def test_a_line_with_a_wrong_answer_has_no_time() -> None:
    rows = importlib.import_module("rows")
    row = rows.Workload("key", "title", [rows.Turn("ours", {}), rows.Turn("other", {})], "other")
    right = {"count": 10, "wrong": 0, "samples_us": [1.0]}
    for number in range(2):
        row.keep("other", {**right, "round": number}, row.results)
        row.keep("ours", {**right, "round": number}, row.results)
        row.keep("ours", {**right, "round": number}, row.pinned_results)
    assert row.summary("ours")["ratio"] == row.summary("ours")["pinned_us"] == 1.0
    row.keep("ours", {**right, "wrong": 2, "round": 2}, row.results)
    row.keep("ours", {**right, "round": 3}, row.results)
    assert row.summary("ours") == {"error": "2 WRONG answers: no time", "wrong": 2}
    row.keep("other", {**right, "wrong": 1, "round": 4}, row.pinned_results)
    assert row.summary("other")["error"] == "1 WRONG answers: no time"


@pytest.mark.parametrize(
    ("engine", "named"),
    [
        ("remote: original", "no environment with the original"),
        ("docker: ours", "this machine lacks root"),
        ("remote: echo, uvloop", "no uvloop"),
    ],
)
def test_an_engine_that_is_missing_is_named_and_is_no_failure(
    engine: str, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.support import docker_engine
    from tests.support.needs import Lacking

    def lacking() -> None:
        raise Lacking("root, which a Docker engine needs")

    measure, rows = importlib.import_module("measure"), importlib.import_module("rows")
    monkeypatch.delenv("SWX_ORIGINAL_PYTHON", raising=False)
    monkeypatch.setattr(measure, "ROOT", tmp_path)
    monkeypatch.setattr(docker_engine, "check_machine", lacking)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    run = bench(tmp_path)
    row = rows.Workload("key", "title", [rows.Turn(engine, {}, "ours")], rounds=1)
    run.run(row)
    run.close()
    assert named in row.summary("ours")["error"]
    assert f"without {engine}: " in capsys.readouterr().err
    assert list(measure.our_errors(row, ("ours",), run.lacking)) == []
    assert [name for name, _ in measure.our_errors(row, ("ours",), set())] == ["ours"]


def test_a_row_that_needs_what_goes_on_beside_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measure, rows, servers = map(importlib.import_module, ("measure", "rows", "servers"))

    def broken(self: Any, name: str) -> None:
        raise measure.BenchError("does not start")

    monkeypatch.setattr(servers.Servers, "client", broken)
    run = bench(tmp_path)
    row = rows.Workload("key", "title", [rows.Turn("remote: ours", {})], rounds=1, beside="sessions")
    with pytest.raises(measure.BenchError, match="the load cannot be had: does not start"):
        run.run(row)
    assert run.lacking == set()


def test_every_case_of_a_place_has_an_engine_and_a_server() -> None:
    cases, extent = map(importlib.import_module, ("cases_places", "extent"))
    engines, servers = importlib.import_module("engines").ENGINES, importlib.import_module("servers")
    files = cases.Files(Path("/nowhere"))
    for row in cases.remote(extent.USUAL, files):
        assert not row.beside or row.beside in servers.BESIDE
        names = [turn.name for turn in row.turns]
        assert len(set(names)) == len(names)
        assert not row.baseline or set(row.baseline.split(" + ")) <= set(names)
        for turn in row.turns:
            place, _, name = turn.engine.partition(": ")
            assert place == "remote"
            assert f"remote: {servers.PLACES[name][0]}" in engines
    for row in cases.docker(extent.USUAL, files):
        assert row.baseline in [turn.name for turn in row.turns]
        assert {turn.engine for turn in row.turns} <= {*engines, "docker: bare C"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ours", "ours, unix", "ours, stdio", "ours, alone", "local", "echo, unix", "copy"])
def test_servers_are_started_for_their_clients(name: str, tmp_path: Path) -> None:
    run = bench(tmp_path)
    try:
        worker = run.contender(f"remote: {name}")
        (tmp_path / "file").write_text("line\n" * 1000)
        moved = {"how": "write", "path": str(tmp_path / "file"), "copy": str(tmp_path / "copy"), "count": 1}
        if name != "copy":
            found = worker.ask("calls", what="true", count=2, warm=1, cpus=[run.processor])
            assert (found["count"], found["wrong"], len(found["samples_us"])) == (2, 0, 2)
            assert name in ("ours, stdio",) or found["cpu_server_us"] > 0
        if name.startswith("ours"):
            assert worker.ask("printed", how="run", path=str(tmp_path / "file"), count=1)["wrong"] == 0
        if name.startswith(("ours", "copy")):
            assert worker.ask("transfer", **moved)["wrong"] == 0
    finally:
        run.close()
