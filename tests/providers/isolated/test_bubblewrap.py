"""Test isolated views of this machine with a real bubblewrap."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from swerex_c.exceptions import InvalidInputError, SandboxLostError
from swerex_c.providers.local.bubblewrap import BwrapBackend
from swerex_c.utils import background
from swerex_c.utils.background import run_blocking
from tests.support import needs
from tests.support.harness import write_script
from tests.support.original import run_python
from tests.support.processes import Family, ran
from tests.support.sandboxes import lost, working
from tests.support.wait import settle, until, until_async

ROOT = needs.ROOT


@pytest.fixture
def here() -> Iterator[Path]:
    """A world-writable directory that views show, unlike pytest's own, which is in /tmp."""
    parent = ROOT / ".cache"
    parent.mkdir(exist_ok=True)
    directory = Path(tempfile.mkdtemp(prefix="view-", dir=parent))
    directory.chmod(0o777)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


def run(backend: BwrapBackend, script: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = backend.command(["bash", "-c", script, "bash", *words], [], False)
    return ran(*command, env=backend.environment(), stdin=subprocess.DEVNULL)


# Run by whoever; what comes out are the answers to `QUESTIONS` as JSON.
ASK = """
import json, os, subprocess, sys
from swerex_c.providers.local.bubblewrap import BwrapBackend
from swerex_c.utils.background import run_blocking
arguments, questions = json.loads(sys.argv[1]), json.loads(sys.argv[2])
backend = BwrapBackend(**arguments)
run_blocking(backend.open(), 60)
answers = {}
for name, script in questions.items():
    done = subprocess.run(backend.command(["bash", "-c", script], [], False), env=backend.environment(), text=True,
                          capture_output=True, timeout=60)
    answers[name] = [done.stdout.strip(), done.returncode, done.stderr.strip()]
run_blocking(backend.close())
print(json.dumps(answers))
"""

QUESTIONS = {
    "who": "id -u",
    "where": "pwd",
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
    "network": "cat /proc/net/dev | grep -c :",
}


def ask(user: str, here: Path, **arguments: object) -> dict[str, list]:
    """Return the answers in a view that this user makes: root, or one without privileges.

    The first `chmod` in PATH does nothing.
    """
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
    write_script(here / "chmod", "")
    environment = {"PATH": f"{here}:{os.environ['PATH']}", "PYTHONPATH": python_path, "PYTHONDONTWRITEBYTECODE": "1"}
    done = ran(*argv, "-c", ASK, *words, seconds=100, cwd=where, env=environment)
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
        answers = ask(user, where, root=root, network=False, directory=str(where / "bound"))
        layered = root == "overlay"
        assert answers["who"][0] == str(0 if as_root else 65534 if user == "nobody" else os.geteuid())
        assert answers["where"][0] == str(where / "bound")
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
        assert answers["network"][0] == "1", "only the loopback device"
        until(lambda: not needs.mentioning(str(where)), "it ends with all that is in it")
    finally:
        shutil.rmtree(where, ignore_errors=True)
    assert not os.path.exists("/usr/bin/swx-test-file")


# What an attacker in a view looks for. Each line begins with what was tried; run outside, each finds the secret.
ATTACK = r"""
tell() { while IFS= read -r line; do echo "$1: $line"; done; }
seek() { grep -a -s "SEC[R]ET" | tell "$1"; }
env | seek environment
for p in /proc/[0-9]*; do tr '\0' '\n' <$p/environ; done 2>/dev/null | seek environ
for p in /proc/[0-9]*; do tr '\0' ' ' <$p/cmdline; echo; done 2>/dev/null | seek cmdline
cat ~/.ssh/id /proc/[0-9]*/root"$HOME"/.ssh/id 2>/dev/null | seek home
cat "$0/later" "$0/replaced" "$0/linked" /proc/[0-9]*/root"$0/replaced" 2>/dev/null | seek file
ls -A "$0/directory" 2>/dev/null | seek directory
cat "$0/tmp/replaced" 2>/dev/null | seek tmp
[ -e "$0/tmp/shown" ] || echo "tmp is not shown"
cat /proc/net/unix | seek abstract
find /run/ /var/run/ -type s 2>/dev/null | tell socket
cat /etc/shadow* /etc/gshadow* /var/backups/*shadow* 2>/dev/null | tell shadow
cat /etc/sudoers /etc/sudoers.d/* /etc/ssh/ssh_host_*_key 2>/dev/null | tell etc
"""
# And then what would change the view, or reach what it hides.
BREAKING = r"""
for what in /etc /run /tmp "$HOME" "$0/directory"; do umount $what || umount -l $what; done
mount -t proc proc /mnt; mount --bind /proc/1/root /mnt; unshare -m true; unshare -U true; chroot /proc/1/cwd true
mv /etc /etc.old; mv "$0/directory" "$0/moved"; rmdir "$HOME"
mknod /tmp/memory c 1 1 && head -c 1 /tmp/memory
kill -0 $1; ls /proc/$1/fd; nsenter -t 1 -m true
"""

# Changes what is hidden while the view is there, as an engine does that begins anew.
DRIVER = """
import json, os, socket, subprocess, sys
from swerex_c.providers.local.bubblewrap import BwrapBackend
from swerex_c.utils.background import run_blocking
here, arguments, attack, breaking = sys.argv[1:]
backend = BwrapBackend(**json.loads(arguments))
run_blocking(backend.open(), 60)
def put(name):
    with open(f"{here}/{name}.new", "w") as file:
        file.write("SECRET\\n")
    os.replace(f"{here}/{name}.new", f"{here}/{name}")
for name in ("replaced", "directory/SECRET", "later", "tmp/replaced"):
    put(name)
abstract = socket.socket(socket.AF_UNIX)
abstract.bind(f"\\0SECRET-{os.getpid()}")
abstract.listen()
def run(argv, script, **more):
    argv = [*argv, "bash", "-c", script, here, str(os.getpid())]
    return subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, **more).stdout
control = run([], attack)
enter = backend.command([], [], False)
inside = [run(enter, script, env=backend.environment()) for script in (attack, breaking, attack)]
run_blocking(backend.close())
print(json.dumps([control, *inside]))
"""


def told(output: str) -> set[str]:
    return {line.partition(":")[0] for line in output.splitlines()}


@pytest.mark.parametrize("root", ["read-only", "overlay"])
def test_an_attacker_finds_nothing_of_the_machine(bwrap: str, here: Path, tmp_path: Path, root: str) -> None:
    """Neither below /tmp, which is outside of the overlay."""
    home = here / "home"
    for directory in (home / ".ssh", here / "directory"):
        directory.mkdir(parents=True)
    (home / ".ssh/id").write_text("SECRET\n")
    (here / "replaced").write_text("SECRET\n")
    (here / "linked").symlink_to(home / ".ssh/id")
    (here / "later").touch()
    (tmp_path / "replaced").write_text("SECRET\n")
    (tmp_path / "shown").touch()
    (here / "tmp").symlink_to(tmp_path)
    hidden = [*(str(here / name) for name in ("replaced", "directory", "later")), str(tmp_path / "replaced")]
    arguments = {"root": root, "network": False, "shown": [str(here), str(tmp_path)], "hidden": hidden}
    words = [str(here), json.dumps(arguments), ATTACK, BREAKING]
    done = run_python(DRIVER, *words, HOME=str(home), API_KEY="SECRET")
    assert done.returncode == 0, done.stderr
    control, before, broken, after = json.loads(done.stdout)
    assert told(control) >= {"environment", "environ", "cmdline", "home", "file", "directory", "tmp", "abstract"}
    assert os.geteuid() or told(control) >= {"shadow", "etc"}, "root reads them"
    assert (before, broken, after) == ("", "", "")


def test_keys_of_the_user_are_out_of_reach(bwrap: str) -> None:
    first = {"x86_64": 248, "aarch64": 217}[platform.machine()]
    calls = [first, first + 1, first + 2, *([first + 2 + (1 << 30)] if first == 248 else [])]  # at last that of x32
    ask = f"[lib.syscall(number, 0, 0, 0, 0) and ctypes.get_errno() for number in {calls}]"
    program = f"import ctypes; lib = ctypes.CDLL(None, use_errno=True); print({ask})"
    backend = BwrapBackend(shown=[sys.base_prefix])
    run_blocking(backend.open(), 60)
    try:
        answer = run(backend, 'cat /proc/keys; "$@"', os.path.realpath(sys.executable), "-c", program)
        assert json.loads(answer.stdout) == [errno.EPERM] * len(calls)
    finally:
        run_blocking(backend.close())


@pytest.mark.parametrize("root", ["read-only", "overlay"])
def test_what_is_asked_for_is_shown(bwrap: str, here: Path, root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of nested paths, the longest applies."""
    for name in ("home/tools", "home/yard/private", "home/beside"):
        (here / name).mkdir(parents=True)
    for name in ("home/tools/tool", "home/yard/code", "home/yard/key", "home/yard/private/one", "home/beside/two"):
        (here / name).write_text(f"{name}\n")
    monkeypatch.setenv("HOME", str(here / "home"))
    monkeypatch.setenv("ASKED_FOR", "yes")
    monkeypatch.setenv("NOT_ASKED_FOR", "yes")
    backend = BwrapBackend(
        root=root,  # type: ignore[arg-type]
        shown=[here / "home/tools"],
        writable=[here / "home/yard"],
        hidden=[here / "home/yard/private", here / "home/yard/key"],
        variables=["ASKED_FOR"],
    )
    run_blocking(backend.open(), 60)
    try:
        script = 'cd "$1/home" && echo new >yard/code; find . -type f -size +0 | sort | xargs cat; env | grep ASK'
        seen = run(backend, script, str(here))
        assert seen.stdout == "home/tools/tool\nnew\nASKED_FOR=yes\n", seen
        assert (here / "home/yard/code").read_text() == "new\n"
    finally:
        run_blocking(backend.close())
    with pytest.raises(SandboxLostError, match="should be shown .* does not exist"):
        run_blocking(BwrapBackend(shown=[here / "no"]).open(), 60)


async def test_a_view_that_ends(bwrap: str, here: Path) -> None:
    backend = BwrapBackend(writable=[here])
    runtime, waiting = await working(backend, here / "begun")
    assert backend._process is not None
    await background.run(backend._process.end_input())  # as when this process ends
    await lost(waiting, "has ended")
    assert not await runtime.is_alive(timeout=60)
    await runtime.close()


ENDING = """
import os, subprocess, sys
from swerex_c.providers.local.bubblewrap import BwrapBackend
from swerex_c.utils.background import run_blocking
backend = BwrapBackend(root="overlay", directory=sys.argv[1])
run_blocking(backend.open())
inside = backend.command(["bash", "-c", "echo up; exec setsid sleep 300"], [], False)
print(subprocess.Popen(inside, stdout=subprocess.PIPE).stdout.readline(), flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_view_ends_with_this_process(bwrap: str, here: Path) -> None:
    assert run_python(ENDING, str(here)).stdout == "b'up\\n'\n"
    until(lambda: not needs.mentioning(str(here)))


def test_what_cannot_be_made_is_told(bwrap: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for bad in ({"writable": ["relative"]}, {"hidden": ["x"]}, {"directory": "."}):
        with pytest.raises(InvalidInputError, match="not an absolute path"):
            BwrapBackend(**bad)  # type: ignore[arg-type]
    backend = BwrapBackend()
    with pytest.raises(SandboxLostError, match="was not opened"):
        backend.command(["true"], [], False)

    def says(text: str) -> str:
        return write_script(here / f"says-{ord(text[0])}", f"echo '{text}' >&3; echo ready; read -r line")

    cases = [
        (BwrapBackend(command="no-such-bwrap"), "needs the command 'no-such-bwrap'"),
        (BwrapBackend(writable=[here / "no"]), "does not exist"),
        (BwrapBackend(command="false"), "bwrap ended without an error message"),
        *((BwrapBackend(command=says(text)), "does not report its processes, but b'") for text in ("?", "[]", "{}")),
    ]
    for broken, words in cases:
        with pytest.raises(SandboxLostError, match=words):
            run_blocking(broken.open(), 60)
        run_blocking(broken.close())
    (here / "all").symlink_to("/")
    for kind in ("writable", "shown", "hidden"):
        with pytest.raises(InvalidInputError, match=f"'/' as a whole {kind}"):
            run_blocking(BwrapBackend(**{kind: [here / "all"]}).open(), 60)  # type: ignore[arg-type]
    slow = write_script(here / "bwrap", "exec sleep 300")
    with pytest.raises(TimeoutError):
        run_blocking(BwrapBackend(command=slow).open(), 0.2)
    until(lambda: not needs.mentioning(slow))
    hidden = BwrapBackend(hidden=[here / "none"])
    run_blocking(hidden.open(), 60)
    assert run_blocking(hidden.why_lost(), 10) is None
    run_blocking(hidden.close())
    run_blocking(hidden.close())
    assert "closed" in (run_blocking(hidden.why_lost(), 10) or "")


@pytest.mark.parametrize(
    ("fails", "words"),
    [(3, "remount /a: Invalid argument"), (1, "Permission denied"), (99, "No such file or directory")],
)
def test_a_mount_that_goes_meanwhile_is_no_obstacle(bwrap: str, tmp_path: Path, fails: int, words: str) -> None:
    """Only this failure is tried again, a limited number of times."""
    count = tmp_path / "count"
    text = f'echo >>{count}\n[ $(wc -l <{count}) -gt {fails} ] && exec {bwrap} "$@"\n'
    text += f'echo "bwrap: Can\'t bind mount /a: Unable to apply mount flags: {words}" >&2\nexit 1'
    backend = BwrapBackend(command=write_script(tmp_path / "bwrap", text))
    try:
        if fails == 3:
            run_blocking(backend.open(), 60)
            assert run(backend, "echo in it").stdout == "in it\n"
        else:
            with pytest.raises(SandboxLostError, match=words):
                run_blocking(backend.open(), 60)
        assert len(count.read_text().splitlines()) == {3: 4, 1: 1, 99: 10}[fails]
    finally:
        run_blocking(backend.close())


async def test_a_view_whose_start_is_cancelled_leaves_nothing(bwrap: str, tmp_path: Path, family: Family) -> None:
    """bwrap is killed, or reports its processes after the cancellation."""
    gate, begun = tmp_path / "gate", tmp_path / "begun"
    command = write_script(tmp_path / "bwrap", f': >{begun}\nread -r line <{gate}\nexec {bwrap} "$@"')
    os.mkfifo(gate)
    opened = os.open(gate, os.O_RDWR)  # nobody may be left to read it
    opening = asyncio.ensure_future(BwrapBackend(command=command).open())
    await until_async(begun.exists)
    opening.cancel()
    await settle()
    os.write(opened, b"\n")
    os.close(opened)
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert not family.left()
