"""The HTTP/JSON server, request by request."""

from __future__ import annotations

import asyncio
import functools
import http.client
import json
import os
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from swerex_c.remote.server.app import create_app
from swerex_c.remote.server.service import Service
from swerex_c.runtime.dummy import DummyRuntime
from tests.support import frames_tools
from tests.support.processes import memory_of
from tests.support.raw_http import Answer, ask, form
from tests.support.server_process import KEY, Server, serving
from tests.support.trees import zipped


@pytest.fixture(scope="module")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("small") / "log", "--max-body", "2000") as server:
        yield server


# The original's shapes

REQUESTS: list[tuple[str, str, Any]] = [
    ("GET", "/", None),
    ("GET", "/is_alive", None),
    ("POST", "/is_alive", None),
    ("GET", "/execute", None),
    ("GET", "/nowhere", None),
    ("POST", "/execute", {"command": "echo a; echo b >&2", "shell": True}),
    ("POST", "/execute", {"command": ["echo", "a"]}),
    ("POST", "/execute", {"command": "false", "shell": True, "unknown": 1}),
    ("POST", "/execute", {}),
    ("POST", "/execute", []),
    ("POST", "/execute", "text"),
    ("POST", "/execute", {"command": 3}),
    ("POST", "/execute", {"command": "x", "timeout": "soon"}),
    ("POST", "/execute", b""),
    ("POST", "/create_session", {}),
    ("POST", "/create_session", {"session_type": "zsh"}),
    ("POST", "/create_session", {"session_type": "bash", "session": "s", "startup_timeout": 20}),
    ("POST", "/create_session", {"session_type": "bash", "session": "s", "startup_timeout": 20}),
    ("POST", "/run_in_session", {"action_type": "bash", "session": "s", "command": "echo hi", "check": "silent"}),
    ("POST", "/run_in_session", {"action_type": "bash", "session": "s", "command": "true", "check": "loud"}),
    ("POST", "/run_in_session", {"action_type": "dance", "session": "s"}),
    ("POST", "/run_in_session", {"command": "true"}),
    ("POST", "/run_in_session", {"action_type": "bash", "session": "none", "command": "true"}),
    ("POST", "/close_session", {"session": "s", "session_type": "bash"}),
    ("POST", "/close_session", {"session": "s", "session_type": "bash"}),
    ("POST", "/read_file", {"path": "/no/such/file"}),
    ("POST", "/write_file", {"path": "/dev/null", "content": "x"}),
    ("POST", "/upload", None),
    ("POST", "/close", None),
]


def shape(answer: Answer) -> Any:
    """Return the part of a response that clients may rely on."""
    data = answer.json()
    if answer.status == 511:
        data["swerexception"].pop("traceback")
        data["swerexception"].pop("extra_info")
    if answer.status == 422:
        data = sorted((*problem["loc"],) for problem in data["detail"])
    if isinstance(data, dict):
        data.pop("output_dropped", None)
        data.pop("expect_string", None)
    return answer.status, answer.headers["content-type"].partition(";")[0], data


def test_answers_have_the_originals_shapes(our_server: Server, original_server: Server) -> None:
    different = []
    for verb, path, body in REQUESTS:
        headers = {"Content-Type": "application/json"} if body == b"" else {}
        ours, theirs = (ask(server, verb, path, body, headers) for server in (our_server, original_server))
        if path == "/create_session" and ours.status == theirs.status == 200:
            continue  # what a shell prints when it starts is the original's own affair
        if shape(ours) != shape(theirs):
            different.append((verb, path, body, shape(ours), shape(theirs)))
    assert not different


