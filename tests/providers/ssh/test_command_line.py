"""`swerex-c exec` and `shell` on a host, as a user runs them."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import hosts
from tests.support.original import our_environment
from tests.support.person import Person

COMMAND = [sys.executable, "-m", "swerex_c"]


@pytest.fixture
def reach(sshd: hosts.Sshd, tmp_path: Path) -> dict[str, str]:
    """An environment in which ssh has the tests' server in its configuration."""
    ssh = tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\nexec {sshd.argv[0]} -F {sshd.config} "$@"\n')
    ssh.chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}


def exec_on(reach: dict[str, str], *arguments: str, input: str = "") -> tuple[str, str, int]:
    environment = {**our_environment(), **reach}
    done = subprocess.run(
        [*COMMAND, "exec", *arguments], input=input, capture_output=True, text=True, timeout=100, env=environment
    )
    return done.stdout, done.stderr, done.returncode


@pytest.mark.slice
def test_exec(sshd: hosts.Sshd, reach: dict[str, str]) -> None:
    host = f"{getpass.getuser()}@{sshd.name}"
    out, err, code = exec_on(reach, "--host", host, 'set -- $SSH_CONNECTION; read x; echo "$4 [$x]"; exit 4', input="a")
    assert (out, err, code) == (f"{sshd.port} []\n", "", 4)
    out, err, code = exec_on(reach, "--host", sshd.name, "--stdin", "sort; ls /tmp/swerex-c-input-*", input="b\na\n")
    assert (out.splitlines()[:2], err, code) == (["a", "b"], "", 0)
    assert not os.path.exists(out.splitlines()[2])
    data = json.dumps({"type": "ssh", "host": sshd.name, "config_file": str(sshd.config)})
    assert exec_on({}, "--deployment", data, "echo hi") == ("hi\n", "", 0)


def test_shell(sshd: hosts.Sshd, reach: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("f() { echo started; }\nPS1='ready> '\n")
    arguments = ["shell", "--host", sshd.name, "-C", str(tmp_path), "--startup-source", str(tmp_path / "a file")]
    person = Person(*arguments, command=COMMAND, **reach)
    try:
        person.until(rb"ready> ", 60)
        person.keys(b'f; echo "$PWD"\r')
        person.until(b"started\r\n" + os.fsencode(tmp_path) + b"\r\n.*ready> ")
        person.keys(b"exit 5\r")
        assert person.exit_code() == 5
    finally:
        person.end()
