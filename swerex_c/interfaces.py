"""Base classes of runtimes, deployments and deployment hooks.

They are separate from the models so that importing a runtime does not import pydantic. A runtime that should import
quickly imports the models inside its methods, because its callers have imported them by then.
"""

from __future__ import annotations

import contextlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, Self

from swerex_c.exceptions import InvalidInputError, NotSupportedError
from swerex_c.utils.finalizers import call_from_finalizer

if TYPE_CHECKING:
    import logging
    from collections.abc import AsyncIterator

    from swerex_c import models

__all__ = [
    "AbstractDeployment",
    "AbstractRuntime",
    "CombinedDeploymentHook",
    "DeploymentHook",
    "SetStatusDeploymentHook",
    "reject_text",
]

_LAST_STOP_TIMEOUT = 15.0
"""Seconds to wait for the stop of a deployment that was garbage-collected while it was running."""


_FOR_TEXT = {
    "create_session": "CreateBashSessionRequest(session={!r})",
    "run_in_session": "BashAction(command={!r})",
    "execute": "Command(command={!r}, shell=True)",
    "read_file": "ReadFileRequest(path={!r})",
    "write_file": "WriteFileRequest(path={!r}, content=...)",
    "upload": "UploadRequest(source_path={!r}, target_path=...)",
    "close_session": "CloseBashSessionRequest(session={!r})",
}
"""Requests of methods to which callers pass a string by mistake, with the field for the string."""


def reject_text(value: object, method: str) -> None:
    """Raise InvalidInputError for a string in the place of a method's request."""
    if isinstance(value, str):
        request = _FOR_TEXT.get(method, "...").format(value[:200])
        raise InvalidInputError(f"{method} takes a request, not a string: {method}({request})")


class AbstractRuntime(ABC):
    """Interface to the commands and files of a machine.

    The machine is this one, a container or a remote server. A runtime has any number of sessions, each with a unique
    name, and runs single commands outside of them. Its methods may be called from any event loop and any thread.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        self.logger: logging.Logger

    @abstractmethod
    async def is_alive(self, *, timeout: float | None = None) -> models.IsAliveResponse:
        """Check whether the runtime responds within `timeout` seconds."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @abstractmethod
    async def create_session(self, request: models.CreateSessionRequest | None = None) -> models.CreateSessionResponse:
        """Start a session and read its startup files.

        Args:
            request: its name and environment; None is `CreateBashSessionRequest()`, the session "default".

        Raises:
            SessionExistsError: if a session with this name exists.
        """

    @abstractmethod
    async def run_in_session(self, action: models.Action) -> models.Observation:
        """Run a command in the session `action.session`, or interrupt the running one.

        Returns the observation.

        Raises:
            SessionDoesNotExistError: if no session has this name.
            BashIncorrectSyntaxError: if bash rejects the command's syntax; nothing was run.
            CommandTimeoutError: if the command does not end in time; its output so far is in `output`.
            NonZeroExitCodeError: if `check` is "raise" and the exit code is not 0.
            SessionDiedError: if the session's shell has ended before this command.
        """

    async def run(
        self,
        action: models.Action | str,
        *,
        timeout: float | None = None,
        check: Literal["silent", "raise", "ignore"] = "raise",
        session: str = "default",
    ) -> models.Observation:
        """Run a command by its text: a short form of `run_in_session`.

        Args:
            action: the command, or an action, which has fields of its own for the other arguments.
            timeout: seconds that the command may take; None is no limit.
            check: "raise" raises NonZeroExitCodeError unless the exit code is 0; "silent" only returns the exit code;
                "ignore" may leave it out.
            session: name of the session.
        """
        if isinstance(action, str):
            from swerex_c.models import BashAction

            action = BashAction(command=action, timeout=timeout, check=check, session=session)
        return await self.run_in_session(action)

    def stream_in_session(self, action: models.Action) -> AsyncIterator[str | models.BashObservation]:
        """Run a command as `run_in_session` does, and yield its output as it arrives.

        The pieces have any size. The last item is the observation, which contains the whole output. Ending the
        iteration early does not end the command. Errors are those of `run_in_session`, raised after the output that
        preceded them.

        Raises:
            NotSupportedError: if this runtime cannot stream output.
        """
        raise NotSupportedError(f"{type(self).__name__} does not stream output: use run_in_session")

    @abstractmethod
    async def close_session(self, request: models.CloseSessionRequest) -> models.CloseSessionResponse:
        """End a session and everything that it started.

        Raises:
            SessionDoesNotExistError: if no session has this name.
        """

    @abstractmethod
    async def execute(self, command: models.Command) -> models.CommandResponse:
        """Run one command outside of all sessions, as `subprocess.run` would.

        Its standard input is empty.

        Raises:
            CommandTimeoutError: if the command exceeds its timeout; it has been ended with everything that it started.
            NonZeroExitCodeError: if `check` is set and the exit code is not 0.
        """

    @abstractmethod
    async def read_file(self, request: models.ReadFileRequest) -> models.ReadFileResponse:
        """Read a text file.

        A relative path is relative to the runtime's process, not to a session.

        Raises:
            OSError: if the file cannot be read, such as FileNotFoundError.
        """

    @abstractmethod
    async def write_file(self, request: models.WriteFileRequest) -> models.WriteFileResponse:
        """Write a text file, and create its missing parent directories."""

    @abstractmethod
    async def upload(self, request: models.UploadRequest) -> models.UploadResponse:
        """Copy a file or a directory from the caller's machine to the runtime's.

        A directory is merged into an existing one; a file replaces a file, also a read-only one, and goes into a
        directory. Modes and symbolic links are copied, set-user-ID and set-group-ID bits are not. Named pipes, sockets
        and devices in a directory are left out and named in the log.

        Raises:
            OSError: if the copy fails, such as FileNotFoundError for a missing source.
            UploadError: if a file would have to replace a directory, or the other way round.
        """

    async def download(self, source_path: str, target_path: str) -> None:
        """Copy a file or a directory from the runtime's machine to the caller's.

        The rules are those of `upload`. No link below the target is followed. A file replaces a target that is a link,
        unless the link points to a directory: the file goes there.

        Raises:
            OSError: if the copy fails, such as FileNotFoundError for a missing source.
            NotSupportedError: if this runtime cannot send files.
        """
        raise NotSupportedError(f"{type(self).__name__} cannot download files: use read_file")

    @abstractmethod
    async def close(self) -> models.CloseResponse:
        """End all sessions and close the runtime."""


