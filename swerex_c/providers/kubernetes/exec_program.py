"""Run a program in a Kubernetes container over an exec WebSocket of its own.

The first byte of a message is its channel: 0 is standard input, 1 and 2 are the outputs, 3 is the exit status, 4 is
the terminal size, and 255 closes another channel. Channel 255 needs `v5.channel.k8s.io`, which Kubernetes has since
1.30.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Mapping
from typing import Any

import aiohttp

from swerex_c.exceptions import ResourceError, SandboxLostError
from swerex_c.providers.kubernetes.cluster import EXEC_PROTOCOL, Cluster
from swerex_c.providers.kubernetes.errors import ApiError, ClusterError, api_error, one_line
from swerex_c.providers.kubernetes.pods import MAX_MESSAGE
from swerex_c.sandbox.backend import Process

__all__ = ["ExecProgram", "connect"]

_STDIN, _STDOUT, _STDERR, _STATUS, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255

_MAX_INPUT = 32768
"""Maximum number of bytes of input in one message, as in kubectl."""

_QUIET_SECONDS = 15.0
"""Seconds without a message before a ping is sent, so that no proxy closes the connection as idle."""

_MAX_PINGS = 3
"""Number of pings in a row without any message after them, before the server is given up."""

_PING_SECONDS = 1.0
"""Seconds that sending a ping or pong may wait behind unsent input. Outputs are not read meanwhile."""

_END_SECONDS = 5.0
"""Seconds to wait for the end of a connection after the program's exit status."""

_CLOSE_SECONDS = 2.0
"""Seconds to wait for the close handshake of an abandoned connection."""

_TOO_OLD = f"The API server does not speak {EXEC_PROTOCOL}: Kubernetes 1.30 or later is needed"


class ExecProgram(Process):
    """A program in a container, connected by an exec WebSocket."""

    def __init__(self, websocket: aiohttp.ClientWebSocketResponse, sandbox: str) -> None:
        """Take over an open WebSocket. `sandbox` is the name of the pod in messages."""
        self._websocket, self._sandbox = websocket, sandbox
        self._status = b""
        self._lost = ""  # why the connection broke
        self._sent = self._read = 0  # messages of input that were sent, and that the server has certainly read
        self._pings = 0  # since the last message

    async def resize(self, rows: int, columns: int) -> None:
        await self._websocket.send_bytes(bytes([_RESIZE]) + json.dumps({"Width": columns, "Height": rows}).encode())

    # Methods of `Process`

    async def send(self, data: bytes) -> None:
        for i in range(0, len(data), _MAX_INPUT):
            self._sent += 1
            await self._websocket.send_bytes(bytes([_STDIN]) + data[i : i + _MAX_INPUT])

    async def end_input(self) -> None:
        await self._websocket.send_bytes(bytes([_CLOSE, _STDIN]))

    async def receive(self) -> tuple[int, bytes] | None:
        while True:
            await asyncio.sleep(0)
            try:
                message = await self._websocket.receive(_END_SECONDS if self._status else _QUIET_SECONDS)
            except TimeoutError:
                if self._status or not await self._ping():
                    return None
                continue
            except (aiohttp.ClientError, OSError, RuntimeError) as error:
                self._lost = one_line(error)
                return None
            self._pings = 0
            if message.type is aiohttp.WSMsgType.BINARY:
                channel, data = message.data[:1], message.data[1:]
                if channel == bytes([_STATUS]):
                    self._status += data
                elif channel in (bytes([_STDOUT]), bytes([_STDERR])) and data:
                    return channel[0], data
            elif message.type is aiohttp.WSMsgType.PING:
                with contextlib.suppress(aiohttp.ClientError, OSError):  # TimeoutError is an OSError
                    async with asyncio.timeout(_PING_SECONDS):
                        await self._websocket.pong(message.data)
            elif message.type is aiohttp.WSMsgType.PONG and message.data.isdigit():
                self._read = int(message.data)  # the server has read what was sent before the ping
            elif message.type is aiohttp.WSMsgType.ERROR:
                self._lost = str(message.data)
                return None
            elif message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED):
                self._lost = self._lost or str(message.extra or "")
                return None

    async def wait(self) -> int:
        if not self._status:
            message = f"The connection to a program in the {self._sandbox} broke before its end was told"
            raise SandboxLostError(message + (f": {self._lost}" if self._lost else ""))
        return _exit_code(self._status, self._sandbox)

    async def close(self) -> None:
        connection = self._websocket._response.connection
        # A server that waits for its program to read input does not see the close frame, so wait only briefly.
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._websocket.close(), _CLOSE_SECONDS)
        if connection is not None and connection.transport is not None:
            connection.transport.abort()

    async def _ping(self) -> bool:
        """Ping the server after a silence, and return whether it may still be there.

        The ping also keeps proxies from closing the connection as idle. A server that waits for the program to read its
        input sends no pong, so that silence proves nothing then: the kernel detects that the peer is gone.
        """
        if self._pings >= _MAX_PINGS and self._sent == self._read:
            self._lost = f"nothing was heard from the server for {(self._pings + 1) * _QUIET_SECONDS:g} seconds"
            return False
        self._pings += 1
        try:
            async with asyncio.timeout(_PING_SECONDS):
                await self._websocket.ping(b"%d" % self._sent)
        except TimeoutError:
            return True  # the ping is queued behind input that the program may read once its output is read
        except (aiohttp.ClientError, OSError) as error:
            self._lost = one_line(error)
            return False
        return True


