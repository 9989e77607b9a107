"""Root file systems and images that are made here: no registry is asked for anything.

    bash-only       /bin/bash, statically linked, and nothing else
    bash-min        that, and busybox under the names of its programs, but no tar
    ash-min         busybox alone: its shell is the only one
    debian-py       a small Debian (or what this machine is) with Python and git
    debian-rex      the same with the original's server installed
    swebench        the Debian as benchmarks have it: conda, a noisy .bashrc, a working directory, odd variables, a user

Trees are kept below .cache/places; only the Debian takes long to make.
"""

from __future__ import annotations

import fcntl
import io
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import needs

PREFIX = "swx-test"
CACHE = Path(os.environ.get("SWX_PLACES_CACHE", needs.ROOT / ".cache" / "places"))
DEBIAN_PACKAGES = "python3,python3-pip,git,procps,ca-certificates"
DEBIAN_SECONDS = 600
DEBIAN_PYTHON = "3.11"
ORIGINAL = ("swe-rex==1.4.0", "aiohttp")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def tag(name: str) -> str:
    return f"{PREFIX}/{name}"


# ---- trees ----------------------------------------------------------------------------------------------------------


class Tree:
    """A tar in memory."""

    def __init__(self) -> None:
        self._bytes = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._bytes, mode="w")

    def add(
        self, path: str, data: bytes = b"", *, kind: bytes = tarfile.REGTYPE, mode: int = 0o644, link: str = ""
    ) -> None:
        entry = tarfile.TarInfo(path)
        entry.type, entry.mode, entry.size, entry.linkname = kind, mode, len(data), link
        self._tar.addfile(entry, io.BytesIO(data))

    def directories(self, *paths: str) -> None:
        for path in paths:
            self.add(path, kind=tarfile.DIRTYPE, mode=0o1777 if path == "tmp" else 0o755)

    def whole(self) -> bytes:
        self._tar.close()
        return self._bytes.getvalue()


def static_program(name: str, package: str) -> bytes:
    """Return a program that runs where there is no other file."""
    data = Path(needs.program(name, package)).read_bytes()
    if b"/ld-linux" in data[:4096]:
        raise needs.Lacking(f"a statically linked {name} (Debian's package {package})")
    return data


def small(name: str) -> tuple[bytes, str]:
    """Return a root file system of at most two programs (bash-only, bash-min or ash-min) and its shell."""
    bash, busybox, tree = name.startswith("bash"), name.endswith("min"), Tree()
    tree.directories("bin", "dev", "etc", "home", "home/u", "proc", "root", "sys", "tmp")
    if bash:
        tree.add("bin/bash", static_program("bash-static", "bash-static"), mode=0o755)
    if busybox:
        path = needs.program("busybox", "busybox-static")
        tree.add("bin/busybox", static_program("busybox", "busybox-static"), mode=0o755)
        names = subprocess.run([path, "--list"], check=True, capture_output=True, text=True).stdout.split()
        for name in names:
            if name != "busybox" and not (bash and name in ("tar", "bash")):
                tree.add(f"bin/{name}", kind=tarfile.SYMTYPE, link="busybox")
    shell = "/bin/bash" if bash else "/bin/sh"
    tree.add("etc/passwd", f"root:x:0:0:root:/root:{shell}\nu:x:1000:1000::/home/u:{shell}\n".encode())
    tree.add("etc/group", b"root:x:0:\nu:x:1000:\n")
    return tree.whole(), shell


def apt_source() -> tuple[str, str]:
    """Return the address of this machine's packages and the name of its release."""
    release = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    form = "$(SITE) $(RELEASE) $(CREATED_BY)"
    known = subprocess.run(
        [needs.program("apt-get", "apt"), "indextargets", "--format", form], check=False, capture_output=True, text=True
    ).stdout
    for words in map(str.split, known.splitlines()):
        if words[1:] == [release, "Packages"]:
            return words[0], release
    raise needs.Lacking("a source of packages in apt's configuration")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def debian_tar() -> Path:
    """Return the tar of a small Debian, which is made once (in a minute or two) and then kept."""
    tar = CACHE / "debian-py.tar"
    with locked(CACHE / "debian-py.lock"):
        if not tar.exists():
            _make_debian(tar)
    return tar


def _make_debian(tar: Path) -> None:
    needs.root("debootstrap")
    needs.capability("CAP_MKNOD", "debootstrap")
    command = needs.program("debootstrap", "debootstrap")
    mirror, release = apt_source()
    directory, log = CACHE / "debian-py", CACHE / "debian-py.log"
    needs.remove(directory)
    environment = os.environ | {"PATH": needs.search_path(), "DEBIAN_FRONTEND": "noninteractive"}
    with log.open("wb") as out:
        done = subprocess.run(
            # It mounts /proc in the tree; where that stayed, whoever deletes the tree would reach into it.
            needs.alone(command, "--variant=minbase", f"--include={DEBIAN_PACKAGES}", release, str(directory), mirror),
            check=False,
            preexec_fn=lambda: needs.die_with_parent(signal.SIGKILL),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=environment,
            timeout=DEBIAN_SECONDS,
        )
    said = needs.tail(log)
    if done.returncode:
        needs.remove(directory)
        if "Failed getting release" in said or "Couldn't download" in said or "Unable to connect" in said:
            raise needs.Lacking(f"a connection to {mirror}, where packages come from")
        raise RuntimeError(f"debootstrap ended with {done.returncode}:\n{said}")
    for unneeded in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
        shutil.rmtree(directory / unneeded, ignore_errors=True)
    part = tar.with_suffix(".part")
    subprocess.run(["tar", "-C", str(directory), "--numeric-owner", "-cf", str(part), "."], check=True)
    needs.remove(directory)
    part.rename(tar)


