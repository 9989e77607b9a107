"""Client of a container engine's command line.

It runs, lists and removes containers, pulls and builds images, and converts errors.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from swerex_c.exceptions import DeploymentStartupError, DockerPullError
from swerex_c.sandbox.clients import CompletedCommand, find_line, run_command
from swerex_c.utils import background
from swerex_c.utils.temporary import temporary_directory
from swerex_c.utils.visible import visible

if TYPE_CHECKING:
    from swerex_c.providers.docker.backend import DockerBackend

__all__ = ["Engine", "Listed", "shown"]

_ASK_SECONDS = 30.0
"""Seconds to wait for an engine's answer to a light request, such as a list, and for ending a container."""

_RUN_PATIENCE = 4.0
"""Seconds to wait for the start of an abandoned container."""

_LATE_SECONDS = 60.0
"""Seconds to watch for an abandoned container in the background after that."""

_LATE_AT_EXIT_SECONDS = 5.0
"""Maximum number of seconds to delay the interpreter's exit for such a watch."""

_LOG_LINES = 50
"""Maximum number of lines of a container's output to report; the last ones."""

_KEPT_OUTPUT = 256 << 10
"""Maximum number of bytes to keep of the output of an attached container."""

_TAIL_SECONDS = 2.0
"""Seconds to wait for the end of that output."""

_NO_IMAGE = ("no such image", "unable to find image", "image not known", "no such object")
_NO_PROGRAM = ("executable file not found", "no such file or directory")
_NO_ENGINE = ("cannot connect to the docker daemon", "is the docker daemon running", "error during connect")
_RUNS = ("running", "paused", "restarting", "up")
_NO_CONTAINER = ("no such container", "no container with name or id")


@dataclass(frozen=True)
class Listed:
    """A container in an engine's list."""

    id: str
    name: str
    image: str
    runs: bool
    labels: dict[str, str]