def test_a_request_for_another_process_is_refused(our_server: Server, tmp_path: Path) -> None:
    body = {"command": f"touch {tmp_path}/ran", "shell": True}
    answer = ask(our_server, "POST", "/execute", body, {"X-Swerex-Server": "0" * 32})
    assert answer.error["class_path"] == "swerex.exceptions.ServerRestartedError"
    assert not (tmp_path / "ran").exists()
    name = answer.headers["x-swerex-server"]
    assert ask(our_server, "POST", "/execute", body, {"X-Swerex-Server": name}).status == 200


def test_a_body_has_to_be_json_and_to_say_so(our_server: Server) -> None:
    valid, said = b'{"command": "true", "shell": true}', "application/json"
    kinds = [(kind, valid) for kind in ("text/plain", "application/x-www-form-urlencoded", "", "application/jsonp")]
    bodies = [b"{", b"\xff", b"[" * 100_000, b'{"command": "true"} x', b"nul", b"NaN", b'"\\ud800"']
    for kind, body in [*kinds, *((said, body) for body in bodies)]:
        answer = ask(our_server, "POST", "/execute", body, {"Content-Type": kind})
        assert answer.status == 422 and answer.json()["detail"], (kind, body[:30])
    assert ask(our_server, "POST", "/execute", valid, {"Content-Type": said}).status == 200


# Exactly once


def appending(path: Path, seconds: float = 0.0) -> dict[str, Any]:
    return {"command": f"echo run >> {path}; sleep {seconds}; echo done", "shell": True}


def test_an_id_runs_once(our_server: Server, tmp_path: Path) -> None:
    """Concurrent and later requests with the id get the same result. A request without an id runs each time."""
    name = str(uuid.uuid4()) * 10
    body, headers = appending(tmp_path / "runs", 0.3), {"X-Request-ID": f"{name}1"}
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: ask(our_server, "POST", "/execute", body, headers), range(8)))
    answers.append(ask(our_server, "POST", "/execute", body, headers))
    assert {answer.json()["stdout"] for answer in answers} == {"done\n"}
    assert (tmp_path / "runs").read_text() == "run\n"
    for more in ({"X-Request-ID": f"{name}2"}, {}, {}):
        assert ask(our_server, "POST", "/execute", body, more).json()["stdout"] == "done\n"
    assert (tmp_path / "runs").read_text() == "run\n" * 4
    other = ask(our_server, "POST", "/execute", appending(tmp_path / "other"), headers)  # as the original does
    assert other.json() == answers[0].json() and not (tmp_path / "other").exists()
    failing = {"command": f"echo run >> {tmp_path}/failed; false", "shell": True, "check": True}
    answers = [ask(our_server, "POST", "/execute", failing, {"X-Request-ID": name}) for _ in range(2)]
    assert answers[0].error == answers[1].error and (tmp_path / "failed").read_text() == "run\n"


# Limits


JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    "body",
    [
        b'{"command": "true %b", "shell": true}' % (b"x" * 3000),
        pytest.param([b'{"command": "', *[b"x" * 500] * 10, b'"}'], marks=pytest.mark.slow),  # does not say how large
        b"x" * 30_000_000,  # whoever is still sending can read the refusal
    ],
    ids=["large", "in chunks", "huge"],
)
def test_a_large_body_is_refused(small_server: Server, body: bytes | list[bytes]) -> None:
    answer = ask(small_server, "POST", "/execute", body if isinstance(body, bytes) else iter(body), JSON)
    assert answer.status == 413 and "2000 bytes" in answer.json()["detail"]
    small = iter([b'{"command": "tr', b'ue", "shell": true}'])
    assert ask(small_server, "POST", "/execute", small, JSON).status == 200


def test_the_default_limit_of_a_body(tmp_path: Path) -> None:
    with serving(tmp_path / "log") as server:  # not the shared one, whose memory is measured
        for size, status in ((64 << 20) + 1, 413), (64 << 20, 422):  # which is no JSON
            assert ask(server, "POST", "/execute", bytes(size), JSON).status == status


# Whatever runtime is behind it


