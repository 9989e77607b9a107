"""Backends that run programs in containers with `docker exec` or `podman exec`."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from swerex_c.sandbox.clients import CommandBackend, run_command
from swerex_c.sandbox.env_passing import command_as_text

__all__ = ["DockerBackend", "PodmanBackend", "client_environment"]

_ID = re.compile("[0-9a-f]{64}")
"""A full container id, which an engine never reuses for another container."""

_STATE = (
    "{{.State.Status}}\t{{.State.Paused}}\t{{.State.Restarting}}\t{{.State.ExitCode}}"
    "\t{{.State.OOMKilled}}\t{{.State.Error}}"
)


def client_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the environment of an engine's client: a copy of this one, or of this process's if None."""
    # Otherwise docker prints hints on the terminal.
    return {"DOCKER_CLI_HINTS": "false"} | dict(os.environ if environment is None else environment)


class DockerBackend(CommandBackend):
    """A running container, reached by `docker exec`.

    The backend neither starts nor stops the container.
    """

    engine = "docker"
    """The name of the engine in messages, and its default command."""

    # While a terminal is attached, docker intercepts these keys and delays input that may be their beginning. The keys
    # cannot be disabled, so they are NULs, which are never typed because no command can contain a NUL.
    _keys: tuple[str, ...] = ("--detach-keys=" + ",".join(["ctrl-@"] * 4),)

    def __init__(
        self,
        container: str,
        *,
        command: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        arguments: Sequence[str] = (),
        shell: Sequence[str] = (),
    ) -> None:
        """Create a backend for a container.

        Args:
            container: the container's id or name; only the id can never become another container's.
            command: the engine's client, with options that come before its subcommands.
            environment: the client's whole environment, which may hold DOCKER_HOST; a copy of this process's if None.
            arguments: more options for every `exec`, such as `--user`, `root`.
            shell: the shell that starts programs in the container, such as `/bin/bash`, `-lc`: it gets a program and
                its arguments as one text; () starts programs without a shell.
        """
        self.container = container
        self._short = container[:12] if _ID.fullmatch(container) else container
        self.name = f"container {self._short}"
        self._command = tuple(command) or (self.engine,)
        self._arguments = tuple(arguments)
        self._shell = tuple(shell)
        self._environment = client_environment(environment)

    def environment(self) -> dict[str, str]:
        return dict(self._environment)

    def command(self, argv: Sequence[str], names: Sequence[str], terminal: bool) -> list[str]:
        client = [*self._command, "exec", *(("-it", *self._keys) if terminal else ("-i",))]
        if self._shell:  # a login shell may drop variables that `-e` sets
            return command_as_text([*client, *self._arguments, self.container, *self._shell], argv, names)
        # A name without a value: the client reads the value from its environment, so no process list shows it.
        passed = [word for name in names for word in ("-e", name)]
        return [*client, *passed, *self._arguments, self.container, *argv]

    async def why_lost(self) -> str | None:
        return (await self.inspect())[0]

    async def inspect(self) -> tuple[str | None, bool]:
        """Return the result of `why_lost`, and True if the loss is final.

        A loss is final if the container has ended or is gone.
        """
        argv = [*self._command, "container", "inspect", "-f", _STATE, self.container]
        try:
            result = await run_command(argv, environment=self._environment)
        except OSError as error:
            msg = f"The command {self._command[0]!r} cannot be run ({error.strerror}), so {self.name} is out of reach"
            return msg, False
        if result.code == 0:
            return self._state(result.stdout.decode(errors="replace").rstrip("\n"))
        if "no such container" in result.message.lower():
            never = "" if _ID.fullmatch(self.container) else ", or it never existed"
            return f"The {self.name} is gone: it was removed{never}", True
        return f"The {self.name} is out of reach: {self.engine} says: {result.message}", False

    def _state(self, line: str) -> tuple[str | None, bool]:
        """Interpret the output for `_STATE`; the result is that of `inspect`."""
        status, paused, restarting, code, killed, error = (line.split("\t") + [""] * 6)[:6]
        if paused == "true" or status == "paused":
            how = f"resume it with `{self.engine} unpause {self._short}`"
            return f"The {self.name} is paused: {how}", False
        if status == "running" and restarting != "true":
            return None, False
        if killed == "true":
            return f"The {self.name} was killed because it exceeded its memory limit", True
        if status in ("exited", "dead", "stopped", "removing", "stopping"):
            return f"The {self.name} has ended with exit code {code}" + (f": {error}" if error else ""), True
        return f"The {self.name} is not running: its state is {status or 'unknown'}", False


class PodmanBackend(DockerBackend):
    """A running container, reached by `podman exec`.

    The backend neither starts nor stops the container.
    """

    engine = "podman"
    _keys = ("--detach-keys=",)
