"""A WebSocket to a new program in a container of Kubernetes: a connection of its own each."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import aiohttp
import yarl

from swerex_c.exec._kube_errors import Refused, TooOldError, Unreachable, Unusable

if TYPE_CHECKING:
    from swerex_c.exec.cluster import Cluster

__all__ = ["NEW", "OLD", "dial", "open_socket"]

NEW, OLD = "v5.channel.k8s.io", "v4.channel.k8s.io"
"""What is spoken on the WebSocket of a program. The first has an end of input; Kubernetes knows it since 1.30."""

_BUSY_PAUSES = (0.5, 1.0, 2.0, 4.0)
"""Pauses after which a program is asked for again that the server had no time for."""

_offered: ContextVar[tuple[str, ...]] = ContextVar("_offered")
"""The protocols to open a WebSocket with: the library hands on nothing that it does not know."""


async def dial(
    cluster: Cluster,
    namespace: str,
    pod: str,
    container: str | None,
    command: list[str],
    *,
    tty: bool,
    protocols: tuple[str, ...],
    timeout: float,
) -> aiohttp.ClientWebSocketResponse:
    """A WebSocket to a new program in a container, which speaks one of the protocols.

    It is asked for again only where it certainly was not begun.

    Raises:
        Refused, Unreachable, Unusable
        TooOldError: if the server speaks none of them, but may speak `OLD`.
    """
    parameters = {"container": container, "stdin": True, "stdout": True, "stderr": not tty, "tty": tty}

    async def open_it() -> aiohttp.ClientWebSocketResponse:
        offered = _offered.set(protocols)
        try:
            opened: aiohttp.ClientWebSocketResponse = await (
                await cluster.for_sockets.connect_get_namespaced_pod_exec(
                    pod, namespace, command=command, _preload_content=False, **parameters
                )
            )
            return opened
        except aiohttp.WSServerHandshakeError as error:
            raise _Handshake(error) from error
        finally:
            _offered.reset(offered)

    try:
        opened = await cluster.send(open_it, timeout, busy=_BUSY_PAUSES)
    except _Handshake as error:
        refused = await _why_refused(cluster, namespace, pod, parameters, error)
        if error.code in (400, 403) and not refused.reason and OLD not in protocols:
            raise TooOldError(str(refused)) from error
        raise refused from error.__cause__
    if opened.protocol not in protocols:
        await opened.close()
        raise Refused(400, "", f"The API server speaks none of {', '.join(protocols)}")
    cluster.speaks = opened.protocol
    _keep_alive(opened)
    return opened


class _Handshake(Refused):
    """A WebSocket was refused; in what words, its client does not read."""

    def __init__(self, error: aiohttp.WSServerHandshakeError) -> None:
        super().__init__(error.status, "", f"HTTP status {error.status}")


async def _why_refused(
    cluster: Cluster, namespace: str, pod: str, parameters: Mapping[str, Any], error: _Handshake
) -> Refused:
    """In what words a WebSocket was refused. It is asked again without one, which comes to nothing where the refusal
    has passed."""
    try:
        await cluster.ask("connect_get_namespaced_pod_exec", pod, namespace, command="true", timeout=10, **parameters)
    except Refused as refused:
        return error if "pgrade" in str(refused) else refused
    except (Unreachable, Unusable):
        pass
    return error


async def open_socket(client: Any, configuration: Any, method: str, url: str, **request: Any) -> Any:
    """What the library calls to send a request that it has made, in place of its own: open a WebSocket by it.

    Args:
        client: the library's client.
        configuration: the library's.
    """
    words: list[tuple[str, Any]] = []
    for name, value in request.get("query_params") or ():
        for each in value if isinstance(value, list) else [value]:
            words.append((name, str(each).lower() if isinstance(each, bool) else each))
    target = yarl.URL(f"{url}?{urlencode(words)}", encoded=True)
    more = {"server_hostname": configuration.tls_server_name} if configuration.tls_server_name else {}
    return client.rest_client.pool_manager.ws_connect(
        target.with_scheme({"http": "ws", "https": "wss"}.get(target.scheme, target.scheme)),
        headers={name: value for name, value in (request.get("headers") or {}).items() if name != "Content-Type"},
        protocols=_offered.get(),
        proxy=configuration.proxy,
        proxy_headers=configuration.proxy_headers,
        autoping=False,
        **more,
    )


def _keep_alive(opened: aiohttp.ClientWebSocketResponse) -> None:
    """Have the kernel notice that the other end is gone: after half a minute, also while it takes no input."""
    found = opened.get_extra_info("socket")
    if found is None:
        return
    with contextlib.suppress(OSError):
        found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
