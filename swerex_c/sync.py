"""Runtimes and deployments without `async` and `await`, for scripts and notebooks.

    from swerex_c import LocalRuntime
    from swerex_c.sync import SyncRuntime

    with SyncRuntime(LocalRuntime()) as runtime:
        runtime.create_session()
        print(runtime.run("echo hi").output)

Every call runs in the process's background event loop, so that it may come from any thread, also from one whose event
loop is running, as in a notebook. An interrupt of the call cancels it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Self

from swerex_c.utils.background import run_blocking

if TYPE_CHECKING:
    from collections.abc import Iterator

    from swerex_c import models
    from swerex_c.interfaces import AbstractDeployment, AbstractRuntime

__all__ = ["SyncDeployment", "SyncRuntime"]


class SyncRuntime:
    """A runtime whose methods return when they are done. Their arguments and errors are those of `AbstractRuntime`."""

    def __init__(self, runtime: AbstractRuntime):
        self.asynchronous = runtime

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def is_alive(self, *, timeout: float | None = None) -> models.IsAliveResponse:
        """Check whether the runtime responds."""
        return run_blocking(self.asynchronous.is_alive(timeout=timeout))

    def create_session(self, request: models.CreateSessionRequest | None = None) -> models.CreateSessionResponse:
        """Start a session."""
        return run_blocking(self.asynchronous.create_session(request))

    def run(
        self,
        action: models.Action | str,
        *,
        timeout: float | None = None,
        check: Literal["silent", "raise", "ignore"] = "raise",
        session: str = "default",
    ) -> models.Observation:
        """Run a command in a session, or an action."""
        return run_blocking(self.asynchronous.run(action, timeout=timeout, check=check, session=session))

    def run_in_session(self, action: models.Action) -> models.Observation:
        """Run an action in its session."""
        return run_blocking(self.asynchronous.run_in_session(action))

    def stream_in_session(self, action: models.Action) -> Iterator[str | models.BashObservation]:
        """Run a command, and yield its output as it arrives, then the observation."""
        stream = self.asynchronous.stream_in_session(action)
        try:
            while True:
                yield run_blocking(_next(stream))
        except StopAsyncIteration:
            return
        finally:
            run_blocking(_end(stream))

    def close_session(self, request: models.CloseSessionRequest) -> models.CloseSessionResponse:
        """End a session."""
        return run_blocking(self.asynchronous.close_session(request))

    def execute(self, command: models.Command) -> models.CommandResponse:
        """Run one command outside of all sessions."""
        return run_blocking(self.asynchronous.execute(command))

    def read_file(self, request: models.ReadFileRequest) -> models.ReadFileResponse:
        """Read a text file."""
        return run_blocking(self.asynchronous.read_file(request))

    def write_file(self, request: models.WriteFileRequest) -> models.WriteFileResponse:
        """Write a text file."""
        return run_blocking(self.asynchronous.write_file(request))

    def upload(self, request: models.UploadRequest) -> models.UploadResponse:
        """Copy a file or a directory to the runtime's machine."""
        return run_blocking(self.asynchronous.upload(request))

    def download(self, source_path: str, target_path: str) -> None:
        """Copy a file or a directory from the runtime's machine."""
        run_blocking(self.asynchronous.download(source_path, target_path))

    def close(self) -> models.CloseResponse:
        """End all sessions and close the runtime."""
        return run_blocking(self.asynchronous.close())


class SyncDeployment:
    """A deployment whose methods return when they are done."""

    def __init__(self, deployment: AbstractDeployment):
        self.asynchronous = deployment

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the sandbox, and wait until its runtime responds."""
        run_blocking(self.asynchronous.start())

    def stop(self) -> None:
        """End the sandbox with everything in it."""
        run_blocking(self.asynchronous.stop())

    def is_alive(self, *, timeout: float | None = None) -> models.IsAliveResponse:
        """Check whether the runtime responds."""
        return run_blocking(self.asynchronous.is_alive(timeout=timeout))

    @property
    def runtime(self) -> SyncRuntime:
        """Runtime of the started deployment."""
        return SyncRuntime(self.asynchronous.runtime)


async def _next(stream: Any) -> Any:
    return await anext(stream)


async def _end(stream: Any) -> None:
    if (close := getattr(stream, "aclose", None)) is not None:
        await close()