class Engine:
    """Docker or Podman, through its command. Thread-safe.

    Methods block until the command has ended; `attached` and `remove_late` return at once.
    """

    def __init__(self, runtime: str, environment: Mapping[str, str] | None = None) -> None:
        """Create a client of an engine, without running its command yet.

        Args:
            runtime: the command, "docker" or "podman".
            environment: the command's environment; a copy of this process's if None.
        """
        self.runtime = runtime
        self.environment = dict(os.environ if environment is None else environment)
        self.environment.setdefault("DOCKER_CLI_HINTS", "false")

    def ask(
        self, *words: str, timeout: float | None = _ASK_SECONDS, patience: float = 0.0, **how: Any
    ) -> CompletedCommand:
        """Run the command once, and return its result whatever its exit code is.

        Raises:
            DeploymentStartupError: if there is no such command.
            TimeoutError: if it does not end in time.
        """
        try:
            running = run_command([self.runtime, *words], environment=self.environment, timeout=timeout, **how)
            return background.run_blocking(running, patience=patience)
        except TimeoutError:
            raise
        except OSError as error:
            msg = f"The command {self.runtime!r} cannot be run ({error.strerror}): install it, or add it to PATH"
            raise DeploymentStartupError(msg) from None

    def has_image(self, image: str, platform: str | None = None) -> bool:
        """Check whether an image is on this machine, for `platform` if it is given.

        Raises:
            DeploymentStartupError: if there is no such command, or its engine cannot be reached.
        """
        said = self.ask("image", "inspect", "-f", "{{.Os}}/{{.Architecture}}", image)
        if said.code and (error := self._out_of_reach(said)):
            raise error
        return said.code == 0 and _fits(said.stdout.decode(errors="replace").strip(), platform)

    def pull(self, image: str, platform: str | None) -> tuple[list[str], CompletedCommand]:
        """Pull an image; return the arguments and the result of the command.

        A nonzero exit code is returned, not raised.

        Raises:
            DeploymentStartupError: if the engine cannot be reached.
        """
        words = ["pull", *(["--platform", platform] if platform else []), image]
        with shown(f"Pulling {image}") as tell:
            said = self.ask(*words, timeout=None, tell=tell)
        if said.code and (error := self._out_of_reach(said)):
            raise error
        return words, said

    def build(self, words: Sequence[str], dockerfile: bytes, what: str) -> str:
        """Build an image from a Dockerfile that uses no other file, and return its id.

        Raises:
            DeploymentStartupError: if the build fails, with the end of its output.
        """
        with shown(what):
            said = self.ask("build", "-q", *words, "-", timeout=None, input=dockerfile)
        lines = said.stdout.decode(errors="replace").split()
        image = lines[-1] if lines else ""
        if said.code or not image:
            text = (said.stdout + b"\n" + said.stderr).decode(errors="replace").strip()[-4000:]
            raise self._out_of_reach(said) or DeploymentStartupError(f"{what} failed: {text or said.words}")
        return image

    def run(self, words: Sequence[str]) -> CompletedCommand:
        """Start a container in the background.

        Args:
            words: options of `run`, the image, and the command in it.

        Raises:
            concurrent.futures.CancelledError: whether the container was created is unknown then.
        """
        return self._make("run", "-d", *words)

    def is_docker(self) -> bool:
        """Check whether the command is Docker's own client.

        A script or Podman may have the same name.
        """
        path = shutil.which(self.runtime, path=self.environment.get("PATH")) if self.runtime == "docker" else None
        if path is None or os.path.basename(os.path.realpath(path)) == "podman":
            return False
        try:
            with open(path, "rb") as file:
                return file.read(2) != b"#!"
        except OSError:
            return False

    def run_greeted(self, words: Sequence[str], greeting: bytes) -> tuple[CompletedCommand, str]:
        """Start a container, wait for its greeting, and return the output and the id.

        The greeting is a line of output that begins with `greeting`. The id is empty if the client could not write it
        to a file of this process.

        This works only with Docker, whose client can then be killed, because the container runs under another process.
        Podman's client must run to completion.
        """
        with temporary_directory("swerex-c-") as directory:
            file = Path(directory) / "id"
            words = ["run", "-a", "stdout", "--cidfile", str(file), *words]
            said = self._make(*words, until=greeting)
            try:
                return said, file.read_text().strip()
            except OSError:  # a client that has no access to the directories of this process
                return said, ""

    def create(self, words: Sequence[str]) -> CompletedCommand:
        """Create a container without starting it; parameters and errors as for `run`."""
        return self._make("create", *words)

    def _make(self, *words: str, **how: Any) -> CompletedCommand:
        return self.ask(*words, timeout=None, patience=_RUN_PATIENCE, **how)

    def made(self, said: CompletedCommand, image: str) -> str:
        """Return the id of the container from the result of `run` or `create`.

        Raises:
            DockerPullError: if the image is not on this machine.
            DeploymentStartupError: if it failed for another reason.
        """
        lines = said.stdout.decode(errors="replace").split()
        if said.code == 0 and lines:
            return lines[-1]
        raise self._refused(said, image)

    def greeting(self, said: CompletedCommand, greeting: bytes, image: str) -> bytes:
        """Return the text after the greeting in the result of `run_greeted`.

        Raises:
            DockerPullError, DeploymentStartupError: as `made`.
        """
        words = find_line(said.stdout, greeting)
        if words is None:
            raise self._refused(said, image)
        return words

    def attached(self, container: str) -> subprocess.Popen[bytes]:
        """Start a created container, and return the client process attached to it.

        The process ends when the container does.

        The `stdout` and `stderr` of the process are read continuously, so that the container never blocks on a full
        pipe; their `read()` returns the last part of the output, once the container has ended.

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

    def _refused(self, said: CompletedCommand, image: str) -> DeploymentStartupError:
        """Return the error for a `run` or `create` that failed."""
        words = said.words.replace(" Run 'docker run --help' for more information", "")
        lower = words.lower()
        if any(sign in lower for sign in _NO_IMAGE):
            msg = f"The image {image!r} is not on this machine, and was not pulled: {words}"
            return DockerPullError(msg)
        if "bash" in lower and any(sign in lower for sign in _NO_PROGRAM):
            msg = f"The image {image!r} has no bash, which sessions need: install bash in it, or use another image"
            return DeploymentStartupError(f"{msg} ({words})")
        return self._out_of_reach(said) or DeploymentStartupError(f"Cannot start the container: {words}")

    def _out_of_reach(self, said: CompletedCommand) -> DeploymentStartupError | None:
        words = said.words
        if any(sign in words.lower() for sign in _NO_ENGINE):
            return DeploymentStartupError(f"The engine of {self.runtime!r} cannot be reached: {words}")
        return None

    def remove(self, *containers: str) -> str | None:
        """End and remove containers with their anonymous volumes.

        Return None, or why it failed. Containers that are already gone are no failure.
        """
        at_once = ["-t", "0"] if self.runtime == "podman" else []
        return self._gone(["rm", "-f", "-v", *at_once], containers)

    def kill(self, *containers: str) -> str | None:
        """End containers without removing them; return None, or why it failed."""
        return self._gone(["kill"], containers)

    def _gone(self, words: Sequence[str], containers: Sequence[str]) -> str | None:
        deadline = time.monotonic() + _ASK_SECONDS
        try:
            said = self.ask(*words, *containers)
            # podman waits five seconds for the processes that it has killed, which a busy machine may take to end.
            while said.code and "did not die within" in said.words.lower() and time.monotonic() < deadline:
                said = self.ask(*words, *containers)
        except (TimeoutError, DeploymentStartupError) as error:
            return str(error)
        lower = said.words.lower()
        if said.code and "already in progress" in lower:  # such as that of a container that has just ended by itself
            while any(map(self.exists, containers)) and time.monotonic() < deadline:
                time.sleep(0.05)
            return None
        gone = (*_NO_CONTAINER, "is not running", "can only kill running")
        return None if said.code == 0 or any(sign in lower for sign in gone) else said.words

    def logs(self, container: str) -> str:
        """Return the end of a container's output; in parentheses, why there is none."""
        try:
            said = self.ask("logs", "--tail", str(_LOG_LINES), container)
        except (TimeoutError, DeploymentStartupError) as error:
            return f"({error})"
        if said.code:
            return f"({said.words})"
        return (said.stdout + said.stderr).decode(errors="replace").strip()[-4000:] or "(nothing)"

    def remove_late(self, name: str) -> None:
        """Remove a container whose creation was not confirmed, once it exists.

        Return at once: a thread watches for it for `_LATE_SECONDS`. At exit the interpreter waits up to
        `_LATE_AT_EXIT_SECONDS` for the thread.
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
        """Check whether a container exists, in any state.

        False if the engine does not respond.
        """
        return self.has(container, _ASK_SECONDS) is True

    def has(self, container: str, timeout: float) -> bool | None:
        """Check whether a container exists, in any state.

        None if the engine does not respond.

        Args:
            timeout: seconds to wait for the response.
        """
        with contextlib.suppress(TimeoutError, DeploymentStartupError):
            said = self.ask("container", "inspect", "-f", "{{.Id}}", container, timeout=timeout)
            if said.code == 0 or any(sign in said.words.lower() for sign in _NO_CONTAINER):
                return said.code == 0
        return None

    def never_ran(self, container: str) -> bool:
        """Check whether a container was created but never started.

        False if the engine does not respond.
        """
        with contextlib.suppress(TimeoutError, DeploymentStartupError):
            said = self.ask("container", "inspect", "-f", "{{.State.Status}}", container)
            return said.code == 0 and said.stdout.strip().lower() in (b"created", b"configured", b"initialized")
        return False

    def labelled(self, label: str, facts: Sequence[str]) -> list[Listed]:
        """List all containers that have a label, in any state.

        Each has the values of those of its labels that are in `facts`.

        A single `ps` lists them, so that a container that hangs does not hide the others.

        Raises:
            DeploymentStartupError: if the engine cannot be reached.
            TimeoutError: if the engine does not respond.
        """
        # As JSON, because a label may contain the separators of fields and lines.
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

    def backend(self, container: str, name: str, shell: Sequence[str]) -> DockerBackend:
        """Return a backend that runs commands in a container.

        The parameters are those of `DockerBackend`.
        """
        from swerex_c.providers.docker.backend import DockerBackend, PodmanBackend

        kind = PodmanBackend if self.runtime == "podman" else DockerBackend
        return kind(container, name=name, environment=self.environment, shell=shell)


def _fits(has: str, platform: str | None) -> bool:
    """Check whether an image for `has` fits the platform, as far as known; variants are not compared."""
    has_system, _, has_machine = has.lower().partition("/")
    system, _, machine = (platform or "").lower().partition("/")
    machine = machine.partition("/")[0]
    machine = {"x86_64": "amd64", "x86-64": "amd64", "aarch64": "arm64"}.get(machine, machine)
    return not (machine and has_machine) or (system, machine) == (has_system, has_machine)


class Tail:
    """A thread that reads a stream to its end and keeps the last part."""

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
        """Return the kept data not read yet, after a brief wait for the stream's end.

        Args:
            size: maximum number of bytes; None or a negative number returns all.
        """
        self._thread.join(_TAIL_SECONDS)
        with self._lock:
            size = len(self._kept) if size is None or size < 0 else size
            data = bytes(self._kept[:size])
            del self._kept[:size]
        return data

    def close(self) -> None:
        """Do nothing: the thread closes the stream at its end."""


# Progress

_display = threading.Lock()
"""Lock held while a progress line is drawn; only the first of concurrent calls draws one."""


@contextlib.contextmanager
def shown(what: str) -> Iterator[Any]:
    """Yield a function that shows a line of progress after `what`, or None.

    None is yielded if standard error is no terminal, or another call uses the terminal.
    """
    if sys.stderr is None or not sys.stderr.isatty() or not _display.acquire(blocking=False):
        yield None
        return
    try:
        from rich.console import Console
        from rich.markup import escape

        with Console(stderr=True).status(escape(what)) as status:
            yield lambda line: status.update(f"{escape(what)} [dim]{escape(visible(line[:100]))}[/dim]")
    finally:
        _display.release()


# Cleanup at exit

_left: dict[str, tuple[Engine, bool, int]] = {}
"""Running containers by name: the engine, whether to keep the container, and the process id of the owner."""


_late: list[threading.Thread] = []
"""Threads that wait for containers that may still be created."""


def remember(name: str, engine: Engine, keep: bool) -> None:
    """Register a container to be ended when this process exits normally."""
    if not _left:
        atexit.unregister(_end_all)
        atexit.register(_end_all)
    _left[name] = (engine, keep, os.getpid())


def forget(name: str) -> None:
    """Unregister a container that was ended."""
    _left.pop(name, None)


def _end_all() -> None:
    """End all registered containers, with one command for each engine because the interpreter is waiting."""
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
        with contextlib.suppress(Exception):
            (engine.kill if keep else engine.remove)(*names)
