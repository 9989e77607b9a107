"""The engine that runs containers, by its command line: what deployments ask of it, and what its refusals mean."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from swerex_c.deployment._exec import Effort, EffortEnded
from swerex_c.exceptions import DeploymentStartupError, DockerPullError
from swerex_c.exec.ask import Said, ask, kill_group, line_of

if TYPE_CHECKING:
    from swerex_c.exec.docker import DockerBackend

__all__ = ["Engine", "Listed", "shown"]

_ASK_SECONDS = 30.0
"""How long the engine may take for what needs no work, such as to tell what it has, and to end a container."""

_RUN_PATIENCE = 4.0
"""How long the start of a container that nobody wants any more may take, before it is not waited for."""

_LATE_SECONDS = 60.0
"""How long it is watched for then, in the background."""

_LATE_AT_EXIT_SECONDS = 5.0
"""The same when Python ends meanwhile."""

_LOG_LINES = 50
"""How many of the last lines of a container's output are told."""

_KEPT_OUTPUT = 256 << 10
"""Bytes that are kept of what a container in front prints."""

_TAIL_SECONDS = 2.0
"""How long the end of that is waited for."""

_NO_IMAGE = ("no such image", "unable to find image", "image not known", "no such object")
_NO_PROGRAM = ("executable file not found", "no such file or directory")
_NO_ENGINE = ("cannot connect to the docker daemon", "is the docker daemon running", "error during connect")
_RUNS = ("running", "paused", "restarting", "up")
_NO_CONTAINER = ("no such container", "no container with name or id")


@dataclass(frozen=True)
class Listed:
    """A container, as a list of the engine's has it."""

    id: str
    name: str
    image: str
    runs: bool
    labels: dict[str, str]


