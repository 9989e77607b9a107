"""Isolated views of this machine, made by a real bubblewrap."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from swerex_c.deployment.config import IsolationConfig, LocalDeploymentConfig, get_deployment
from swerex_c.deployment.local import LocalDeployment
from swerex_c.exceptions import DeploymentNotStartedError, InvalidInputError, PlaceLostError, SwerexException
from swerex_c.exec.bwrap import BwrapBackend
from swerex_c.runtime.abstract import BashAction, Command, CreateBashSessionRequest, ReadFileRequest, WriteFileRequest
from swerex_c.runtime.exec import ExecRuntime

from . import needs

ROOT = needs.ROOT


@pytest.fixture
def here() -> Iterator[Path]:
    """A directory that views show: pytest's own is in /tmp. Anybody may write to it."""
    parent = ROOT / ".cache"
    parent.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="view-", dir=parent))
    directory.chmod(0o777)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def run(backend: BwrapBackend, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        backend.pipes(["bash", "-c", script, "bash", *words], []),
        env=backend.environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


# Run by whoever; what comes out are the answers to `QUESTIONS` as JSON.
ASK = """
import json, os, subprocess, sys
from swerex_c.exec.bwrap import BwrapBackend
arguments, questions = json.loads(sys.argv[1]), json.loads(sys.argv[2])
backend = BwrapBackend(**arguments)
backend.open(60)
answers = {}
for name, script in questions.items():
    done = subprocess.run(backend.pipes(["bash", "-c", script], []), env=backend.environment(), text=True,
                          capture_output=True, timeout=60)
    answers[name] = [done.stdout.strip(), done.returncode, done.stderr.strip()]
backend.close()
print(json.dumps(answers))
"""

QUESTIONS = {
    "who": "id -u",
    "tmp": "ls -A /tmp /var/tmp; echo kept >/tmp/one; mkdir -m 700 /tmp/two; stat -c %a /tmp",
    "same": "cat /tmp/one; sleep 987 & kill -9 $!; ls -d /tmp/two",
    "background": "(trap '' HUP; cd {here}; exec sleep 988 </dev/null >/dev/null 2>&1) & echo $!",
    "processes": "cd /proc; for p in [0-9]*; do [[ $(tr '\\0' ' ' <$p/cmdline) == 'sleep 988 ' ]] && echo $p; done",
    "pids": "echo $(($(ls -d /proc/[0-9]* | wc -l) < 10))",
    "write": "echo x >/usr/bin/swx-test-file && cat /usr/bin/swx-test-file",
    "replace": "f=/usr/share/bug; rm -rf $f && mkdir $f && touch $f/new && ls -A $f",
    "remount": "mount -o remount,rw / || mount -o remount,bind,rw /usr || umount /tmp || unshare -m true",
    "sysctl": "echo 5 >/proc/sys/kernel/printk_ratelimit",
    "bound": "echo changed >{here}/bound/file; cat {here}/bound/file",
    "beside": "echo changed >{here}/beside; cat {here}/beside",
    "device": "echo x >/dev/null && head -c 3 /dev/zero | od -An -tx1; : >/dev/shm/x && echo shm",
    "signals": "trap; grep SigIgn /proc/self/status; yes | head -n 1; echo ${PIPESTATUS[0]}",
    "network": "cat /proc/net/dev | grep -c :",
    "exit": "exit 42",
    "killed": "kill -9 $$",
}


def ask(user: str, here: Path, **arguments: object) -> dict[str, list]:
    """The answers in a view that is made by this user: root, or one who may do nothing special."""
    questions = json.dumps({name: script.replace("{here}", str(here)) for name, script in QUESTIONS.items()})
    (here / "bound").mkdir(exist_ok=True)
    (here / "bound").chmod(0o777)
    (here / "beside").write_text("as it was\n")
    (here / "beside").chmod(0o666)
    words = [json.dumps({"writable": [str(here / "bound")], **arguments}), questions]
    if user == "root" or os.geteuid() != 0:
        argv, where, python_path = [sys.executable], str(ROOT), str(ROOT)
    else:
        # Neither the tree nor this Python need be open to others: they get a copy, and the system's Python.
        python_path = where = str(here / "package")
        shutil.copytree(
            ROOT / "swerex_c", here / "package/swerex_c", ignore=shutil.ignore_patterns("*.so", "__pycache__")
        )
        # In a view of theirs only what is their own can be changed in the layer.
        for path in (here, here / "beside"):
            os.chown(path, 65534, 65534)
        argv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "/usr/bin/python3"]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": python_path, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [*argv, "-c", ASK, *words], cwd=where, env=environment, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("root", ["read-only", "overlay"])
