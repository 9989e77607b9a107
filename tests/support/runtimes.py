"""Runtimes of every kind that this machine has without an engine: here, through clients, behind a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from swerex_c.runtime.local import LocalRuntime
from swerex_c.runtime.remote import RemoteRuntime
from swerex_c.runtime.sandbox import SandboxRuntime
from tests.support.local_backend import Here
from tests.support.server_process import KEY, Server


def remote(server: Server, wire: Any) -> RemoteRuntime:
    return RemoteRuntime(auth_token=KEY, host="http://127.0.0.1", port=server.port, wire=wire)


RUNTIMES: dict[str, Callable[[Server], Any]] = {
    "local": lambda server: LocalRuntime(),
    "exec": lambda server: SandboxRuntime(Here()),
    "frames": lambda server: remote(server, "msgpack"),
    "http": lambda server: remote(server, "json"),
}