class DeploymentHook:
    """Base class of all hooks; every method may be overridden, and does nothing here."""

    def on_custom_step(self, message: str) -> None:
        """Handle the beginning of a step of the deployment, such as pulling an image."""


class CombinedDeploymentHook(DeploymentHook):
    """Hook that forwards every call to its hooks, in the order of their addition."""

    def __init__(self, hooks: Iterable[DeploymentHook] | None = None):
        self._hooks: list[DeploymentHook] = []
        for hook in hooks or ():
            self.add_hook(hook)

    def add_hook(self, hook: DeploymentHook) -> None:
        self._hooks.append(hook)

    def on_custom_step(self, message: str) -> None:
        for hook in self._hooks:
            hook.on_custom_step(message)


class SetStatusDeploymentHook(DeploymentHook):
    """Hook that calls `callable(id, message)` for every step, for example to update a row of a status table."""

    def __init__(self, id: str, callable: Callable[[str, str], None]):
        self._id = id
        self._callable = callable

    def _update(self, message: str) -> None:
        self._callable(self._id, message)

    def on_custom_step(self, message: str) -> None:
        self._update(message)


class AbstractDeployment(ABC):
    """Owner of the sandbox in which a runtime works: starts and stops the sandbox, and provides the runtime."""

    def __init__(self, *args: Any, **kwargs: Any):
        self.logger: logging.Logger

    @abstractmethod
    def add_hook(self, hook: DeploymentHook) -> None:
        """Add a hook that is notified of the deployment's later steps."""

    @abstractmethod
    async def is_alive(self, *, timeout: float | None = None) -> models.IsAliveResponse:
        """Check whether the runtime responds within `timeout` seconds.

        Raises:
            DeploymentNotStartedError: if there is no runtime; some deployments return "not alive" instead.
        """

    @abstractmethod
    async def start(self, *args: Any, **kwargs: Any) -> None:
        """Start the sandbox, and wait until the runtime in it responds."""

    @abstractmethod
    async def stop(self, *args: Any, **kwargs: Any) -> None:
        """End the sandbox with everything in it; do nothing if the deployment is not started."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    @property
    @abstractmethod
    def runtime(self) -> AbstractRuntime:
        """Runtime of the started deployment.

        Raises:
            DeploymentNotStartedError: if the deployment was not started, or was stopped.
        """

    def _left_running(self) -> bool:
        """Check whether dropping the object now would leave something running. Takes no lock: a finalizer calls it."""
        return getattr(self, "_runtime", None) is not None

    def __del__(self) -> None:
        """Stop the deployment if it is still running."""
        with contextlib.suppress(Exception):  # __init__ may have failed, and no caller could catch the error
            if not sys.is_finalizing() and self._left_running():
                call_from_finalizer(self._stop_dropped)

    def _stop_dropped(self) -> None:
        if logger := getattr(self, "logger", None):
            logger.debug("Stopping a deployment that was garbage-collected while it was running")
        import asyncio  # allowed here because this runs in its own thread: a finalizer must not import

        with contextlib.suppress(Exception):
            asyncio.run(asyncio.wait_for(self.stop(), _LAST_STOP_TIMEOUT))
