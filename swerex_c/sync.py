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

import functools
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

from swerex_c.interfaces import AbstractDeployment, AbstractRuntime
from swerex_c.utils.background import run_blocking

if TYPE_CHECKING:
    from collections.abc import Iterator

    from swerex_c import models

__all__ = ["SyncDeployment", "SyncRuntime"]

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    """Return the form of a method that returns when it is done, for a class with the real object in `asynchronous`."""

    @functools.wraps(method)
    def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result: T = run_blocking(getattr(self.asynchronous, method.__name__)(*args, **kwargs))
        return result

    return call


class SyncRuntime:
    """A runtime whose methods return when they are done. Their arguments and errors are those of `AbstractRuntime`."""

    def __init__(self, runtime: AbstractRuntime):
        self.asynchronous = runtime

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    is_alive = _blocking(AbstractRuntime.is_alive)
    create_session = _blocking(AbstractRuntime.create_session)
    run = _blocking(AbstractRuntime.run)
    run_in_session = _blocking(AbstractRuntime.run_in_session)
    close_session = _blocking(AbstractRuntime.close_session)
    execute = _blocking(AbstractRuntime.execute)
    read_file = _blocking(AbstractRuntime.read_file)
    write_file = _blocking(AbstractRuntime.write_file)
    upload = _blocking(AbstractRuntime.upload)
    download = _blocking(AbstractRuntime.download)
    close = _blocking(AbstractRuntime.close)

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


class SyncDeployment:
    """A deployment whose methods return when they are done."""

    def __init__(self, deployment: AbstractDeployment):
        self.asynchronous = deployment

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    start = _blocking(AbstractDeployment.start)
    stop = _blocking(AbstractDeployment.stop)
    is_alive = _blocking(AbstractDeployment.is_alive)

    @property
    def runtime(self) -> SyncRuntime:
        """Runtime of the started deployment."""
        return SyncRuntime(self.asynchronous.runtime)


async def _next(stream: Any) -> Any:
    return await anext(stream)


async def _end(stream: Any) -> None:
    if (close := getattr(stream, "aclose", None)) is not None:
        await close()
