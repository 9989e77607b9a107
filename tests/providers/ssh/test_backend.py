"""Test hosts reached by ssh, with a real server."""

from __future__ import annotations

import asyncio
import gc
import getpass
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from swerex_c.deployment.ssh import SSHDeployment
from swerex_c.exceptions import (
    ConnectionLostError,
    InvalidInputError,
    ResourceError,
    SandboxLostError,
    SessionDiedError,
)
from swerex_c.providers.ssh.backend import SSHBackend
from swerex_c.runtime.abstract import Command
from swerex_c.runtime.sandbox import SandboxRuntime
from swerex_c.utils.background import run_blocking
from tests.contracts.test_program import ODD
from tests.support import harness, hosts, needs
from tests.support.cli import cli, results
from tests.support.original import run_python
from tests.support.processes import descendants
from tests.support.sandboxes import lost, ssh_backend, working
from tests.support.targets import Session
from tests.support.wait import until


@pytest.fixture
def own() -> Iterator[hosts.Sshd]:
    """A server that one test may change and crash."""
    with needs.started(hosts.Sshd) as place:
        yield place


@pytest.mark.parametrize("shell", ["sh", "bash", "zsh", "fish", "tcsh"])
def test_no_login_shell_sees_what_is_in_a_command(own: hosts.Sshd, shell: str) -> None:
    """The startup files print something."""
    forced = f'echo greeting; echo greeting >&2; exec {harness.needs(shell)} -c \\"$SSH_ORIGINAL_COMMAND\\"'
    key = (own.directory / "user_key.pub").read_text()
    (own.directory / "authorized").write_text(f'command="{forced}" {key}')
    backend = ssh_backend(own)

    def run(*argv: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
        command = backend.command(argv, [*variables, "MISSING"], False)
        environment = backend.environment() | variables
        return subprocess.run(command, env=environment, input=b"", capture_output=True, timeout=60)

    run_blocking(backend.open(), 60)
    try:
        words = (ODD, "", "-x", "@", "\\")
        script = 'printf "<%s>" "$ODD" "${EMPTY-unset}" "${MISSING-unset}" "$PS1" "$@"; exit 7'
        done = run("bash", "-c", script, "bash", *words, ODD=ODD, EMPTY="")
        said = done.stdout.decode()
        assert said == "greeting\n" + "".join(f"<{word}>" for word in (ODD, "", "unset", "", *words)), done.stderr
        assert (done.returncode, done.stderr) == (7, b"greeting\n")
        # A prompt reaches a program there, though shells here and there forget it.
        assert run("printenv", "PS1", PS1=ODD).stdout.decode() == f"greeting\n{ODD}\n"
    finally:
        run_blocking(backend.close())


@pytest.mark.parametrize("sh", ["dash", "bash", "busybox"])
def test_variables_are_found_by_every_sh(sh: str, tmp_path: Path) -> None:
    """A bash that is called as sh drops PS1 and PS2."""
    (tmp_path / "sh").symlink_to(harness.needs(sh))
    ssh = harness.write_script(tmp_path / "ssh", 'exec bash -c "${@: -1}"', "/bin/bash")
    backend = SSHBackend("nowhere", command=[ssh], share_connections=False)
    names = ["PS1", "PS2", "ODD"]
    argv = backend.command(["printenv", *names], names, False)
    argv[0] = str(tmp_path / "sh")
    environment = {"PATH": os.environ["PATH"], "PS1": f"1{ODD}", "PS2": "2\\$ ", "ODD": ODD}
    done = subprocess.run(argv, env=environment, capture_output=True, timeout=30, check=False)
    assert (done.stdout.decode(), done.stderr) == (f"1{ODD}\n2\\$ \n{ODD}\n", b"")


async def test_a_stop_ends_the_connections(sshd: hosts.Sshd) -> None:
    async with SSHDeployment(host=sshd.name, config_file=str(sshd.config), startup_timeout=120) as deployment:
        directory = deployment.runtime.sandbox.backend._directory  # type: ignore[attr-defined]
        assert needs.mentioning(directory)
    assert not os.path.exists(directory)
    until(lambda: not needs.mentioning(directory))


async def test_many_sessions_share_few_connections(own: hosts.Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default, a server allows ten sessions on a connection, and ten unauthenticated connections."""
    own.crash()
    monkeypatch.setattr(hosts, "SERVER", hosts.SERVER.replace("MaxSessions 100\nMaxStartups 100\n", ""))
    own.start()
    backend = ssh_backend(own)
    runtime = SandboxRuntime(backend)
    await runtime.open(120)
    sessions = [Session(runtime) for _ in range(30)]
    await asyncio.gather(*(it.create() for it in sessions))
    said = await asyncio.gather(*(it.run(f"echo {it.name} $PPID") for it in sessions))
    assert [it.output.split()[0] for it in said] == [it.name for it in sessions]
    assert 4 <= len(backend._connections) <= 8
    # Each process of the server that is a parent of shells is one connection: none of them had to be made singly.
    assert len({it.output.split()[1] for it in said}) <= len(backend._connections)
    await runtime.close()


async def test_a_server_that_crashes(own: hosts.Sshd) -> None:
    runtime, waiting = await working(ssh_backend(own), own.directory / "begun")
    own.crash()
    await lost(waiting, "Connection refused")
    alive = await runtime.is_alive(timeout=60)
    assert not alive and "out of reach" in alive.message
    with pytest.raises(SandboxLostError):
        await runtime.execute(Command(command=["true"]))
    own.start()  # and is there again, for what comes next
    assert await runtime.is_alive(timeout=60)
    assert (await runtime.execute(Command(command=["echo", "back"], timeout=60))).stdout == "back\n"
    await runtime.close()


@pytest.mark.parametrize("shared", [True, False])
async def test_a_connection_that_is_killed(sshd: hosts.Sshd, shared: bool) -> None:
    """No command gets the exit code of ssh, and the next one gets a new connection."""
    backend = ssh_backend(sshd, share_connections=shared)
    runtime, waiting = await working(backend, sshd.directory / f"begun-killed-{shared}")
    for pid in needs.mentioning(f"sshd: {getpass.getuser()}"):  # what serves connections here
        if sshd.daemon and pid in descendants(sshd.daemon.pid):
            os.kill(pid, signal.SIGKILL)
    await lost(waiting, kind=ConnectionLostError)
    with pytest.raises(SessionDiedError, match="connection"):
        await waiting[1]
    assert await runtime.is_alive(timeout=60)
    assert (await runtime.execute(Command(command=["echo", "on"], timeout=60))).stdout == "on\n"
    another = Session(runtime)
    await another.create()
    await another.gives("echo on", "on\n")
    await runtime.close()


async def test_the_exit_code_that_ssh_itself_has(sshd: hosts.Sshd) -> None:
    """While the connection exists, the code 255 is the shell's own."""
    runtime = SandboxRuntime(ssh_backend(sshd))
    await runtime.open(60)
    session = Session(runtime)
    await session.create()
    said = await session.run("echo bye; exit 255")
    assert said.output.startswith("bye\n") and said.exit_code == 255 and "status 255" in said.failure_reason
    with pytest.raises(ResourceError, match="has ended while the command ran"):  # its shell, by its own doing
        await runtime.execute(Command(command="kill -9 $PPID", shell=True, timeout=60))
    await runtime.close()


def test_why_a_host_is_out_of_reach(own: hosts.Sshd) -> None:
    with pytest.raises(InvalidInputError, match="is not a host name"):
        SSHBackend("-oProxyCommand=false")
    with pytest.raises(InvalidInputError, match="cannot contain a NUL"):
        SSHBackend("host", options=["User=\0"])
    strange = own.directory / "strange_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(strange)], check=True)
    config: dict[str, Any] = {"config_file": str(own.config)}
    known = own.directory / "another_known"
    known.write_text(f"[127.0.0.1]:{own.port} {(own.directory / 'user_key.pub').read_text()}")
    cases: list[tuple[SSHBackend, str]] = [
        (SSHBackend("127.0.0.1", port=1, options=["ConnectTimeout=5"], config_file="/dev/null"), "Connection refused"),
        (SSHBackend("no-such-host.invalid", config_file="/dev/null"), "ssh says: .*no-such-host.invalid"),
        (SSHBackend(own.name, options=[f"IdentityFile={strange}"], **config), None),  # a second key is tried
        (SSHBackend(own.name, config_file=str(own.directory / "no")), "ssh says: Can't open user config file"),
        (SSHBackend(own.name, command=["no-such-ssh"], **config), "'no-such-ssh' cannot be run"),
        (SSHBackend(own.name, options=["UserKnownHostsFile=/dev/null"], **config), "verification failed.*=accept-new"),
        (SSHBackend(own.name, options=[f"UserKnownHostsFile={known}"], **config), "key differs.*ssh-keygen -R"),
        (SSHBackend(own.name, user="no-one", **config), "Permission denied.*identity_file.*ssh-agent.*user"),
    ]  # type: ignore[list-item]
    for backend, words in cases:
        if words is None:
            run_blocking(backend.open(), 60)
        else:
            with pytest.raises(SandboxLostError, match=words):
                run_blocking(backend.open(), 60)
            lost = run_blocking(backend.why_lost(), 60)
            assert lost is not None and len(lost) < 900
            until(lambda it=backend: it._directory is None)
        run_blocking(backend.close())
    with pytest.raises(SandboxLostError, match="key file '~/no-key' .`identity_file`. does not exist"):
        run_blocking(SSHBackend(own.name, identity_file="~/no-key", **config).open(), 60)
    (own.directory / "authorized").write_text("")
    backend = ssh_backend(own)
    with pytest.raises(SandboxLostError, match="Permission denied"):
        run_blocking(backend.open(), 60)
    assert own.daemon is not None
    own.daemon.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(TimeoutError):
            run_blocking(backend.why_lost(), 1)
        with pytest.raises(TimeoutError):
            run_blocking(backend.open(), 1)
        until(lambda: backend._directory is None)
    finally:
        own.daemon.send_signal(signal.SIGCONT)


ENDING = """
import asyncio, os, sys
from swerex_c.providers.ssh.backend import SSHBackend
from swerex_c.runtime.abstract import Command, ReadFileRequest
from swerex_c.runtime.sandbox import SandboxRuntime
from tests.support import needs
from tests.support.wait import until_async
host, config, pipe, how = sys.argv[1:]
async def main():
    backend = SSHBackend(host, config_file=config)
    runtime = SandboxRuntime(backend)
    reading = asyncio.ensure_future(runtime.read_file(ReadFileRequest(path=pipe)))
    await runtime.execute(Command(command="setsid sleep 5000 >&- 2>&- &", shell=True))
    await until_async(lambda: any(script.note for script in runtime.sandbox._running))
    mark = runtime.sandbox.mark
    print(backend._directory, len(needs.mentioning(backend._directory)), mark, len(needs.mentioning(mark)), flush=True)
    os.kill(os.getpid(), 9) if how == "killed" else os._exit(0)
asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["killed", "exits"])
def test_all_that_was_started_ends_with_this_process(sshd: hosts.Sshd, tmp_path: Path, how: str) -> None:
    """Connections, and on the host a process in the background and a script that waits in its own shell."""
    os.mkfifo(tmp_path / "pipe")
    said = run_python(ENDING, sshd.name, str(sshd.config), str(tmp_path / "pipe"), how)
    directory, connections, mark, processes = said.stdout.split()
    assert int(connections) and int(processes) > 2
    until(lambda: not needs.mentioning(directory))
    until(lambda: not os.path.exists(directory))
    until(lambda: not needs.mentioning(mark))


async def test_what_was_started_ends_with_a_runtime_that_is_dropped(sshd: hosts.Sshd) -> None:
    runtime = SandboxRuntime(ssh_backend(sshd))
    await runtime.execute(Command(command="setsid sleep 5000 >&- 2>&- &", shell=True))
    mark, directory = runtime.sandbox.mark, runtime.sandbox.backend._directory  # type: ignore[attr-defined]
    assert needs.mentioning(mark) and needs.mentioning(directory)
    del runtime
    gc.collect()
    until(lambda: not needs.mentioning(mark))
    until(lambda: not os.path.exists(directory))


@pytest.mark.parametrize("ending", ["breaks", "takes too long"])
def test_connections_end_even_if_the_host_hangs(own: hosts.Sshd, tmp_path: Path, ending: str) -> None:
    """It hangs when they end what this process has started there, after the end of this process."""
    hung, path = tmp_path / "hung", os.environ["PATH"]
    forced = f'case \\"$SSH_ORIGINAL_COMMAND\\" in *spared*) touch {hung}; exec sleep 5000;; esac; '
    forced += 'exec bash -c \\"$SSH_ORIGINAL_COMMAND\\"'
    (own.directory / "authorized").write_text(f'command="{forced}" {(own.directory / "user_key.pub").read_text()}')
    if ending == "takes too long":  # the time is over as soon as it hangs
        sleep, path = harness.needs("sleep"), f"{tmp_path}:{path}"
        loop = f"until [ -e {hung} ]; do {sleep} 0.01; done"
        harness.write_script(tmp_path / "sleep", f'case $1 in 300) {loop};; *) exec {sleep} "$1";; esac')
    os.mkfifo(tmp_path / "pipe")
    said = run_python(ENDING, own.name, str(own.config), str(tmp_path / "pipe"), "killed", PATH=path)
    directory, connections, *_ = said.stdout.split()
    try:
        assert int(connections)
        if ending == "breaks":
            until(hung.exists)
            own.crash()
        until(lambda: not needs.mentioning(directory))
        until(lambda: not os.path.exists(directory))
    finally:
        needs.kill_all(str(own.directory))  # what the host still runs


@pytest.mark.slice
def test_exec(sshd: hosts.Sshd, tmp_path: Path) -> None:
    """Run `swerex-c exec` with an ssh whose configuration has the tests' server."""
    harness.write_script(tmp_path / "ssh", f'exec {sshd.argv[0]} -F {sshd.config} "$@"')
    path = f"{tmp_path}:{os.environ['PATH']}"
    host = f"{getpass.getuser()}@{sshd.name}"
    script = 'set -- $SSH_CONNECTION; read x; echo "$4 [$x]"; exit 4'
    assert results(cli("exec", "--host", host, script, input="a", PATH=path)) == (f"{sshd.port} []\n", "", 4)
    script = "sort; ls /tmp/swerex-c-input-*"
    out, err, code = results(cli("exec", "--host", sshd.name, "--stdin", script, input="b\na\n", PATH=path))
    assert (out.splitlines()[:2], err, code) == (["a", "b"], "", 0)
    assert not os.path.exists(out.splitlines()[2])
    data = json.dumps({"type": "ssh", "host": sshd.name, "config_file": str(sshd.config)})
    assert results(cli("exec", "--deployment", data, "echo hi")) == ("hi\n", "", 0)
