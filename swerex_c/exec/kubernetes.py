"""Containers of Kubernetes' pods, reached by the exec channel of the API: WebSockets, and no program beside us.

The first byte of a message is its channel: 0 is standard input, 1 and 2 are the outputs, 3 is how the program ended,
4 the size of its terminal, and 255 says which other channel is at its end. `v4.channel.k8s.io` has no 255: there a
small bash in the place reads the input line by line, with its end marked, and the program reads what it writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import aiohttp

from swerex_c.exceptions import InvalidInputError, PlaceLostError, ResourceError
from swerex_c.exec import loops, pods
from swerex_c.exec.called import CalledBackend, Program
from swerex_c.exec.cluster import NEW, OLD, Access, Cluster, Refused, TooOldError, Unreachable, Unusable, dial

if TYPE_CHECKING:
    from aiohttp import ClientWebSocketResponse

__all__ = ["KubernetesBackend"]

_STDIN, _STDOUT, _STDERR, _STATUS, _RESIZE, _CLOSE = 0, 1, 2, 3, 4, 255

_PIECE = 32768
"""Bytes of input in one message, as kubectl has them."""

_LINE = 2048
"""Bytes of input in one line, where input is sent in lines."""

_QUIET_SECONDS = 15.0
"""After so long without a message a ping is sent, so that nothing between takes the connection for idle."""

_ANSWER_SECONDS = 45.0
"""How long the answer to a ping may take. A server that waits for the program to take its input answers none."""

_PING_SECONDS = 1.0
"""How long sending a ping or the answer to one may wait for input to be taken: outputs are not read meanwhile."""

_AFTER_SECONDS = 5.0
"""How long the end of a connection is waited for after the program's."""

_CLOSE_SECONDS = 2.0
"""How long a connection may take to be closed that nobody wants any more."""

_DIAL_SECONDS = 30.0
"""How long a program may take to be begun."""

_NO_TEXT = re.compile("[\udc80-\udcff]")
"""Bytes of a word that are no text, which the API does not take."""

# $1: how many words the program has; they follow, and then variables. Each is written as for printf's %b.
_UNPACK = (
    'swx_n=$1; shift; swx_a=(); for swx_w; do printf -v swx_w %b "$swx_w"; if ((swx_n-- > 0)); then '
    'swx_a+=("$swx_w"); else export "$swx_w"; fi; done; exec "${swx_a[@]}"'
)

# The program reads what this writes, and has our process id and exit code.
_LINES = (
    'exec "$@" < <(exec 2>/dev/null; LC_ALL=C; '
    'while IFS= read -r line && [[ $line != - ]]; do printf %b "${line:1}" || exit; done)'
)