class Engine:
    """Docker or podman, as this process's environment reaches it now. Thread-safe; all methods block."""

    def __init__(self, runtime: str, environment: Mapping[str, str] | None = None) -> None:
        """
        Args:
            runtime: the command, "docker" or "podman".
            environment: what it gets; that of this process, as it is now, if None.
        """
        self.runtime = runtime
        self.environment = dict(os.environ if environment is None else environment)
        self.environment.setdefault("DOCKER_CLI_HINTS", "false")

    def ask(self, *words: str, effort: Effort | None = None, timeout: float | None = _ASK_SECONDS, **how: Any) -> Said:
        """One call of the command: a refusal is an answer too.

        Raises:
            DeploymentStartupError: if there is no such command.
            TimeoutError: if it does not answer in time.
        """
        argv = [self.runtime, *words]
        try:
            if effort is None:
                return ask(argv, environment=self.environment, timeout=timeout, **how)
            return effort.ask(argv, environment=self.environment, timeout=timeout, **how)
        except TimeoutError:
            raise
        except OSError as error:
            msg = f"The command {self.runtime!r} cannot be run ({error.strerror}): install it, or put it into the PATH"
            raise DeploymentStartupError(msg) from None

    def has_image(self, image: str, effort: Effort, platform: str | None = None) -> bool:
        """Whether the image is on this machine, and if a platform is given, for that."""
        said = self.ask("image", "inspect", "-f", "{{.Os}}/{{.Architecture}}", image, effort=effort)
        if said.code and (error := self._out_of_reach(said)):
            raise error
        return said.code == 0 and _fits(said.stdout.decode(errors="replace").strip(), platform)

    def pull(self, image: str, platform: str | None, effort: Effort) -> tuple[list[str], Said]:
        """Get the image from its registry: what was asked of the engine, and what it said.

        Raises:
            DeploymentStartupError: if the engine cannot be reached.
        """
        words = ["pull", *(["--platform", platform] if platform else []), image]
        with shown(f"Pulling {image}") as tell:
            said = self._tell(words, effort, tell, b"")
        if said.code and (error := self._out_of_reach(said)):
            raise error
        return words, said

    def build(self, words: Sequence[str], dockerfile: bytes, effort: Effort, what: str) -> str:
        """Build an image from a Dockerfile that uses no other file; its id.

        Raises:
            DeploymentStartupError: with the end of what the build said.
        """
        with shown(what) as tell:
            said = self._tell(["build", "-q", *words, "-"], effort, tell, dockerfile)
        lines = said.stdout.decode(errors="replace").split()
        image = lines[-1] if lines else ""
        if said.code or not image:
            text = (said.stdout + b"\n" + said.stderr).decode(errors="replace").strip()[-4000:]
            raise self._out_of_reach(said) or DeploymentStartupError(f"{what} failed: {text or said.words}")
        return image

    def _tell(self, words: Sequence[str], effort: Effort, tell: Any, input: bytes) -> Said:
        """Run something that takes long, and tell of each line that it prints."""
        effort.check()
        argv = [self.runtime, *words]
        if tell is None:
            return self.ask(*words, effort=effort, timeout=None, input=input)
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,
            )
        except OSError as error:
            raise DeploymentStartupError(f"The command {self.runtime!r} cannot be run ({error.strerror})") from None
        printed = bytearray()
        try:
            effort.watch(process)
            assert process.stdin is not None and process.stdout is not None
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(input)
            for line in process.stdout:
                printed += line
                tell(line.decode(errors="replace").strip())
            code = process.wait(_ASK_SECONDS)
        finally:
            effort.watch(None)
            kill_group(process)
            if process.stdout is not None:
                process.stdout.close()
        effort.check()
        return Said(code, bytes(printed), b"")

    def run(self, words: Sequence[str], effort: Effort) -> Said:
        """Start a container in the background.

        Args:
            words: options of `run`, the image, and the command in it.

        Raises:
            EffortEnded, StartupTimeoutError: whether there is a container now is not known then.
        """
        return self._make(["run", "-d", *words], effort)

    def is_docker(self) -> bool:
        """Whether the command is Docker's own client, and not a script or podman under its name."""
        path = shutil.which(self.runtime, path=self.environment.get("PATH")) if self.runtime == "docker" else None
        if path is None or os.path.basename(os.path.realpath(path)) == "podman":
            return False
        try:
            with open(path, "rb") as file:
                return file.read(2) != b"#!"
        except OSError:
            return False

    def run_greeted(self, words: Sequence[str], effort: Effort, greeting: bytes) -> tuple[Said, str]:
        """The same, until the container has printed a line that begins with the greeting: what it printed, and its id.

        For Docker alone, whose client only asks for what another process does: it is killed then, and the container
        goes on. Podman does it all by itself, and has to come to its end. Where the engine's client
        cannot tell this process the id it is empty.
        """
        with tempfile.TemporaryDirectory(prefix="swerex-c-") as directory:
            file = Path(directory) / "id"
            words = ["run", "-a", "stdout", "--cidfile", str(file), *words]
            said = self.ask(*words, effort=effort, timeout=None, patience=_RUN_PATIENCE, until=greeting)
            try:
                return said, file.read_text().strip()
            except OSError:  # a client that does not see the directories of this process
                return said, ""

    def create(self, words: Sequence[str], effort: Effort) -> Said:
        """Make a container that is not started yet, as `run` does."""
        return self._make(["create", *words], effort)

    def _make(self, words: Sequence[str], effort: Effort) -> Said:
        return self.ask(*words, effort=effort, timeout=None, patience=_RUN_PATIENCE)

    def made(self, said: Said, image: str) -> str:
        """The id of the container that was made, from what `run` or `create` said.

        Raises:
            DockerPullError: if the image is not on this machine.
            DeploymentStartupError: for everything else.
        """
        lines = said.stdout.decode(errors="replace").split()
        if said.code == 0 and lines:
            return lines[-1]
        raise self._refused(said, image)

    def greeting(self, said: Said, greeting: bytes, image: str) -> bytes:
        """What is behind the greeting that `run_greeted` has waited for.

        Raises:
            DockerPullError, DeploymentStartupError: as `made`.
        """
        words = line_of(said.stdout, greeting)
        if words is None:
            raise self._refused(said, image)
        return words

    def attached(self, container: str) -> subprocess.Popen[bytes]:
        """Start a container that was made, in front: the process ends with it. Its output can be read when it has.

        `stdout` and `stderr` of the process are read all the time, so that the container never waits for a reader;
        their `read()` gives what was kept, which is the end.

        Raises:
            DeploymentStartupError: if there is no such command.
        """
        try:
            process = subprocess.Popen(
                [self.runtime, "start", "-a", container],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self.environment,
                start_new_session=True,
            )
        except OSError as error:
            raise DeploymentStartupError(f"The command {self.runtime!r} cannot be run ({error.strerror})") from None
        process.stdout = cast(Any, Tail(process.stdout))
        process.stderr = cast(Any, Tail(process.stderr))
        return process

    def _refused(self, said: Said, image: str) -> DeploymentStartupError:
        """What a `run` or a `create` that was refused says."""
        words = said.words.replace(" Run 'docker run --help' for more information", "")
        lower = words.lower()
        if any(sign in lower for sign in _NO_IMAGE):
            msg = f"There is no image {image!r} on this machine, and it is not pulled: {words}"
            return DockerPullError(msg)
        if "bash" in lower and any(sign in lower for sign in _NO_PROGRAM):
            msg = f"The image {image!r} has no bash, which sessions need: install bash in it, or take another image"
            return DeploymentStartupError(f"{msg} ({words})")
        return self._out_of_reach(said) or DeploymentStartupError(f"The container could not be started: {words}")

    def _out_of_reach(self, said: Said) -> DeploymentStartupError | None:
        words = said.words
        if any(sign in words.lower() for sign in _NO_ENGINE):
            return DeploymentStartupError(f"The engine of {self.runtime!r} cannot be reached: {words}")
        return None

    def remove(self, *containers: str) -> str | None:
        """End and remove containers, with the volumes that only they have; None, or why it failed."""
        at_once = ["-t", "0"] if self.runtime == "podman" else []
        return self._gone(["rm", "-f", "-v", *at_once], containers)

    def kill(self, *containers: str) -> str | None:
        """End containers and keep them; None, or why it failed."""
        return self._gone(["kill"], containers)

    def _gone(self, words: Sequence[str], containers: Sequence[str]) -> str | None:
        try:
            said = self.ask(*words, *containers)
        except (TimeoutError, DeploymentStartupError) as error:
            return str(error)
        lower = said.words.lower()
        if said.code and "already in progress" in lower:  # as of one that has just ended by itself
            deadline = time.monotonic() + _ASK_SECONDS
            while any(map(self.exists, containers)) and time.monotonic() < deadline:
                time.sleep(0.05)
            return None
        gone = (*_NO_CONTAINER, "is not running", "can only kill running")
        return None if said.code == 0 or any(sign in lower for sign in gone) else said.words

    def logs(self, container: str) -> str:
        """The end of what a container has printed; or that this is not known, in brackets."""
        try:
            said = self.ask("logs", "--tail", str(_LOG_LINES), container)
        except (TimeoutError, DeploymentStartupError) as error:
            return f"({error})"
        if said.code:
            return f"({said.words})"
        return (said.stdout + said.stderr).decode(errors="replace").strip()[-4000:] or "(nothing)"

    def remove_late(self, name: str) -> None:
        """Have a container removed whenever it is made, in the next minute: one that was asked for, without an answer.

        Returns at once. When Python ends meanwhile it waits some seconds for that.
        """
        thread = threading.Thread(target=self._remove_late, args=(name,), name="late-container", daemon=True)
        _late.append(thread)
        thread.start()

    def _remove_late(self, name: str) -> None:
        deadline = time.monotonic() + _LATE_SECONDS
        try:
            while time.monotonic() < deadline:
                if self.exists(name) and self.remove(name) is None:
                    forget(name)
                    return
                time.sleep(0.5)
        finally:
            _late.remove(threading.current_thread())

    def exists(self, container: str) -> bool:
        """Whether there is such a container, in whatever state. False if the engine does not say."""
        return self.has(container, _ASK_SECONDS) is True

    def has(self, container: str, timeout: float) -> bool | None:
        """The same; None if the engine does not say within `timeout` seconds."""
        with contextlib.suppress(TimeoutError, DeploymentStartupError):
            said = self.ask("container", "inspect", "-f", "{{.Id}}", container, timeout=timeout)
            if said.code == 0 or any(sign in said.words.lower() for sign in _NO_CONTAINER):
                return said.code == 0
        return None

    def never_ran(self, container: str) -> bool:
        """Whether a container is there that was made, but could not be started. False if the engine does not say."""
        with contextlib.suppress(TimeoutError, DeploymentStartupError):
            said = self.ask("container", "inspect", "-f", "{{.State.Status}}", container)
            return said.code == 0 and said.stdout.strip().lower() in (b"created", b"configured", b"initialized")
        return False

    def labelled(self, label: str, facts: Sequence[str]) -> list[Listed]:
        """All containers that have a label, in whatever state, with what some labels of theirs say.

        It is one list of the engine's, so that a container that hangs does not hide the others.

        Raises:
            DeploymentStartupError: if the engine cannot be reached.
            TimeoutError: if it does not answer.
        """
        # As JSON, because a label may hold whatever separates fields and lines.
        of = '{{{{json (.Label "{}")}}}}' if self.runtime == "docker" else '{{{{json (index .Labels "{}")}}}}'
        fields = ["{{.ID}}", "{{.Names}}", "{{.Image}}", "{{.State}}", *(of.format(fact) for fact in facts)]
        form = "\t".join(fields)
        said = self.ask("ps", "-a", "--no-trunc", "--filter", f"label={label}", "--format", form)
        if said.code:
            raise self._out_of_reach(said) or DeploymentStartupError(f"`{self.runtime} ps` failed: {said.words}")
        found = []
        for line in said.stdout.decode(errors="replace").splitlines():
            id, name, image, state, *values = line.split("\t")
            told = {fact: json.loads(value) for fact, value in zip(facts, values, strict=True) if value != '""'}
            found.append(Listed(id, name, image, state.lower().startswith(_RUNS), told))
        return found

    def backend(self, container: str, name: str) -> DockerBackend:
        """How commands run in a container."""
        from swerex_c.exec.docker import DockerBackend, PodmanBackend

        kind = PodmanBackend if self.runtime == "podman" else DockerBackend
        return kind(container, name=name, environment=self.environment)


