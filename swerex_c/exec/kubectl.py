"""Containers of Kubernetes' pods, reached by `kubectl exec`."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence

from swerex_c.exceptions import InvalidInputError, PlaceLostError
from swerex_c.exec import pods
from swerex_c.exec.ask import Said, ask
from swerex_c.exec.backend import Backend
from swerex_c.exec.carry import as_words

__all__ = ["KubectlBackend"]

_LOG_LINE = re.compile(r"[EFIW]\d{4} [\d:.]+ ")
"""What the client's log begins its lines with; the last line, which has no such beginning, says it again."""


class KubectlBackend(Backend):
    """A container of a pod that runs. It is neither started nor stopped here.

    The values of the variables that a program gets are in the command that the server is asked for: `kubectl exec` has
    no other way.
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
        """
        Args:
            pod: its name.
            namespace: None is that of the context.
            container: None is the pod's default one, or its first; which it is, is found out by `open`.
            context: of the kubeconfig; None is its current one.
            kubeconfig: a file; None leaves it to the client, and so to KUBECONFIG.
            command: the client, with options that come before its subcommands.
            environment: the client's whole environment; this process's now if None.

        Raises:
            InvalidInputError: if a name cannot be one.
        """
        for name in (pod, namespace, container, context):
            if name is not None and (not name or name.startswith("-") or "\0" in name):
                raise InvalidInputError(f"{name!r} is not a name in Kubernetes")
        self.pod = pod
        self.container = container
        self.name = f"pod {pod}" + (f" in {namespace}" if namespace else "")
        self._command = tuple(command)
        options = (("--kubeconfig", kubeconfig), ("--context", context), ("--namespace", namespace))
        self._client = [*command, *(f"{option}={value}" for option, value in options if value)]
        self._environment = dict(os.environ if environment is None else environment)
        self._running: pods.Running | None = None

    def environment(self) -> dict[str, str]:
        return dict(self._environment)

    def terminal(self, argv: Sequence[str], names: Sequence[str]) -> list[str]:
        return self._exec("-it", argv, names)

    def pipes(self, argv: Sequence[str], names: Sequence[str]) -> list[str]:
        return self._exec("-i", argv, names)

    def _exec(self, streams: str, argv: Sequence[str], names: Sequence[str]) -> list[str]:
        container = [f"--container={self.container}"] if self.container else []
        client = [*self._client, "exec", streams, "--quiet", *container, self.pod, "--"]
        return as_words(client, argv, names)

    def open(self, timeout: float) -> None:
        if shutil.which(self._command[0], path=self._environment.get("PATH")) is None:
            raise PlaceLostError(f"There is no command {self._command[0]!r}, which reaches the {self.name}")
        try:
            said = self._get(timeout)
        except TimeoutError as error:
            raise PlaceLostError(str(error)) from None
        except OSError as error:
            raise PlaceLostError(self._no_client(error)) from None
        if lost := self._unknown(said) if said.code else self._state(said.stdout, opening=True):
            raise PlaceLostError(lost)

    def why_lost(self, timeout: float) -> str | None:
        try:
            said = self._get(timeout)
        except TimeoutError:
            raise
        except OSError as error:
            return self._no_client(error)
        return self._unknown(said) if said.code else self._state(said.stdout)

    def _get(self, timeout: float) -> Said:
        argv = [*self._client, "get", "pod", self.pod, "--output=json", f"--request-timeout={max(1, round(timeout))}s"]
        try:
            return ask(argv, environment=self._environment, timeout=timeout)
        except TimeoutError:
            raise TimeoutError(f"kubectl did not tell within {timeout:g} s what became of the {self.name}") from None

    def _no_client(self, error: OSError) -> str:
        return f"The command {self._command[0]!r} cannot be run ({error.strerror}), so the {self.name} is out of reach"

    def _unknown(self, said: Said) -> str:
        lines = [line for line in said.stderr.decode(errors="replace").splitlines() if not _LOG_LINE.match(line)]
        words = (" ".join(" ".join(lines).split()) or said.words)[-pods.WORDS :]
        if "(NotFound)" in words and ("pods " in words or "namespaces " in words):
            return pods.gone(self.name)
        return f"The {self.name} is out of reach, for kubectl says: {words}"

    def _state(self, answer: bytes, *, opening: bool = False) -> str | None:
        """What kubectl's answer says, as `why_lost` does; with `opening`, which container is meant is kept."""
        try:
            found = pods.look(json.loads(answer), self.name, self.container, None if opening else self._running)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            return f"The {self.name} is not described as pods are by kubectl's answer: {answer[: pods.WORDS]!r}"
        if isinstance(found, str):
            return found
        if opening:
            self.container, self._running = found.container, found
        return None
