"""Containers of Docker and Podman, reached by their command lines."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from swerex_c.exec.ask import ask
from swerex_c.exec.backend import Backend

__all__ = ["DockerBackend", "PodmanBackend"]

_ID = re.compile("[0-9a-f]{64}")
"""What containers that were made can be called, and no others."""

_STATE = (
    "{{.State.Status}}\t{{.State.Paused}}\t{{.State.Restarting}}\t{{.State.ExitCode}}"
    "\t{{.State.OOMKilled}}\t{{.State.Error}}"
)


class DockerBackend(Backend):
    """A container that runs, reached by `docker exec`. It is neither started nor stopped here."""

    engine = "docker"
    """What people call the engine."""

    # While a terminal is attached, docker takes these keys for itself, and holds back what may be their beginning. It
    # cannot be told to have none; a NUL is never typed, because no command can contain it.
    _keys: tuple[str, ...] = ("--detach-keys=" + ",".join(["ctrl-@"] * 4),)

    def __init__(
        self,
        container: str,
        *,
        name: str | None = None,
        command: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
    ) -> None:
        """
        Args:
            container: its id, or its name; the id is sure not to become another container's.
            name: what messages call it; the beginning of `container` if None.
            command: the engine's client, with options that come before its subcommands.
            environment: the client's whole environment, in which DOCKER_HOST may be; this process's now if None.
            arguments: more options for every `exec`, such as `--user`, `root`.
        """
        self.container = container
        self._short = container[:12] if _ID.fullmatch(container) else container
        self.name = f"container {name or self._short}"
        self._command = tuple(command) or (self.engine,)
        self._arguments = tuple(arguments)
        self._environment = dict(os.environ if environment is None else environment)
        self._environment.setdefault("DOCKER_CLI_HINTS", "false")  # or it advertises on the terminal

    def environment(self) -> dict[str, str]:
        return dict(self._environment)

    def terminal(self, argv: Sequence[str], names: Sequence[str]) -> list[str]:
        return [*self._exec("-it", names, self._keys), self.container, *argv]

    def pipes(self, argv: Sequence[str], names: Sequence[str]) -> list[str]:
        return [*self._exec("-i", names), self.container, *argv]

    def _exec(self, streams: str, names: Sequence[str], more: Sequence[str] = ()) -> list[str]:
        # A name without a value: the client takes it from its own environment, so that it is in no list of processes.
        passed = [word for name in names for word in ("-e", name)]
        return [*self._command, "exec", streams, *more, *passed, *self._arguments]

    def archive_in(self, directory: str) -> list[str]:
        return [*self._command, "cp", "-", f"{self.container}:{directory}"]

    def archive_out(self, path: str) -> list[str]:
        return [*self._command, "cp", f"{self.container}:{path}", "-"]

    def why_lost(self, timeout: float) -> str | None:
        return self.look(timeout)[0]

    def look(self, timeout: float) -> tuple[str | None, bool]:
        """What `why_lost` says, and whether it is for good: the container has ended or is gone.

        Raises:
            TimeoutError: as there.
        """
        argv = [*self._command, "container", "inspect", "-f", _STATE, self.container]
        try:
            said = ask(argv, environment=self._environment, timeout=timeout)
        except TimeoutError:
            raise TimeoutError(f"{self.engine} did not tell within {timeout:g} s what became of {self.name}") from None
        except OSError as error:
            msg = f"The command {self._command[0]!r} cannot be run ({error.strerror}), so {self.name} is out of reach"
            return msg, False
        if said.code == 0:
            return self._state(said.stdout.decode(errors="replace").rstrip("\n"))
        if "no such container" in said.words.lower():
            never = "" if _ID.fullmatch(self.container) else ", or there never was one of that name"
            return f"The {self.name} is gone: it was removed{never}", True
        return f"The {self.name} is out of reach, for {self.engine} says: {said.words}", False

    def _state(self, line: str) -> tuple[str | None, bool]:
        """What the answer to `_STATE` says, as `look` does."""
        status, paused, restarting, code, killed, error = (line.split("\t") + [""] * 6)[:6]
        if paused == "true" or status == "paused":
            how = f"`{self.engine} unpause {self._short}` has it go on"
            return f"The {self.name} is paused: {how}", False
        if status == "running" and restarting != "true":
            return None, False
        if killed == "true":
            return f"The {self.name} was ended because it took too much memory", True
        if status in ("exited", "dead", "stopped", "removing", "stopping"):
            return f"The {self.name} has ended with exit code {code}" + (f": {error}" if error else ""), True
        return f"The {self.name} is not running: its state is {status or 'unknown'}", False


class PodmanBackend(DockerBackend):
    """A container that runs, reached by `podman exec`. It is neither started nor stopped here."""

    engine = "podman"
    _keys = ("--detach-keys=",)