@pytest.mark.parametrize("user", ["root", "nobody"])
def test_a_view(bwrap: str, user: str, root: str) -> None:
    as_root = user == "root" and os.geteuid() == 0
    if user == "nobody" and os.geteuid() == 0:
        probe = "import sys; raise SystemExit(sys.version_info < (3, 11))"
        if subprocess.run(["/usr/bin/python3", "-c", probe], check=False).returncode:
            pytest.skip("this machine lacks a Python 3.11 for everybody, /usr/bin/python3")
    # Where nobody can go too. Private to the view: /tmp, so not there.
    where = Path(tempfile.mkdtemp(prefix="swx-view-test-", dir="/opt" if os.access("/opt", os.W_OK) else ROOT))
    where.chmod(0o777)
    try:
        answers = ask(user, where, root=root, network=False)
        layered = root == "overlay"
        assert answers["who"][0] == str(0 if as_root else 65534 if user == "nobody" else os.geteuid())
        assert answers["tmp"][0] == "/tmp:\n\n/var/tmp:\n1777"
        assert answers["same"][0] == "kept\n/tmp/two"
        assert answers["background"][0] == answers["processes"][0] != ""
        assert answers["pids"][0] == "1"
        assert (answers["write"][0] == "x") == (layered and as_root), answers["write"]
        assert (answers["replace"][0] == "new") == (layered and as_root), answers["replace"]
        assert answers["remount"][1] != 0 and answers["sysctl"][1] != 0
        assert answers["bound"][0] == "changed" == (where / "bound/file").read_text().strip()
        assert answers["beside"][0] == ("changed" if layered else "as it was"), answers["beside"]
        assert (where / "beside").read_text() == "as it was\n"
        assert answers["device"][0] == "00 00 00\nshm"
        assert answers["signals"][0].split() == ["SigIgn:", "0000000000000000", "y", "141"]
        assert answers["network"][0] == "1", "only the loopback device"
        assert needs.wait_until(lambda: not needs.mentioning(str(where)), 20), "it ends with all that is in it"
        assert answers["exit"][1] == 42 and answers["killed"][1] == 137
    finally:
        shutil.rmtree(where, ignore_errors=True)
    assert not os.path.exists("/usr/bin/swx-test-file")


async def test_an_isolated_local_deployment(bwrap: str, here: Path) -> None:
    isolation = IsolationConfig(writable=[str(here)], network=False, directory=str(here))
    deployment = get_deployment(LocalDeploymentConfig(isolation=isolation, startup_timeout=60))
    assert type(deployment) is LocalDeployment and not await deployment.is_alive()
    told: list[str] = []
    deployment.add_hook(type("Hook", (), {"on_custom_step": lambda self, it: told.append(it)})())
    await deployment.start()
    assert told == ["Making the isolated view", "Starting runtime"]
    runtime = deployment.runtime
    assert isinstance(runtime, ExecRuntime) and await deployment.is_alive(timeout=60)
    for name in ("one", "two"):
        await runtime.create_session(CreateBashSessionRequest(session=name, startup_timeout=60))
    said = await runtime.run_in_session(BashAction(session="one", command="pwd; echo a >/tmp/a", timeout=60))
    assert said.output == f"{here}\n"
    await runtime.write_file(WriteFileRequest(path="/tmp/b", content="b\n"))
    said = await runtime.run_in_session(BashAction(session="two", command="cat /tmp/a /tmp/b", timeout=60))
    assert said.output == "a\nb\n" and not os.path.exists("/tmp/a")
    assert (await runtime.read_file(ReadFileRequest(path="/tmp/a"))).content == "a\n"
    done = await runtime.execute(Command(command="cat /tmp/*; touch here; touch /x", shell=True, timeout=60))
    assert done.stdout == "a\nb\n" and "Read-only file system" in done.stderr and (here / "here").exists()
    await deployment.stop()
    await deployment.stop()
    assert not await deployment.is_alive()
    with pytest.raises(DeploymentNotStartedError):
        _ = deployment.runtime