class ExecProgram(Program):
    """A program behind a WebSocket."""

    def __init__(self, opened: ClientWebSocketResponse, called: str, *, lines: bool) -> None:
        """
        Args:
            called: what messages call the pod.
            lines: whether it reads its input in lines, by `_LINES`.
        """
        self._socket, self._called, self._lines = opened, called, lines
        self._turn = loops.turn()
        self._status: bytes | None = None
        self._lost: str | None = None
        self._sent = self._taken = 0  # bytes of input: how many, and how many of them the server certainly has taken
        self._sending = False
        self._asked: tuple[float, int] | None = None  # when a ping was sent that has no answer, and what was sent then

    async def resize(self, rows: int, columns: int) -> None:
        await self._socket.send_bytes(bytes([_RESIZE]) + json.dumps({"Width": columns, "Height": rows}).encode())

    # What `Program` says

    async def send(self, data: bytes) -> None:
        self._sending = True
        size = _LINE if self._lines else _PIECE
        for i in range(0, len(data), size):
            piece = data[i : i + size]
            self._sent += len(piece)
            await self._socket.send_bytes(bytes([_STDIN]) + (_as_line(piece) if self._lines else piece))
        self._sending = False

    async def end_input(self) -> None:
        if self._lines:
            await self._socket.send_bytes(bytes([_STDIN]) + b"-\n")
        else:
            await self._socket.send_bytes(bytes([_CLOSE, _STDIN]))

    async def receive(self) -> tuple[int, bytes] | None:
        while (message := await self._message()) is not None:
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                continue
            channel, data = message.data[0], message.data[1:]
            if channel == _STATUS and data:
                self._status = (self._status or b"") + data
            elif channel in (_STDOUT, _STDERR) and data:
                return channel, data
        return None

    async def wait(self) -> int:
        if self._status is None:
            raise PlaceLostError(
                f"The connection to a program in the {self._called} broke before its end was told"
                + (f": {self._lost}" if self._lost else "")
            )
        return _exit_code(self._status, self._called)

    async def abandon(self) -> None:
        connection = self._socket._response.connection
        # A server that waits for its program to take input does not hear that we go, so it is not waited for long.
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self._socket.close(), _CLOSE_SECONDS)
        if connection is not None and connection.transport is not None:
            connection.transport.abort()

    # The connection

    async def _message(self) -> aiohttp.WSMessage | None:
        """The next message that carries something; None if there will be no more."""
        while True:
            await self._turn.over()
            try:
                message: aiohttp.WSMessage = await self._socket.receive(
                    _QUIET_SECONDS if self._status is None else _AFTER_SECONDS
                )
            except TimeoutError:
                if self._status is not None or not await self._still_there():
                    return None
                continue
            except (aiohttp.ClientError, OSError, RuntimeError) as error:
                self._lost = str(error) or type(error).__name__
                return None
            if message.type is aiohttp.WSMsgType.PING:
                with contextlib.suppress(aiohttp.ClientError, OSError):  # a TimeoutError is one
                    async with asyncio.timeout(_PING_SECONDS):
                        await self._socket.pong(message.data)
            elif message.type is aiohttp.WSMsgType.PONG:
                self._answered(bytes(message.data or b""))
            elif message.type is aiohttp.WSMsgType.ERROR:
                self._lost = str(message.data)
                return None
            elif message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED):
                self._lost = self._lost or (str(message.extra) if message.extra else None)
                return None
            else:
                return message

    def _answered(self, data: bytes) -> None:
        """An answer to a ping has in it what was sent before that, which the server has taken."""
        if data.isdigit():
            self._taken = max(self._taken, int(data))
            if self._asked is not None and self._taken >= self._asked[1]:
                self._asked = None

    async def _still_there(self) -> bool:
        """After a silence: whether the other end may be there. It is asked by a ping, which also keeps proxies from
        taking the connection for idle.

        A missing answer proves nothing while input is on its way, which a program takes when it likes: then it is the
        kernel that notices the end of the other side.
        """
        now = time.monotonic()
        if self._asked is None:
            self._asked = (now, self._sent)
        elif now - self._asked[0] > _ANSWER_SECONDS and self._asked[1] == self._taken:
            self._lost = f"nothing was heard from the server for {now - self._asked[0]:.0f} seconds"
            return False
        if self._sending:
            return True
        try:
            async with asyncio.timeout(_PING_SECONDS):
                await self._socket.ping(str(self._sent).encode())
        except TimeoutError:
            return True  # it is on its way, behind input that the program may take when its output is read
        except (aiohttp.ClientError, OSError) as error:
            self._lost = str(error) or type(error).__name__
            return False
        return True


