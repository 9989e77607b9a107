"""Configurations of runtimes: what can be written into a file or onto a command line, and made into a runtime."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from swerex_c.runtime._base import AbstractRuntime

__all__ = ["DummyRuntimeConfig", "LocalRuntimeConfig", "RemoteRuntimeConfig", "RuntimeConfig", "get_runtime"]


OUTPUT_LIMIT = 256 * 1024 * 1024
"""Bytes of output that are kept of one command unless a runtime is told otherwise."""


class LocalRuntimeConfig(BaseModel):
    """A runtime in this process, on this machine."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["local"] = "local"
    """Tells the kinds of runtimes apart. Not to be changed."""

    output_limit: int = Field(default=OUTPUT_LIMIT, ge=1024)
    """Bytes of output that are kept of a command: half of them its beginning, half its end. A stream whose reader is a
    quarter of that behind (of 1 MiB, if it is less) makes its command wait."""

    warm_sessions: int = Field(default=0, ge=0)
    """How many shells are started ahead of time, so that a session need not wait for one: each is a process and a
    terminal. Startup files are read when the session is asked for. A shell is used only if it is what one started then
    would be; otherwise, and for a request with `cwd`, `env` or another size, one is started."""

    warm_startup_files: bool = False
    """Whether those shells have also read `/etc/bash.bashrc` and `~/.bashrc` ahead of time. They are used while these
    two files are the same; what the files looked at themselves (the time, other files) may have changed since, and
    $SECONDS and the history are of then."""

    def get_runtime(self) -> AbstractRuntime:
        from swerex_c.runtime.local import LocalRuntime

        return LocalRuntime.from_config(self)


class RemoteRuntimeConfig(BaseModel):
    """A runtime behind a server."""

    auth_token: str
    """What the server knows this client by."""

    host: str = "http://127.0.0.1"
    """The server's address, with its scheme; or `unix:///path/of/a/socket`."""

    port: int | None = None
    """The server's port; None is that of the address."""

    timeout: float = 0.15
    """How long a request may take that names no timeout of its own, in seconds."""

    type: Literal["remote"] = "remote"
    """Tells the kinds of runtimes apart. Not to be changed."""

    wire: Literal["auto", "msgpack", "json"] = "auto"
    """What to speak. "auto" is msgpack frames with a server that speaks them, and HTTP/JSON with any other."""

    reconnect_timeout: float = Field(default=30.0, ge=0)
    """How long a request waits for a connection that cannot be made, or that broke, in seconds."""

    answer_limit: int = Field(default=1 << 30, gt=0)
    """Bytes of one answer that are taken; of a longer one comes a `ResourceError`. Downloads have no limit."""

    command: list[str] | None = None
    """A program to start as the server, instead of `host`: it speaks frames on its standard input and output, as
    `["ssh", "example.org", "swerex-remote", "--stdio"]` does. It ends with the runtime."""

    model_config = ConfigDict(extra="forbid")

    def get_runtime(self) -> AbstractRuntime:
        from swerex_c.runtime.remote import RemoteRuntime

        return RemoteRuntime.from_config(self)


class DummyRuntimeConfig(BaseModel):
    """A runtime that does nothing, for tests."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["dummy"] = "dummy"
    """Tells the kinds of runtimes apart. Not to be changed."""

    def get_runtime(self) -> AbstractRuntime:
        from swerex_c.runtime.dummy import DummyRuntime

        return DummyRuntime.from_config(self)


RuntimeConfig = LocalRuntimeConfig | RemoteRuntimeConfig | DummyRuntimeConfig
"""Any configuration of a runtime."""


def get_runtime(config: RuntimeConfig) -> AbstractRuntime:
    """The runtime that a configuration describes; it has not been contacted yet."""
    return config.get_runtime()
