"""Run programs in containers of Kubernetes pods with `kubectl exec`."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from swerex_c.exceptions import InvalidInputError, SandboxLostError
from swerex_c.providers.kubernetes import pods
from swerex_c.sandbox.clients import CommandBackend, CompletedCommand, run_command
from swerex_c.sandbox.env_passing import command_as_text

__all__ = ["KubectlBackend"]

_LOG_LINE = re.compile(r"[EFIW]\d{4} [\d:.]+ ")
"""Prefix of the log lines of kubectl. The last line has no such prefix, and repeats the error."""

_FAILED = 1
"""Exit code of kubectl for its own errors, and for a program that exits with 1; then it prints that."""


class KubectlBackend(CommandBackend):
    """A container of a running pod, reached with kubectl.

    The backend neither starts nor stops the container. The values of a program's environment variables are part of the
    command that is sent to the server: `kubectl exec` has no other way.
    """

    def __init__(
        self,
        pod: str,
        *,
        namespace: str | None = None,
        container: str | None = None,
        context: str | None = None,
        kubeconfig: str | None = None,
        command: Sequence[str] = ("kubectl",),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Create a backend for a container of a pod.

        Args:
            pod: name of the pod.
            namespace: None is the namespace of the context.
            container: None is the pod's default container, or its first; `open` finds out which.
            context: context of the kubeconfig; None is its current context.
            kubeconfig: path of a file; None leaves it to the client, and so to KUBECONFIG.
            command: the client, with options that come before its subcommands.
            environment: whole environment of the client; None is the current one of this process.

        Raises:
            InvalidInputError: if a name is not valid in Kubernetes.
        """
        for name in (pod, namespace, container, context):
            if name is not None and (not name or name.startswith("-") or "\0" in name):
                raise InvalidInputError(f"{name!r} is not a name in Kubernetes")
        self.pod = pod
        self.container = container
        self.name = f"pod {pod}" + (f" in {namespace}" if namespace else "")
        options = (("--kubeconfig", kubeconfig), ("--context", context), ("--namespace", namespace))
        self._client = [*command, *(f"{option}={value}" for option, value in options if value)]
        self._environment = dict(os.environ if environment is None else environment)
        self._running: pods.RunningContainer | None = None

    def environment(self) -> dict[str, str]:
        return dict(self._environment)

    def command(self, argv: Sequence[str], names: Sequence[str], terminal: bool) -> list[str]:
        container = [f"--container={self.container}"] if self.container else []
        client = [*self._client, "exec", "-it" if terminal else "-i", "--quiet", *container, self.pod, "--"]
        return command_as_text([*client, "bash", "-c"], argv, names)

    async def open(self) -> None:
        self._running = pods.find_running(await self._read(), self.name, self.container)
        self.container = self._running.container

    async def why_lost(self) -> str | None:
        try:
            pods.find_running(await self._read(), self.name, self.container, self._running)
        except SandboxLostError as error:
            return str(error)
        return None

    async def unsure(self, client: Sequence[str], code: int, printed: str) -> str | None:
        known = code != _FAILED or printed.rstrip().endswith(f"command terminated with exit code {code}")
        return None if known else f"kubectl ended with status {code}, as after a lost connection"

    async def _read(self) -> dict[str, Any]:
        """Return the pod.

        Raises:
            SandboxLostError: if it is gone, or kubectl does not show it as JSON.
        """
        argv = [*self._client, "get", "pod", self.pod, "--output=json"]
        try:
            done = await run_command(argv, environment=self._environment)
        except OSError as error:
            command = f"The command {self._client[0]!r} cannot be run ({error.strerror})"
            raise SandboxLostError(f"{command}, so the {self.name} is out of reach") from error
        if done.code:
            raise SandboxLostError(self._failure(done))
        try:
            pod: dict[str, Any] = json.loads(done.stdout)
        except ValueError as error:
            text = os.fsdecode(done.stdout[: pods.MAX_MESSAGE])
            raise SandboxLostError(f"The {self.name} has a description that is not valid ({error}): {text}") from error
        return pod

    def _failure(self, done: CompletedCommand) -> str:
        """Return why the pod is out of reach, from what a failed kubectl printed."""
        lines = [line for line in done.stderr.decode(errors="replace").splitlines() if not _LOG_LINE.match(line)]
        message = (" ".join(" ".join(lines).split()) or done.message)[-pods.MAX_MESSAGE :]
        if "(NotFound)" in message and ("pods " in message or "namespaces " in message):
            return pods.gone_message(self.name)
        return f"The {self.name} is out of reach. kubectl says: {message}"