class KubernetesBackend(CalledBackend):
    """A container of a pod that runs. It is neither started nor stopped here."""

    def __init__(
        self,
        pod: str,
        *,
        namespace: str | None = None,
        container: str | None = None,
        context: str | None = None,
        kubeconfig: str | None = None,
        in_cluster: bool | None = None,
    ) -> None:
        """
        Args:
            pod: its name.
            namespace: None is that of the context.
            container: None is the pod's default one, or its first; which it is, is found out by `open`.
            context: of the kubeconfig; None is its current one.
            kubeconfig: a file; None is KUBECONFIG or ~/.kube/config.
            in_cluster: whether to use what a pod has for its own cluster; None does where there is no kubeconfig.

        Raises:
            InvalidInputError: if a name cannot be one.
        """
        for name in (pod, namespace, container):
            if name is not None and not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", name):
                raise InvalidInputError(f"{name!r} is not a name in Kubernetes")
        self.pod, self.namespace, self.container = pod, namespace, container
        self.name = f"pod {pod}" + (f" in {namespace}" if namespace else "")
        self._access = Access(context, kubeconfig, in_cluster)
        self._cluster: Cluster | None = None
        self._closed = False
        self._running: pods.Running | None = None
        self._uid: str | None = None

    # Called in the loop of `loops`

    async def _reach(self) -> Cluster:
        if self._cluster is None:
            cluster = await Cluster.shared(self._access)
            if self._cluster is not None or self._closed:
                await cluster.release()
            else:
                self._cluster = cluster
        if self._cluster is None:
            raise Unusable("The place was closed")
        return self._cluster

    async def start_program(
        self, argv: Sequence[str], environment: Mapping[str, str], terminal: tuple[int, int] | None
    ) -> Program:
        cluster = await self._reach()
        command = _words(argv, environment)
        namespace = self.namespace or cluster.namespace
        tty = terminal is not None
        try:
            lines = not tty and cluster.speaks == OLD
            try:
                opened = await self._dial(cluster, namespace, command, tty, lines)
            except TooOldError:
                lines = True  # it has run nothing
                opened = await self._dial(cluster, namespace, command, tty, lines)
        except Refused as refused:
            raise ResourceError(f"The {self.name} starts no program: {refused}") from refused
        except (Unreachable, Unusable) as error:
            raise PlaceLostError(f"The {self.name} is out of reach: {error}") from error
        program = ExecProgram(opened, self.name, lines=lines)
        if terminal is not None:
            try:
                await program.resize(*terminal)
            except BaseException as error:
                await program.abandon()
                if isinstance(error, (aiohttp.ClientError, OSError)):
                    raise PlaceLostError(f"The connection to the {self.name} broke at once: {error}") from error
                raise
        return program

    async def _dial(
        self, cluster: Cluster, namespace: str, command: list[str], tty: bool, lines: bool
    ) -> ClientWebSocketResponse:
        words = ["bash", "-c", _LINES, "bash", *command] if lines else command
        # A terminal's input has no end, so every server will do.
        protocols = (NEW, OLD) if tty else (OLD,) if lines else (NEW,)
        return await dial(
            cluster, namespace, self.pod, self.container, words, tty=tty, protocols=protocols, timeout=_DIAL_SECONDS
        )

    async def _look(self, *, opening: bool, timeout: float) -> str | None:
        try:
            cluster = await self._reach()
            pod = await cluster.get(self.namespace or cluster.namespace, self.pod, timeout=timeout)
        except Refused as refused:
            return pods.gone(self.name) if refused.code == 404 else self._unknown(refused)
        except Unusable as error:
            return self._unknown(error)
        except Unreachable as error:
            return self._unknown(error)
        uid = str(pod["metadata"].get("uid") or "")
        if self._uid is not None and not opening and uid != self._uid:
            return f"The {self.name} was deleted, and is not the one that it was"
        found = pods.look(pod, self.name, self.container, None if opening else self._running)
        if isinstance(found, str):
            return found
        if opening:
            self.container, self._running, self._uid = found.container, found, uid
            return None
        return await self._node_lost(cluster, pod, timeout)

    async def _node_lost(self, cluster: Cluster, pod: Mapping[str, Any], timeout: float) -> str | None:
        """Why the node of a pod that is said to run is not there, as far as we may ask for nodes."""
        node = pod["spec"].get("nodeName")
        if not node or pods.condition(pod, "Ready").get("status") == "True":
            return None
        try:
            ready = pods.condition(await cluster.node(str(node), timeout=timeout), "Ready")
        except Refused as refused:
            return f"The node {node} of the {self.name} is gone" if refused.code == 404 else None
        except (Unreachable, Unusable):
            return None
        if not ready or ready.get("status") == "True":
            return None
        return f"The node {node} of the {self.name} is not there: {ready.get('message') or ready.get('reason')}"

    def _unknown(self, error: Exception) -> str:
        return f"The {self.name} is out of reach, for the API says: {str(error)[: pods.WORDS]}"

    async def _release(self) -> None:
        self._closed = True
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            await cluster.release()

    # What `Backend` says

    def open(self, timeout: float) -> None:
        self._closed = False
        try:
            lost = self.call(self._look(opening=True, timeout=timeout), timeout + 5)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            raise PlaceLostError(f"The {self.name} is not described as pods are: {error!r}") from error
        except TimeoutError as error:
            raise PlaceLostError(f"The {self.name} is out of reach: {error}") from None
        if lost:
            raise PlaceLostError(lost)

    def close(self) -> None:
        with contextlib.suppress(TimeoutError):
            self.call(self._release(), 5.0)

    def why_lost(self, timeout: float) -> str | None:
        try:
            return self.call(self._look(opening=False, timeout=timeout), timeout)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
            return f"The {self.name} is not described as pods are: {error!r}"


def _words(argv: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """A command that sets variables and becomes `argv`, in words that are text."""
    if not environment and not any(_NO_TEXT.search(word) for word in argv):
        return list(argv)
    words = [*argv, *(f"{name}={value}" for name, value in environment.items())]
    return ["bash", "-c", _UNPACK, "bash", str(len(argv)), *map(_coded, words)]


def _coded(word: str) -> str:
    return _NO_TEXT.sub(lambda found: f"\\x{ord(found[0]) - 0xDC00:02x}", word.replace("\\", "\\\\"))


def _as_line(data: bytes) -> bytes:
    """A line from which `_LINES` makes the data."""
    coded = data.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\0", b"\\0000")
    return b"=" + coded + b"\n"


def _exit_code(status: bytes, called: str) -> int:
    """The code in what a server says of a program's end.

    Raises:
        ResourceError: if it says that there was no program, or that it does not know.
    """
    try:
        said = json.loads(status)
        if said.get("status") == "Success":
            return 0
        if said.get("reason") == "NonZeroExitCode":
            causes = (said.get("details") or {}).get("causes") or ()
            return next(int(it["message"]) for it in causes if it.get("reason") == "ExitCode")
        words = " ".join(str(said.get("message") or said.get("reason")).split())
    except (ValueError, AttributeError, KeyError, TypeError, StopIteration):
        words = os.fsdecode(status)
    raise ResourceError(f"No program was run in the {called}: {words[: pods.WORDS]}")
