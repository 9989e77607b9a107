"""Runtimes and deployments without `async` and `await`, for scripts and notebooks.

    from swerex_c import LocalRuntime
    from swerex_c.sync import SyncRuntime

    with SyncRuntime(LocalRuntime()) as runtime:
        runtime.create_session()
        print(runtime.run("echo hi").output)

Every call runs in one event loop of its own thread, so that it may come from any thread, also from one whose event loop
is running, as in a notebook. An interrupt of the call cancels it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator

    from swerex_c import models
    from swerex_c.interfaces import AbstractDeployment, AbstractRuntime

__all__ = ["SyncDeployment", "SyncRuntime"]

T = TypeVar("T")


class _Loop:
    """Event loop in a daemon thread, started with the first call of a process."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop, and wait for its result, or after KeyboardInterrupt until it is cancelled."""
        loop, ended, tasks = self._running(), Future[T](), list[asyncio.Task[T]]()

        def begin() -> None:
            tasks.append(loop.create_task(coroutine))
            tasks[0].add_done_callback(end)

        def end(task: asyncio.Task[T]) -> None:
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            ended.set_result(task.result()) if error is None else ended.set_exception(error)

        def cancel() -> None:
            if not tasks:  # the interrupt came before the call was made
                begin()
            tasks[0].cancel()

        try:
            loop.call_soon_threadsafe(begin)
            return ended.result()
        except KeyboardInterrupt:
            loop.call_soon_threadsafe(cancel)
            with contextlib.suppress(asyncio.CancelledError):
                ended.exception()
            raise

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None or self._process != os.getpid():  # a forked process has no such thread
                self._loop, self._process = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="swerex-sync", daemon=True).start()
            return self._loop


_loop = _Loop()


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
        return _loop.wait(self.asynchronous.is_alive(timeout=timeout))

    def create_session(self, request: models.CreateSessionRequest | None = None) -> models.CreateSessionResponse:
        """Start a session."""
        return _loop.wait(self.asynchronous.create_session(request))

    def run(
        self,
        action: models.Action | str,
        *,
        timeout: float | None = None,
        check: Literal["silent", "raise", "ignore"] = "raise",
        session: str = "default",
    ) -> models.Observation:
        """Run a command in a session, or an action."""
        return _loop.wait(self.asynchronous.run(action, timeout=timeout, check=check, session=session))

    def run_in_session(self, action: models.Action) -> models.Observation:
        """Run an action in its session."""
        return _loop.wait(self.asynchronous.run_in_session(action))

    def stream_in_session(self, action: models.Action) -> Iterator[str | models.BashObservation]:
        """Run a command, and yield its output as it arrives, then the observation."""
        stream = self.asynchronous.stream_in_session(action)
        try:
            while True:
                yield _loop.wait(_next(stream))
        except StopAsyncIteration:
            return
        finally:
            _loop.wait(_end(stream))

    def close_session(self, request: models.CloseSessionRequest) -> models.CloseSessionResponse:
        """End a session."""
        return _loop.wait(self.asynchronous.close_session(request))

    def execute(self, command: models.Command) -> models.CommandResponse:
        """Run one command outside of all sessions."""
        return _loop.wait(self.asynchronous.execute(command))

    def read_file(self, request: models.ReadFileRequest) -> models.ReadFileResponse:
        """Read a text file."""
        return _loop.wait(self.asynchronous.read_file(request))

    def write_file(self, request: models.WriteFileRequest) -> models.WriteFileResponse:
        """Write a text file."""
        return _loop.wait(self.asynchronous.write_file(request))

    def upload(self, request: models.UploadRequest) -> models.UploadResponse:
        """Copy a file or a directory to the runtime's machine."""
        return _loop.wait(self.asynchronous.upload(request))

    def download(self, source_path: str, target_path: str) -> None:
        """Copy a file or a directory from the runtime's machine."""
        _loop.wait(self.asynchronous.download(source_path, target_path))

    def close(self) -> models.CloseResponse:
        """End all sessions and close the runtime."""
        return _loop.wait(self.asynchronous.close())


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
        _loop.wait(self.asynchronous.start())

    def stop(self) -> None:
        """End the sandbox with everything in it."""
        _loop.wait(self.asynchronous.stop())

    def is_alive(self, *, timeout: float | None = None) -> models.IsAliveResponse:
        """Check whether the runtime responds."""
        return _loop.wait(self.asynchronous.is_alive(timeout=timeout))

    @property
    def runtime(self) -> SyncRuntime:
        """Runtime of the started deployment."""
        return SyncRuntime(self.asynchronous.runtime)


async def _next(stream: Any) -> Any:
    return await anext(stream)


async def _end(stream: Any) -> None:
    if (close := getattr(stream, "aclose", None)) is not None:
        await close()
