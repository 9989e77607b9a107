"""`swerex-c exec` and `shell` behind a server and in an isolated view. Containers and hosts: tests/providers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from swerex_c.cli.targets import find_target
from tests.support.cli import COMMAND, cli, results, start
from tests.support.person import Person
from tests.support.processes import Family, running
from tests.support.server_process import KEY, Server, serving
from tests.support.wait import until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "log") as one:
        yield one


def test_exec_behind_a_server(server: Server) -> None:
    def run(*arguments: str, input: str = "") -> tuple[str, str, int]:
        return results(cli("exec", "--host", server.url, *arguments, input=input, SWEREX_AUTH_TOKEN=KEY))

    assert server.post("/create_session", session="default", session_type="bash", startup_timeout=20).ok
    told = run('read x; echo "[$x] ${SWEREX_AUTH_TOKEN-none} $PPID"; exit 4', input="a")
    assert told == (f"[] none {server.process.pid}\n", "", 4)
    out, err, code = run("--stdin", "wc -c; ls /tmp/swerex-c-input-*", input="a\0b")
    assert (out.splitlines()[0], err, code) == ("3", "", 0)
    assert not os.path.exists(out.splitlines()[1])
    assert run("-t", "0.5", "echo early; sleep 100")[::2] == ("early\n", 124)
    done = server.post("/run_in_session", session="default", command="echo still here", action_type="bash")
    assert done.json()["output"] == "still here\n"  # its session is not of those that exec has ended


def test_exec_behind_a_server_ends_with_its_command(server: Server, family: Family) -> None:
    with start("exec", "--host", server.url, "echo up; sleep 100", SWEREX_AUTH_TOKEN=KEY) as process:
        assert process.stdout.readline() == "up\n"
        assert running("sleep 100")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 128 + signal.SIGTERM
    until(lambda: not running("sleep 100"))


def test_shell_behind_a_server_is_refused(server: Server) -> None:
    with Person("shell", "--host", server.url, command=COMMAND, SWEREX_AUTH_TOKEN=KEY) as person:
        person.until(rb"swerex-c: server has no terminal to open a shell in: use `swerex-c exec`")
        assert person.exit_code() == 2


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["--host", "http://127.0.0.1:1", "true"], "http://127.0.0.1:1 needs its key in the variable SWEREX"),
        (["--host", "x", "--image", "y", "true"], "not several"),
        (["--deployment", "{", "true"], "no JSON"),
        (["--deployment", "[]", "true"], "one of: "),
        (["--deployment", '{"type": "cloud"}', "true"], "one of: "),
        (["--deployment", '{"type": "local", "image": "x"}', "true"], "of type local: image"),
        (["--deployment", '{"type": "docker", "image": 3}', "true"], "image: "),
        (["--stdin", "-f", "-"], "stdin has the command"),
    ],
)
def test_wrong_targets(arguments: list[str], says: str) -> None:
    done = cli("exec", *arguments, SWEREX_AUTH_TOKEN="")
    assert (done.stdout, done.returncode) == ("", 2)
    assert says in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_server_that_is_none() -> None:
    done = cli("exec", "--host", "http://127.0.0.1:1", "true", SWEREX_AUTH_TOKEN=KEY)
    assert (done.stdout, done.returncode) == ("", 1)
    assert done.stderr.startswith("swerex-c: The server 127.0.0.1:1 cannot be reached")


def test_what_the_options_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    def data(*arguments: str | None) -> dict[str, object]:
        monkeypatch.setenv("SWEREX_AUTH_TOKEN", KEY)
        target = find_target(*arguments)  # type: ignore[arg-type]
        assert target is not None
        return target.config.model_dump(exclude_defaults=True)

    assert data("me@build", None, None) == {"host": "build", "user": "me"}
    assert data("unix:///a/b", None, None) == {"host": "unix:///a/b", "auth_token": KEY, "timeout": 30}
    assert "SWEREX_AUTH_TOKEN" not in os.environ
    assert data(None, "debian", None) == {"image": "debian"}
    assert data(None, None, '{"type": "local"}') == {}
    assert data(None, None, '{"type": "daytona", "target": "eu"}') == {"target": "eu"}
    assert find_target(None, None, None) is None