class Broken(DummyRuntime):
    class Strange(Exception):
        pass

    warm = _config = "its own"

    async def is_alive(self, *, timeout: float | None = None) -> Any:
        raise self.Strange("odd")


async def test_key_and_runtime_may_be_replaced() -> None:
    async with frames_tools.serving(make=functools.partial(create_app, metrics=True)) as served:

        async def status(key: str, method: str = "GET", path: str = "/is_alive") -> int:
            return (await asyncio.to_thread(ask, served, method, path, key=key)).status

        assert await status(KEY) == 200
        served.place.AUTH_TOKEN = "secret"
        assert [await status(key) for key in (KEY, "secret")] == [401, 200]
        served.place.AUTH_TOKEN = ""
        assert [await status(key) for key in ("secret", "")] == [403, 403]
        served.place.AUTH_TOKEN, served.place.runtime = KEY, Broken()
        error = (await asyncio.to_thread(ask, served, "GET", "/is_alive")).error
        assert error["message"] == "odd" and error["class_path"].endswith("Strange")
        assert "Traceback" in error["traceback"]
        assert [await status(KEY, "GET", "/metrics"), await status(KEY, "POST", "/close")] == [200, 200]


async def test_the_application_works_below_a_prefix() -> None:
    def below(service: Service) -> Starlette:
        return Starlette(routes=[Mount("/below", create_app(service))])

    async with frames_tools.serving(make=below) as served:
        answer = await asyncio.to_thread(ask, served, "GET", "/below/is_alive")
        assert answer.json() == {"is_alive": True, "message": ""}
        assert (await asyncio.to_thread(ask, served, "GET", "/is_alive")).status == 404


# Files


def upload(server: Server, target: Path, name: str, content: bytes, unzip: bytes = b"") -> Answer:
    """Send a file as the original's client does."""
    parts = [("target_path", None, str(target).encode()), ("file", name, content)]
    return ask(server, "POST", "/upload", *form(*parts, *([("unzip", None, unzip)] if unzip else [])))


TARGET, FILE = ("target_path", None, b"/tmp/x"), ("file", "f", b"x")


@pytest.mark.parametrize(
    ("sent", "problem"),
    [
        (form(), ["body"]),
        (form(FILE), ["body", "target_path"]),
        (form(TARGET), ["body", "file"]),
        (form(TARGET, FILE, ("unzip", None, b"perhaps")), ["body", "unzip"]),
        (form(TARGET, FILE, FILE), ["body"]),
        *(
            ((body, {"Content-Type": "multipart/form-data; boundary=xyz"}), ["body"])
            for body in (
                b"",
                b"garbage",
                b'--xyz\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nunfinished',
                b"--xyz\r\n" + b"X" * 100_000,
                b"--xyz\r\n" + b"A: b\r\n" * 20_000,
            )
        ),
        ((b"{}", {"Content-Type": "application/json"}), ["body"]),
        ((b"x", {"Content-Type": "multipart/form-data"}), ["body"]),
        ((b"x", {"Content-Type": "multipart/form-data; boundary=" + "x" * 1000}), ["body"]),
        ((b"\xff\xfe", {"Content-Type": 'multipart/form-data; boundary=""'}), ["body"]),
    ],
    ids=range(14),
)
def test_an_upload_that_is_none_is_refused(our_server: Server, sent: Any, problem: list[str]) -> None:
    answer = ask(our_server, "POST", "/upload", *sent)
    assert answer.status == 422
    assert problem in [entry["loc"][: len(problem)] for entry in answer.json()["detail"]]
    assert ask(our_server, "GET", "/is_alive").status == 200


