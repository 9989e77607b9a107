"""Metrics of a server for Prometheus, and its log."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.support.frames_tools import encode, request
from tests.support.server_process import KEY, REMOTE, Server, ended, serving, upgrade
from tests.support.wait import until


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Return values by name and labels' values, as Prometheus reads them."""
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client is not installed")
    found = {}
    for family in parser.text_string_to_metric_families(text):
        for sample in family.samples:
            found[(sample.name, *(value for _, value in sorted(sample.labels.items(), reverse=True)))] = sample.value
    return found


def test_metrics_count_what_was_done(tmp_path: Path) -> None:
    with serving(tmp_path / "log", "--metrics") as server:
        server.post("/create_session", session_type="bash", session="a")
        for command in ("true", "sleep 0.3", "false"):
            server.post("/execute", command=command, shell=True)
        server.post("/execute", command="false", shell=True, check=True)
        server.post("/read_file", path="/no/such/file")
        answer = server.get("/metrics")
        assert answer.status_code == 200 and answer.headers["Content-Type"].startswith("text/plain")
        assert server.get("/metrics", headers={"X-API-Key": "wrong"}).status_code == 401
        found = samples(answer.text)
        counts = {("swerex_calls_total", "execute"): 4, ("swerex_calls_total", "close_session"): 0}
        counts |= {("swerex_call_errors_total", method): 1 for method in ("execute", "read_file")}
        counts |= {
            ("swerex_call_duration_seconds_bucket", "execute", most): n for most, n in (("0.25", 3), ("+Inf", 4))
        }
        counts |= {("swerex_sessions",): 1, ("swerex_requests_in_flight",): 0, ("swerex_connections",): 1}
        counts |= {("swerex_log_lines_dropped_total",): 0, ("swerex_call_duration_seconds_count", "execute"): 4}
        assert {name: found[name] for name in counts} == counts
        assert found["swerex_call_duration_seconds_sum", "execute"] >= 0.3
        assert found["process_resident_memory_bytes",] > 1e6

        with socket.create_connection(("127.0.0.1", server.port)) as wire:
            wire.sendall(upgrade())
            assert wire.recv(1000).startswith(b"HTTP/1.1 101 ")
            assert samples(server.get("/metrics").text)["swerex_connections",] == 2
        until(lambda: samples(server.get("/metrics").text)["swerex_connections",] == 1)

        answer = server.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        assert answer.text.endswith("# EOF\n")


@pytest.mark.parametrize(
    ("arguments", "module", "extra"),
    [(["--metrics"], "prometheus_client", "metrics"), (["--log-format", "json"], "pythonjsonlogger.json", "logs")],
)
def test_a_package_that_is_missing_is_named(tmp_path: Path, arguments: list[str], module: str, extra: str) -> None:
    says = rf"swerex-remote: {' '.join(arguments)} needs the package {module}, .*: pip install 'swerex-c\[{extra}\]'\n"
    command = [*REMOTE[:-1], f"import sys; sys.modules[{module!r}] = None; {REMOTE[-1]}"]
    done = ended("--auth-token", KEY, "--unix", str(tmp_path / "socket"), *arguments, command=command)
    assert (done.stdout, done.returncode) == ("", 1)
    assert re.fullmatch(says, done.stderr), done.stderr
    assert not (tmp_path / "socket").exists()


# The log


def make_some(server: Server) -> None:
    assert server.get("/is_alive", headers={"X-Request-ID": "id-7"}).status_code == 200
    server.post("/execute", command="echo secret-command", shell=True)
    server.post("/execute", command="echo secret-failure; false", shell=True, check=True)
    server.client.headers.update({"X-API-Key": "wrong-key", "X-Forwarded-For": "8.8.8.8"})
    assert server.get("/is_alive").status_code == 401
    with socket.create_connection(("127.0.0.1", server.port)) as wire:
        wire.sendall(upgrade())
        assert wire.recv(1000).startswith(b"HTTP/1.1 101 ")
        wire.sendall(encode(request(9, "read_file", {"path": "/no/such/file"})))
        assert b"No such file" in wire.recv(10000)


@pytest.mark.parametrize("level", ["info", "debug"])
def test_the_log_in_json_has_facts_and_no_secrets(tmp_path: Path, level: str) -> None:
    pytest.importorskip("pythonjsonlogger", reason="python-json-logger is not installed")
    with serving(tmp_path / "log", "--log-format", "json", "--log-level", level) as server:
        make_some(server)
        assert server.terminate() == 0
        found: list[dict[str, Any]] = [json.loads(line) for line in server.said().splitlines()]
        assert {"time", "level", "logger", "message"} <= set(found[0])
        requests = [record for record in found if "method" in record]
        facts = [
            ("GET /is_alive", "200", "DEBUG", "id-7"),
            ("POST /execute", "200", "DEBUG", None),
            ("POST /execute", "511", "INFO", None),
            ("GET /is_alive", "401", "INFO", None),
            ("read_file", "FileNotFoundError", "INFO", "9"),
        ]
        wanted = facts if level == "debug" else facts[2:]  # what succeeded is for debug
        assert [(r["method"], r["outcome"], r["level"], r.get("request_id")) for r in requests] == wanted
        assert all(record["seconds"] > 0 and record["client"].startswith("127.0.0.1:") for record in requests)
        assert [record["level"] for record in found if record.get("wire") == "frames"] == ["INFO"]
        assert KEY not in server.said()
        if level == "info":
            assert not any(secret in server.said() for secret in ("wrong-key", "secret-command", "secret-failure"))


def test_the_log_as_text_is_a_line_each(tmp_path: Path) -> None:
    with serving(tmp_path / "log", "--log-level", "error") as server:
        assert server.get("/metrics").status_code == 404, "only on demand"
        make_some(server)
        assert server.terminate() == 0
        assert server.said().count("\n") == 1 and "Listening on http://127.0.0.1:" in server.said()


# A download


def test_a_download_counts_while_it_runs(tmp_path: Path) -> None:
    with open(tmp_path / "large", "wb") as file:
        file.truncate(1 << 30)
    with serving(tmp_path / "log", "--metrics", "--graceful", "2") as server:

        def found(name: str) -> float:
            return samples(server.get("/metrics").text)[name, *(["download"] if name.startswith("swerex_call") else [])]

        def begin() -> socket.socket:
            body = json.dumps({"path": str(tmp_path / "large")}).encode()
            wire = socket.create_connection(("127.0.0.1", server.port))
            wire.sendall(
                f"POST /download HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEY}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            assert wire.recv(1000).startswith(b"HTTP/1.1 200 ")
            return wire

        with begin():
            assert found("swerex_requests_in_flight") == 1 and found("swerex_calls_total") == 0
        until(lambda: found("swerex_requests_in_flight") == 0)
        assert found("swerex_calls_total") == 1
        answer = server.post("/download", path=str(tmp_path / "log"))
        assert answer.status_code == 200
        assert found("swerex_calls_total") == 2
        assert found("swerex_call_errors_total") == 1, "the first one broke off"
        with begin():
            assert server.terminate() == 0
        assert "Traceback" not in server.said() and "Some requests did not end in time" in server.said()
