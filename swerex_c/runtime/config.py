"""Configurations, in a file or on a command line, that can create their runtimes."""

from __future__ import annotations

from typing import ClassVar, Literal, Required, TypedDict

from pydantic import BaseModel, ConfigDict, Field

from swerex_c.interfaces import AbstractRuntime
from swerex_c.models import OUTPUT_LIMIT, READ_LIMIT
from swerex_c.utils.load import load_class

__all__ = [
    "DummyRuntimeConfig",
    "LocalRuntimeConfig",
    "LocalRuntimeKeywords",
    "RemoteRuntimeConfig",
    "RemoteRuntimeKeywords",
    "RuntimeConfig",
    "get_runtime",
]


class _RuntimeConfig(BaseModel):
    """A description of a runtime, which can make it. The runtime's module is imported only then."""

    runtime_class: ClassVar[str]
    """The class of the runtime, as "module:Class"."""

    model_config = ConfigDict(extra="forbid")

    def get_runtime(self) -> AbstractRuntime:
        """Make the runtime, without contacting it yet."""
        runtime: AbstractRuntime = load_class(self.runtime_class).from_config(self)
        return runtime


class LocalRuntimeConfig(_RuntimeConfig):
    """Configuration of a runtime in this process, on this machine."""

    runtime_class: ClassVar[str] = "swerex_c.runtime.local:LocalRuntime"

    type: Literal["local"] = "local"
    """Discriminator between the kinds of runtimes. Not to be changed."""

    output_limit: int = Field(default=OUTPUT_LIMIT, ge=1024)
    """Bytes of output to keep of a command: half of them its beginning, half its end. If the reader of a stream lags by
    a quarter of that (of 1 MiB, if it is less), the command waits."""

    read_limit: int = Field(default=READ_LIMIT, gt=0)
    """Maximum bytes of a file for `read_file`; a longer file, or one without an end, raises a `ResourceError`."""

    warm_sessions: int = Field(default=0, ge=0)
    """Number of shells to start ahead of time, so that a session need not wait for one: each is a process and a
    terminal, and has read its startup files. A shell is used while environment and directory of this process are those
    that it was started with; everything else (limits, umask, what the startup files read, $SECONDS) is as it was then.
    For a request with `cwd`, `env`, `startup_source` or another size a shell is started."""


class LocalRuntimeKeywords(TypedDict, total=False):
    """Keyword arguments of `LocalRuntime`: the fields of `LocalRuntimeConfig`."""

    output_limit: int
    read_limit: int
    warm_sessions: int


class RemoteRuntimeConfig(_RuntimeConfig):
    """Configuration of a runtime behind a server."""

    runtime_class: ClassVar[str] = "swerex_c.runtime.remote:RemoteRuntime"

    auth_token: str
    """Key that authenticates this client to the server."""

    host: str = "http://127.0.0.1"
    """The server's address, with its scheme; or `unix:///path/of/a/socket`."""

    port: int | None = None
    """The server's port; None uses the port of the address."""

    timeout: float = 0.15
    """Seconds that `is_alive` waits for the server if its caller sets no timeout."""

    type: Literal["remote"] = "remote"
    """Discriminator between the kinds of runtimes. Not to be changed."""

    wire: Literal["auto", "msgpack", "json"] = "auto"
    """Protocol. "auto" uses msgpack frames if the server supports them, and HTTP/JSON otherwise."""

    reconnect_timeout: float = Field(default=30.0, ge=0)
    """Seconds that a request waits for a connection that broke or cannot be made."""

    answer_limit: int = Field(default=1 << 30, gt=0)
    """Maximum bytes of one response; a longer response raises a `ResourceError`. Downloads have no limit."""

    command: list[str] | None = None
    """Program to start as the server, instead of `host`: it transfers frames on its standard input and output, as
    `["ssh", "example.org", "swerex-remote", "--stdio"]` does. It ends with the runtime."""


class RemoteRuntimeKeywords(TypedDict, total=False):
    """Keyword arguments of `RemoteRuntime`: the fields of `RemoteRuntimeConfig`."""

    auth_token: Required[str]
    host: str
    port: int | None
    timeout: float
    wire: Literal["auto", "msgpack", "json"]
    reconnect_timeout: float
    answer_limit: int
    command: list[str] | None


class DummyRuntimeConfig(_RuntimeConfig):
    """Configuration of a runtime that does nothing, for tests."""

    runtime_class: ClassVar[str] = "swerex_c.runtime.dummy:DummyRuntime"

    type: Literal["dummy"] = "dummy"
    """Discriminator between the kinds of runtimes. Not to be changed."""


RuntimeConfig = LocalRuntimeConfig | RemoteRuntimeConfig | DummyRuntimeConfig
"""Any configuration of a runtime."""


def get_runtime(config: RuntimeConfig) -> AbstractRuntime:
    """Return the runtime that a configuration describes, without contacting it yet."""
    return config.get_runtime()