WHOLE = [("old", b"new", 0o644), ("other", b"y" * 1000, 0o644)]


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("entries", "end"),
    [
        *(
            ([("good", b"x", 0o644), (name, b"x", 0o644)], None)
            for name in ("../out", "/tmp/out", "a/../../out", "a/b/../../../out", "..", "a/..")
        ),
        ([("link", b"/tmp", 0o120777), ("link/out", b"x", 0o644)], None),
        ([("link/out", b"x", 0o644), ("link", b"/tmp", 0o120777)], None),
        ([("file", b"x", 0o644), ("file/in", b"x", 0o644)], None),
        ([("twice", b"x", 0o100644), ("twice", b"y", 0o100644)], None),
        ([("link", b"a\0b", 0o120777)], None),
        ([("link", b"", 0o120777)], None),
        ([("link", b"x" * 5000, 0o120777)], None),
        ([("fifo", b"", 0o010644)], None),
        ([("device", b"", 0o060644)], None),
        *((WHOLE, end) for end in (0, 10, 40, -30, -1)),
    ],
)
def test_an_archive_that_is_odd_or_damaged_changes_nothing(
    our_server: Server, tmp_path: Path, entries: Any, end: int | None
) -> None:
    target = tmp_path / "target"
    target.mkdir()
    (target / "old").write_text("old")
    answer = upload(our_server, target, "z", zipped(*entries)[:end], b"1")
    assert answer.error["class_path"].rpartition(".")[2] in ("InvalidInputError", "UploadError")
    assert os.listdir(target) == ["old"] and (target / "old").read_text() == "old"
    assert os.listdir(tmp_path) == ["target"]


def test_modes_and_links_of_an_archive_are_kept(our_server: Server, tmp_path: Path) -> None:
    target = tmp_path / "target"
    entries = [("d/", b"", 0o40750), ("d/run", b"#!", 0o100755), ("d/link", b"run", 0o120777), ("plain", b"x", 0)]
    assert upload(our_server, target, "z", zipped(*entries), b"true").status == 200
    assert os.stat(target / "d").st_mode & 0o777 == 0o750
    assert os.stat(target / "d" / "run").st_mode & 0o777 == 0o755
    assert os.readlink(target / "d" / "link") == "run"
    assert (target / "plain").read_bytes() == b"x"


def test_a_file_goes_into_a_directory_under_its_name(our_server: Server, tmp_path: Path) -> None:
    assert upload(our_server, tmp_path, "../name", b"x").status == 200
    assert os.listdir(tmp_path) == ["name"]


@pytest.mark.parametrize("target", ["text", "3", "[1]", '"\\u0000"', '""'])
def test_a_body_of_a_file_needs_a_target(our_server: Server, target: str) -> None:
    answer = ask(our_server, "POST", "/upload", b'{"kind": "file"}\nx', {"X-Swerex-Target": target})
    assert answer.status == (511 if target.startswith('"') else 422)


def test_a_large_file_is_never_in_memory(our_server: Server, tmp_path: Path) -> None:
    size = 150_000_000
    before = memory_of(our_server.process.pid)
    head, headers = form(("target_path", None, str(tmp_path / "f").encode()), ("file", "f", b"@"))
    begin, end = head.split(b"@")
    pieces = [begin] + [b"x" * 1_000_000] * (size // 1_000_000) + [end]
    length = str(sum(map(len, pieces)))
    connection = http.client.HTTPConnection("127.0.0.1", our_server.port, timeout=60)
    connection.request("POST", "/upload", iter(pieces), {**headers, "X-API-Key": KEY, "Content-Length": length})
    assert connection.getresponse().read() == b"{}"
    assert (tmp_path / "f").stat().st_size == size
    connection.request(
        "POST", "/download", json.dumps({"path": str(tmp_path / "f")}),
        {"X-API-Key": KEY, "Content-Type": "application/json"},
    )  # fmt: skip
    response = connection.getresponse()
    assert json.loads(response.readline())["size"] == size
    got = 0
    while data := response.read(1 << 20):
        got += len(data)
    connection.close()
    assert got == size
    assert memory_of(our_server.process.pid, "VmHWM") - before < 60_000_000
    (tmp_path / "f").unlink()