async def test_a_view_that_ends(bwrap: str, here: Path) -> None:
    backend = BwrapBackend(writable=[here])
    runtime = ExecRuntime(backend)
    await runtime.open(60)
    await runtime.create_session(CreateBashSessionRequest(startup_timeout=60))
    script = f"echo >>{here}/begun; sleep 300"
    waiting = [
        asyncio.ensure_future(runtime.execute(Command(command=script, shell=True))),
        asyncio.ensure_future(runtime.run_in_session(BashAction(command=script, timeout=300))),
    ]
    for _ in range(3000):
        if (here / "begun").exists() and (here / "begun").read_text() == "\n\n":
            break
        await asyncio.sleep(0.02)
    assert backend._process is not None and backend._process.stdin is not None
    began = time.monotonic()
    backend._process.stdin.close()  # as when this process ends
    lost = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
    assert time.monotonic() - began < 20
    assert isinstance(lost[0], PlaceLostError) and "has ended" in str(lost[0])
    assert isinstance(lost[1], SwerexException) or getattr(lost[1], "failure_reason", "")
    assert not await runtime.is_alive(timeout=60)
    await runtime.close()


def test_a_view_ends_with_this_process(bwrap: str, here: Path) -> None:
    program = (
        "import subprocess, sys; from swerex_c.exec.bwrap import BwrapBackend;"
        "b = BwrapBackend(root='overlay', directory=sys.argv[1]); b.open(60);"
        "subprocess.Popen(b.pipes(['bash', '-c', 'echo up; exec setsid sleep 300'], []))\n;sys.stdin.read()"
    ).replace("\n;", "\n")
    owner = subprocess.Popen(
        [sys.executable, "-c", program, str(here)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert owner.stdout is not None and owner.stdout.readline() == b"up\n"
    assert needs.wait_until(lambda: bool(needs.mentioning(str(here))), 10)
    owner.kill()
    owner.wait()
    assert needs.wait_until(lambda: not needs.mentioning(str(here)), 30), needs.mentioning(str(here))
    owner.communicate()


def test_what_cannot_be_made_is_told(bwrap: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for bad in ({"writable": ["relative"]}, {"hidden": ["x"]}, {"directory": "."}):
        with pytest.raises(InvalidInputError, match="not an absolute path"):
            BwrapBackend(**bad)  # type: ignore[arg-type]
    backend = BwrapBackend()
    with pytest.raises(PlaceLostError, match="was not opened"):
        backend.pipes(["true"], [])
    cases = [
        (BwrapBackend(command="no-such-bwrap"), "no command 'no-such-bwrap'"),
        (BwrapBackend(writable=[here / "no"]), "does not exist"),
        (BwrapBackend(command="false"), "bwrap ended without a word"),
    ]
    for broken, words in cases:
        with pytest.raises(PlaceLostError, match=words):
            broken.open(60)
        broken.close()
    slow = here / "bwrap"
    slow.write_text("#!/bin/sh\nexec sleep 300\n")
    slow.chmod(0o755)
    with pytest.raises(PlaceLostError, match="took too long"):
        BwrapBackend(command=str(slow)).open(0.2)
    assert needs.wait_until(lambda: not needs.mentioning(str(slow)), 20)
    (here / "secret").write_text("secret")
    (here / "secrets").mkdir()
    (here / "secrets/one").touch()
    hidden = BwrapBackend(hidden=[here / "secret", here / "secrets", here / "none"])
    hidden.open(60)
    assert run(hidden, 'cat "$0/secret"; cat "$1/secret"; ls "$1/secrets"', str(here)).stdout == ""
    assert hidden.why_lost(10) is None
    hidden.close()
    hidden.close()
    assert "closed" in (hidden.why_lost(10) or "")


@pytest.mark.parametrize(
    ("fails", "words"),
    [(3, "No such file or directory"), (1, "Permission denied"), (99, "No such file or directory")],
)
def test_a_mount_that_goes_meanwhile_is_no_obstacle(bwrap: str, tmp_path: Path, fails: int, words: str) -> None:
    """It is tried again, a limited number of times, and only then."""
    count, command = tmp_path / "count", tmp_path / "bwrap"
    command.write_text(
        f"#!/bin/sh\necho >>{count}\n[ $(wc -l <{count}) -gt {fails} ] && exec {bwrap} \"$@\"\n"
        f"echo \"bwrap: Can't bind mount /a: Unable to apply mount flags: {words}\" >&2\nexit 1\n"
    )
    command.chmod(0o755)
    backend = BwrapBackend(command=str(command))
    try:
        if fails == 3:
            backend.open(60)
            assert run(backend, "echo in it").stdout == "in it\n"
        else:
            with pytest.raises(PlaceLostError, match=words):
                backend.open(60)
        assert len(count.read_text().splitlines()) == {3: 4, 1: 1, 99: 10}[fails]
    finally:
        backend.close()
