"""Backend that runs programs in containers of Kubernetes pods over the API.

Each program has an exec WebSocket of its own. The first byte of a message is its channel: 0 is standard input, 1 and 2
are the outputs, 3 is the exit status, 4 is the terminal size, and 255 closes another channel.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

import aiohttp

from swerex_c.exceptions import ResourceError, SandboxLostError
from swerex_c.providers.kubernetes import pods
from swerex_c.providers.kubernetes.client import Cluster, ClusterError
from swerex_c.sandbox.api_backend import ApiBackend
from swerex_c.sandbox.backend import Process
from swerex_c.sandbox.env_passing import as_words
from swerex_c.utils.visible import error_line

__all__ = ["KubernetesBackend"]

_STDIN, _STDOUT, _STDERR, _STATUS, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255

_MAX_INPUT = 32768
"""Maximum number of bytes of input in one message, as in kubectl."""

_QUIET_SECONDS = 15.0
"""Seconds without a message before a ping is sent, so that no proxy closes the connection as idle."""

_MAX_PINGS = 3
"""Number of pings in a row without any message after them, before the server is given up, as kubectl does."""

_PING_SECONDS = 1.0
"""Seconds that sending a ping or pong may wait behind unsent input. Outputs are not read meanwhile."""

_END_SECONDS = 5.0
"""Seconds to wait for the end of a connection after the program's exit status."""

_CLOSE_SECONDS = 2.0
"""Seconds to wait for the close handshake of an abandoned connection."""


class ExecProgram(Process):
    """A program in a container, connected by an exec WebSocket."""

    def __init__(self, websocket: aiohttp.ClientWebSocketResponse, sandbox: str) -> None:
        """Take over an open WebSocket. `sandbox` is the name of the pod in messages."""
        self._websocket, self._sandbox = websocket, sandbox
        self._status = b""
        self._lost = ""  # why the connection broke

    async def send(self, data: bytes) -> None:
        for i in range(0, len(data), _MAX_INPUT):
            await self._websocket.send_bytes(bytes([_STDIN]) + data[i : i + _MAX_INPUT])

    async def end_input(self) -> None:
        await self._websocket.send_bytes(bytes([_CLOSE, _STDIN]))

    async def receive(self) -> tuple[int, bytes] | None:
        pings = 0
        while True:
            await asyncio.sleep(0)
            try:
                message = await self._websocket.receive(_END_SECONDS if self._status else _QUIET_SECONDS)
            except TimeoutError:
                if self._status:
                    return None
                if pings == _MAX_PINGS:
                    self._lost = f"the server sent nothing for {(pings + 1) * _QUIET_SECONDS:g} seconds"
                    return None
                pings += 1
                await self._unless_full(self._websocket.ping())
                continue
            except (aiohttp.ClientError, OSError, RuntimeError) as error:
                self._lost = error_line(error)
                return None
            pings = 0
            if message.type is aiohttp.WSMsgType.BINARY:
                channel, data = message.data[:1], message.data[1:]
                if channel == bytes([_STATUS]):
                    self._status += data
                elif channel in (bytes([_STDOUT]), bytes([_STDERR])) and data:
                    return channel[0], data
            elif message.type is aiohttp.WSMsgType.PING:
                await self._unless_full(self._websocket.pong(message.data))
            elif message.type is not aiohttp.WSMsgType.PONG:  # it is closed or broken
                self._lost = str(message.extra or message.data or "")
                return None

    async def _unless_full(self, sending: Any) -> None:
        """Send a ping or a pong. It stays queued behind input that the program may read once its output is read."""
        with contextlib.suppress(aiohttp.ClientError, OSError):  # TimeoutError is an OSError
            async with asyncio.timeout(_PING_SECONDS):
                await sending

    async def wait(self) -> int:
        if not self._status:
            message = f"The connection to a program in the {self._sandbox} broke before its exit status arrived"
            raise SandboxLostError(message + (f": {self._lost}" if self._lost else ""))
        return _exit_code(self._status, self._sandbox)

    async def close(self) -> None:
        connection = self._websocket._response.connection
        # A server that waits for its program to read input does not see the close frame.
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._websocket.close(), _CLOSE_SECONDS)
        if connection is not None and connection.transport is not None:
            connection.transport.abort()


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
            return next(int(it["message"]) for it in found["details"]["causes"] if it.get("reason") == "ExitCode")
        message = " ".join(str(found.get("message") or found.get("reason")).split())
    except (ValueError, AttributeError, KeyError, TypeError, StopIteration):
        message = os.fsdecode(status)
    raise ResourceError(f"The {sandbox} did not run the program: {message[: pods.MAX_MESSAGE]}")


class KubernetesBackend(ApiBackend):
    """A container of a running pod, reached over the API, without a client program.

    The backend neither starts nor stops the container, nor does it release the cluster.
    """

    def __init__(self, cluster: Cluster, namespace: str, pod: str, container: str) -> None:
        self._cluster, self._namespace, self._pod, self._container = cluster, namespace, pod, container
        self.name = f"pod {pod} in {namespace}"
        self._running: pods.RunningContainer | None = None

    async def open(self) -> None:
        self._running = pods.find_running(await self._read(), self.name, self._container)

    def _unreachable(self, error: ClusterError) -> SandboxLostError:
        return SandboxLostError(f"The {self.name} is out of reach. The API says: {str(error)[: pods.MAX_MESSAGE]}")

    async def exec(
        self, argv: Sequence[str], env: Mapping[str, str], terminal: tuple[int, int] | None = None
    ) -> Process:
        where = self._namespace, self._pod, self._container
        try:
            websocket = await self._cluster.exec(*where, as_words(argv, env), tty=terminal is not None)
        except ClusterError as error:
            if error.code:
                raise ResourceError(f"The {self.name} did not start the program: {error}") from error
            raise self._unreachable(error) from error
        if terminal is not None:  # which has no size at first
            size = json.dumps({"Width": terminal[1], "Height": terminal[0]}).encode()
            with contextlib.suppress(aiohttp.ClientError, OSError):  # a broken connection is noticed later
                await websocket.send_bytes(bytes([_RESIZE]) + size)
        return ExecProgram(websocket, self.name)

    async def _read(self) -> dict[str, Any]:
        """Return the pod.

        Raises:
            SandboxLostError: if it is gone, or the cluster does not show it.
        """
        try:
            return await self._cluster.get(self._namespace, self._pod)
        except ClusterError as error:
            if error.code == 404:
                raise SandboxLostError(pods.gone_message(self.name)) from error
            raise self._unreachable(error) from error

    async def why_lost(self) -> str | None:
        try:
            pod = await self._read()
            pods.find_running(pod, self.name, self._container, self._running)
        except SandboxLostError as error:
            return str(error)
        return await self._node_lost(pod)

    async def _node_lost(self, pod: Mapping[str, Any]) -> str | None:
        """Return why the node of a pod that is reported as running is lost; None if it is not, or cannot be read."""
        node = pod["spec"].get("nodeName")
        if not node or pods.condition(pod, "Ready").get("status") == "True":
            return None
        try:
            ready = pods.condition(await self._cluster.node(str(node)), "Ready")
        except ClusterError as error:
            return f"The node {node} of the {self.name} is gone" if error.code == 404 else None
        if not ready or ready.get("status") == "True":
            return None
        return f"The node {node} of the {self.name} is not ready: {ready.get('message') or ready.get('reason')}"