# ---- the original's server ------------------------------------------------------------------------------------------

REX = f"FROM {tag('debian-py')}\nCOPY files /\n"

REX_COMMAND = b"""#!/usr/bin/python3
from swerex.server import main

main()
"""


def rex_files() -> Tree:
    """Return the original and its requirements, for the Python of the Debian."""
    target = CACHE / "debian-rex"
    with locked(CACHE / "debian-rex.lock"):
        if not (target / "ready").exists():
            needs.remove(target)
            wanted = ["--only-binary", ":all:", "--python-version", DEBIAN_PYTHON, "--target", str(target)]
            command = [sys.executable, "-m", "pip", "install", "-q", "--no-compile", *wanted, *ORIGINAL]
            done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=DEBIAN_SECONDS)
            if done.returncode:
                raise needs.Lacking(f"swe-rex from the package index: {done.stderr.strip()[-300:]}")
            (target / "ready").touch()
    tree = Tree()
    tree.add("files/usr/local/bin/swerex-remote", REX_COMMAND, mode=0o755)
    for path in sorted(target.rglob("*")):
        if path.is_file():
            where = path.relative_to(target)
            tree.add(f"files/usr/local/lib/python{DEBIAN_PYTHON}/dist-packages/{where}", path.read_bytes())
    return tree


# ---- what makes an image of a benchmark difficult -------------------------------------------------------------------

CONDA = b"""#!/bin/sh
# Answers like conda does, and as slowly.
sleep 0.1
if [ "$1 $2" = "shell.posix activate" ]; then
    name=${3:-base}
    cat <<END
PS1='($name) '"\\$PS1"
export PATH='/opt/conda/envs/$name/bin':"\\$PATH"
export CONDA_PREFIX='/opt/conda/envs/$name'
export CONDA_DEFAULT_ENV='$name'
END
fi
"""

BASHRC = rb"""# >>> conda initialize >>>
conda() {
    if [ "$1" = activate ]; then eval "$(/opt/conda/bin/conda shell.posix "$@")"; else /opt/conda/bin/conda "$@"; fi
}
# <<< conda initialize <<<
echo "Welcome to this image!"
echo "warning: something is out of date" >&2
export PS1='\[\e[1;32m\]\u@\h:\w\$\[\e[0m\] '
PROMPT_COMMAND='printf "\033]0;%s\007" "$PWD"'
alias ls='ls --color=always' grep='grep --color=always'
bind 'set enable-bracketed-paste on'
set -o emacs
HISTCONTROL=ignoreboth
conda activate testbed
"""

BENCHMARK = f"""FROM {tag("debian-py")}
COPY files /
RUN printf 'nonroot:x:1001:1001::/home/nonroot:/bin/bash\\n' >>/etc/passwd && \\
    printf 'nonroot:x:1001:\\n' >>/etc/group && chmod 755 /opt/conda/bin/conda && \\
    cd /testbed && git config --system safe.directory /testbed && git init -q && git add -A && \\
    git -c user.name=t -c user.email=t@example.org commit -qm begin && chown -R 1001:1001 /testbed /home/nonroot
ENV PATH=/opt/conda/bin:{PATH} CONDA_HOME=/opt/conda PIP_NO_INPUT=1 TZ=Etc/UTC
ENV ODD_VALUE="a 'b' \\"c\\" \\\\ d" ODD.NAME=dotted EMPTY_VALUE= LANG=C.UTF-8
ENV PS1="image> " HOME=/home/nonroot
USER nonroot
WORKDIR /testbed
ENTRYPOINT []
CMD ["/bin/bash"]
"""


def benchmark_files() -> Tree:
    tree = Tree()
    tree.add("files/opt/conda/bin/conda", CONDA, mode=0o755)
    tree.directories("files/opt/conda/envs/testbed/bin", "files/testbed", "files/home/nonroot")
    tree.add("files/opt/conda/envs/testbed/bin/python", kind=tarfile.SYMTYPE, link="/usr/bin/python3")
    tree.add("files/home/nonroot/.bashrc", BASHRC)
    tree.add("files/testbed/module.py", b"def add(a, b):\n    return a - b\n")
    return tree


# ---- images ---------------------------------------------------------------------------------------------------------

Client = Callable[..., str]
"""One call of an engine's client: `Engine.docker` or `Podman.run`."""


def _build(client: Client, name: str, dockerfile: str, files: Tree) -> None:
    provide(client, "debian-py")
    files.add("Dockerfile", dockerfile.encode())
    client("build", "-q", "--pull=false", "--network", "none", "-t", tag(name), "-", input=files.whole())


def provide(client: Client, name: str) -> str:
    """Make the image unless the engine has it; return its name for `docker run` or `podman run`."""
    if client("image", "ls", "-q", tag(name)):
        return tag(name)
    if name in ("bash-only", "bash-min", "ash-min"):
        tree, shell = small(name)
        client("import", "-c", f'CMD ["{shell}"]', "-c", "ENV PATH=/bin", "-", tag(name), input=tree)
    elif name == "debian-py":
        client("import", "-c", 'CMD ["/bin/bash"]', "-c", f"ENV PATH={PATH}", str(debian_tar()), tag(name))
    elif name == "debian-rex":
        _build(client, name, REX, rex_files())
    else:
        _build(client, name, BENCHMARK, benchmark_files())
    return tag(name)