def _fits(has: str, platform: str | None) -> bool:
    """Whether an image for `has` is one for the platform, as far as their names tell: not all are compared."""
    has_system, _, has_machine = has.lower().partition("/")
    system, _, machine = (platform or "").lower().partition("/")
    machine = machine.partition("/")[0]
    machine = {"x86_64": "amd64", "x86-64": "amd64", "aarch64": "arm64"}.get(machine, machine)
    return not (machine and has_machine) or (system, machine) == (has_system, has_machine)


class Tail:
    """Reads a stream to its end in a thread, and keeps the last of it."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._kept = bytearray()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._read, name="container-output", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._stream:
            while data := self._stream.read1(65536):
                with self._lock:
                    self._kept += data
                    del self._kept[:-_KEPT_OUTPUT]

    def read(self, size: int = -1) -> bytes:
        """What was kept and not read yet; waits a moment for the end of the stream."""
        self._thread.join(_TAIL_SECONDS)
        with self._lock:
            size = len(self._kept) if size is None or size < 0 else size
            data = bytes(self._kept[:size])
            del self._kept[:size]
        return data

    def close(self) -> None:
        """The stream is closed at its end."""


# Progress

_display = threading.Lock()
"""Held by who draws: of several at once only the first does."""


@contextlib.contextmanager
def shown(what: str) -> Iterator[Any]:
    """A function that shows a line of progress behind `what`; None where there is nobody to see it."""
    if sys.stderr is None or not sys.stderr.isatty() or not _display.acquire(blocking=False):
        yield None
        return
    try:
        from rich.console import Console
        from rich.markup import escape

        with Console(stderr=True).status(escape(what)) as status:
            yield lambda line: status.update(f"{escape(what)} [dim]{escape(line[:100])}[/dim]")
    finally:
        _display.release()


# What is left when Python ends

_left: dict[str, tuple[Engine, bool, int]] = {}
"""Containers that run, with their engine, whether they are to be kept, and the process that they are of."""


_late: list[threading.Thread] = []
"""Those that wait for containers that may come yet."""


def remember(name: str, engine: Engine, keep: bool) -> None:
    """Have a container ended when this process ends in the normal way without that."""
    if not _left:
        atexit.unregister(_end_all)
        atexit.register(_end_all)
    _left[name] = (engine, keep, os.getpid())


def forget(name: str) -> None:
    """It was ended."""
    _left.pop(name, None)


def _end_all() -> None:
    """One call for each engine, because the interpreter waits."""
    deadline = time.monotonic() + _LATE_AT_EXIT_SECONDS
    for thread in list(_late):
        thread.join(max(0.0, deadline - time.monotonic()))
    groups: dict[tuple[str, str, bool], tuple[Engine, list[str]]] = {}
    for name, (engine, keep, pid) in _left.items():
        if pid == os.getpid():
            reached = json.dumps(engine.environment, sort_keys=True)
            groups.setdefault((engine.runtime, reached, keep), (engine, []))[1].append(name)
    _left.clear()
    for (_, _, keep), (engine, names) in groups.items():
        with contextlib.suppress(Exception, EffortEnded):
            (engine.kill if keep else engine.remove)(*names)