async def connect(
    cluster: Cluster,
    namespace: str,
    pod: str,
    container: str | None,
    command: list[str],
    *,
    tty: bool,
    timeout: float,
) -> aiohttp.ClientWebSocketResponse:
    """Start a program in a container, and return the WebSocket to it.

    `timeout` is in seconds, for each attempt.

    Raises:
        ClusterError
    """
    streams = {"stdin": True, "stdout": True, "stderr": not tty, "tty": tty}
    parameters = {"container": container, **{name: str(value).lower() for name, value in streams.items()}}

    async def request() -> aiohttp.ClientWebSocketResponse:
        handshake = await cluster.socket_api.connect_get_namespaced_pod_exec(
            pod, namespace, command=command, _preload_content=False, **parameters
        )
        try:
            opened: aiohttp.ClientWebSocketResponse = await handshake
            return opened
        except aiohttp.WSServerHandshakeError as error:
            raise api_error(error.status, b"") from error

    try:
        opened = await cluster.send(request, timeout)
    except ApiError as error:
        raise await _refusal(cluster, namespace, pod, parameters, error) from error.__cause__
    if opened.protocol != EXEC_PROTOCOL:
        await opened.close()
        raise ApiError(400, "", _TOO_OLD)
    _keep_alive(opened)
    return opened


async def _refusal(
    cluster: Cluster, namespace: str, pod: str, parameters: Mapping[str, Any], error: ApiError
) -> ApiError:
    """Return the error for a refused WebSocket, with the server's message.

    The client of aiohttp does not read the message, so it comes from a repeated request without a WebSocket. Such a
    request starts no program even if the server no longer refuses it.
    """
    try:
        await cluster.ask("connect_get_namespaced_pod_exec", pod, namespace, command="true", timeout=10, **parameters)
    except ApiError as refused:
        error = error if "pgrade" in str(refused) else refused
    except ClusterError:
        pass
    if error.code in (400, 403) and not error.reason:
        return ApiError(error.code, "", f"{error}. {_TOO_OLD}")
    return error


def _keep_alive(opened: aiohttp.ClientWebSocketResponse) -> None:
    """Have the kernel detect a lost peer after half a minute, also while the peer reads no input."""
    found = opened.get_extra_info("socket")
    if found is None:
        return
    with contextlib.suppress(OSError):
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def _exit_code(status: bytes, sandbox: str) -> int:
    """Return the exit code from the status message of a server.

    Raises:
        ResourceError: if the status reports that no program was run, or has no exit code.
    """
    try:
        found = json.loads(status)
        if found.get("status") == "Success":
            return 0
        if found.get("reason") == "NonZeroExitCode":
            causes = (found.get("details") or {}).get("causes") or ()
            return next(int(it["message"]) for it in causes if it.get("reason") == "ExitCode")
        message = " ".join(str(found.get("message") or found.get("reason")).split())
    except (ValueError, AttributeError, KeyError, TypeError, StopIteration):
        message = os.fsdecode(status)
    raise ResourceError(f"No program was run in the {sandbox}: {message[:MAX_MESSAGE]}")
