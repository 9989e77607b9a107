"""Requests to the API server of a Kubernetes cluster, over shared connections.

    Access ==> Cluster.shared() -- one object per cluster, shared by its users until the last one releases it
                 send()              sends a request: renews expired credentials, repeats a failed one
                 ask(), get(), ...   requests: JSON in and out
                 watch()             changes of a pod

All code here runs in the event loop of `swerex_c.utils.background`. The library makes URLs, headers and TLS; its
models are not used, because a cluster may be newer than they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import math
import os
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlencode

import aiohttp
import yarl

from swerex_c._version import __version__
from swerex_c.providers.kubernetes.access import Access, load_configuration, require
from swerex_c.providers.kubernetes.errors import (
    ApiError,
    ClusterError,
    UnreachableError,
    UnusableConfigError,
    api_error,
    one_line,
    parse_object,
)

__all__ = ["EXEC_PROTOCOL", "Cluster"]

T = TypeVar("T")

EXEC_PROTOCOL = "v5.channel.k8s.io"
"""The protocol of a program's WebSocket. It can tell the end of the input; Kubernetes knows it since 1.30."""

_TIMEOUT = 30.0
"""Seconds to wait for a response, unless the caller sets a timeout."""

_PATIENCE = 2.0
"""Seconds to repeat a failed request, unless the caller has more patience. A server that restarts refuses connections
for a moment; a node that is lost makes requests fail too, and that has to be told soon."""

_MAX_PAUSE = 2.0
"""Maximum seconds to pause before a failed request is repeated."""

_BUSY_SECONDS = 0.5
"""Seconds to pause before a retry if the server is busy and does not say for how long."""


class Cluster:
    """Client of the API server of one cluster.

    Get an object from `shared`, and return it with `release`.
    """

    _known: ClassVar[dict[Access, Cluster]] = {}

    def __init__(self, access: Access) -> None:
        self.access = access
        self.namespace = "default"
        """Namespace of the context, or of the pod that this process runs in."""

        self._users = 0
        self._reset()

    def _reset(self) -> None:
        """Reset to the state without connections and credentials."""
        self.request_api: Any = None
        """The library's `CoreV1Api` that sends HTTP requests."""

        self.socket_api: Any = None
        """The library's `CoreV1Api` that opens WebSockets instead."""

        self._configuration: Any = None
        self._clients: list[Any] = []  # also former ones, whose connections programs still use
        self._renewing = asyncio.Lock()

    @classmethod
    async def shared(cls, access: Access) -> Cluster:
        """Return the shared object of a cluster.

        Its credentials were read, but a server has not necessarily checked them yet.

        Raises:
            UnusableConfigError: if the credentials cannot be read.
        """
        resolved = access.resolved()
        found = cls._known.setdefault(resolved, cls(resolved))
        found._users += 1
        try:
            await found._renew(None)
        except BaseException:
            await found.release()
            raise
        return found

    async def release(self) -> None:
        """Return an object from `shared`; the caller must not use it any more.

        The connections are closed when all its users have returned it.
        """
        self._users -= 1
        if self._users:
            return
        if self._known.get(self.access) is self:
            del self._known[self.access]
        for client in self._clients:
            with contextlib.suppress(Exception):
                await client.close()

    # Credentials

    async def _renew(self, stale: Any) -> None:
        """Read the configuration and make clients with it, unless that was done since `stale` was in use."""
        async with self._renewing:
            if self._configuration is stale:
                async with load_configuration(self.access) as (configuration, self.namespace):
                    self._add_clients(configuration)
                self._configuration = configuration

    def _add_clients(self, configuration: Any) -> None:
        configuration.connection_pool_maxsize = 0  # no limit: each program and each watch has a connection of its own
        client = require().client
        requests, sockets = client.ApiClient(configuration), client.ApiClient(configuration)
        sockets.request = functools.partial(_open_socket, sockets)
        requests.user_agent = sockets.user_agent = f"swerex-c/{__version__}"
        self._clients += [requests, sockets]
        self.request_api, self.socket_api = client.CoreV1Api(requests), client.CoreV1Api(sockets)

    # Sending

    async def send(
        self, request: Callable[[], Awaitable[T]], timeout: float = _TIMEOUT, *, patience: float = _PATIENCE
    ) -> T:
        """Return the result of a request, which is repeated while it fails in a way that may pass.

        Any of our requests may be carried out twice: we choose the name of a pod to create, there may be nothing to
        delete, and a program to start is an idle bash, which ends with its connection.

        Args:
            timeout: seconds for each response. A busy server is asked again for at least that long.
            patience: seconds for which the request is repeated after other failures.

        Raises:
            ClusterError
        """
        began, pause = time.monotonic(), 0.1
        renewed = may_have_run = False
        await self._renew(None)
        while True:
            configuration = self._configuration
            try:
                with self._converting_errors(timeout):
                    async with asyncio.timeout(timeout):
                        return await request()
            except ClusterError as error:
                error.may_have_run = may_have_run = may_have_run or error.may_have_run
                if isinstance(error, ApiError) and error.code == 401 and not renewed:
                    renewed = True
                    await self._renew(configuration)
                    continue
                pause, limit = min(2 * pause, _MAX_PAUSE), patience
                if isinstance(error, ApiError) and error.is_busy:
                    pause, limit = error.retry_after or _BUSY_SECONDS, max(timeout, patience)
                if not error.may_pass or time.monotonic() + pause > began + limit:
                    raise
            await asyncio.sleep(pause)

    @contextlib.contextmanager
    def _converting_errors(self, timeout: float) -> Iterator[None]:
        """Convert exceptions of the libraries in the block to ours. `timeout` is the seconds that the server had.

        Raises:
            UnreachableError, UnusableConfigError
        """
        host = self._configuration.host
        try:
            yield
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, TimeoutError) and not str(error):
                raise UnreachableError(f"{host} did not answer within {timeout:g} seconds") from error
            connected = not isinstance(error, aiohttp.ClientConnectorError)
            message = f"{host} cannot be reached: {one_line(error)}"
            raise UnreachableError(message, may_have_run=connected, may_pass=not _is_wrong(error)) from error
        except require().config.ConfigException as error:
            raise self.access.unusable(error) from error
        except RuntimeError as error:
            if self._users:
                raise
            raise UnusableConfigError("The connections to the cluster were closed") from error

    async def _respond(self, method: str, args: Any, parameters: Mapping[str, Any]) -> Any:
        """Send a request, and return the response before its body is read. An error status raises `ApiError`."""
        response = await getattr(self.request_api, method)(*args, _preload_content=False, **parameters)
        if response.status < 400:
            return response
        raise api_error(response.status, await response.read(), response.headers.get("Retry-After"))

    # Requests

    async def ask(
        self, method: str, *args: Any, timeout: float = _TIMEOUT, patience: float = _PATIENCE, **parameters: Any
    ) -> bytes:
        """Call a method of the library's `CoreV1Api`; return the body of the response.

        Args:
            method: name of the method.
            timeout, patience: as of `send`, in seconds.
            args, parameters: arguments of the method.

        Raises:
            ClusterError
        """

        async def request() -> bytes:
            response = await self._respond(method, args, parameters)
            try:
                return bytes(await response.read())
            finally:
                response.release()

        return await self.send(request, timeout, patience=patience)

    async def get(self, namespace: str, name: str, *, timeout: float = _TIMEOUT) -> dict[str, Any]:
        """Return a pod."""
        return parse_object(await self.ask("read_namespaced_pod", name, namespace, timeout=timeout))

    async def create(self, namespace: str, pod: Mapping[str, Any], *, patience: float) -> None:
        """Create a pod. It is no error if there is already one of its name, which is ours."""
        try:
            await self.ask("create_namespaced_pod", namespace, dict(pod), patience=patience)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise

    async def delete(self, namespace: str, name: str, grace: int, *, patience: float = _PATIENCE) -> bool:
        """Delete a pod, and return whether there was one.

        Args:
            grace: seconds that the pod has to end by itself. With 0, the server does not wait for the node.
        """
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": grace}
        try:
            await self.ask("delete_namespaced_pod", name, namespace, body=options, patience=patience)
        except ApiError as error:
            if error.code != 404:
                raise
            return False
        return True

    async def find(self, namespace: str | None, selector: str) -> dict[str, Any]:
        """Return the pods that match a label selector, as a list with its version.

        Args:
            namespace: None searches all namespaces.
        """
        if namespace is None:
            return parse_object(await self.ask("list_pod_for_all_namespaces", label_selector=selector))
        return parse_object(await self.ask("list_namespaced_pod", namespace, label_selector=selector))

    async def log(self, namespace: str, name: str, container: str, **parameters: Any) -> str:
        """Return the output of a container, as `read_namespaced_pod_log` returns it."""
        output = await self.ask("read_namespaced_pod_log", name, namespace, container=container, **parameters)
        return output.decode(errors="replace")

    async def events(self, namespace: str, pod: str, uid: str) -> list[dict[str, Any]]:
        """Return the events of a pod."""
        selector = f"involvedObject.kind=Pod,involvedObject.name={pod}" + (f",involvedObject.uid={uid}" if uid else "")
        return list(parse_object(await self.ask("list_namespaced_event", namespace, field_selector=selector))["items"])

    async def node(self, name: str, *, timeout: float = _TIMEOUT) -> dict[str, Any]:
        return parse_object(await self.ask("read_node", name, timeout=timeout))

    async def watch(
        self, namespace: str, name: str, version: str, seconds: float
    ) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        """Yield the changes of a pod since a version, as pairs of kind and pod, until the server ends the watch.

        The kind is `ADDED`, `MODIFIED` or `DELETED`.

        Args:
            seconds: time after which the server ends it.

        Raises:
            ClusterError: also if the version is too old.
            KeyError, TypeError, ValueError: if an event does not have the form of one.
        """
        parameters = {
            "field_selector": f"metadata.name={name}",
            "resource_version": version,
            "watch": True,
            "timeout_seconds": math.ceil(seconds),
        }
        response = await self.send(lambda: self._respond("list_namespaced_pod", (namespace,), parameters))
        try:
            with self._converting_errors(seconds):
                while line := await response.content.readline():
                    event = parse_object(line)
                    if event["type"] == "ERROR":
                        status = event["object"]
                        raise api_error(int(status.get("code", 500)), json.dumps(status).encode())
                    yield str(event["type"]), event["object"]
                    await asyncio.sleep(0)
        finally:
            response.close()


def _is_wrong(error: BaseException) -> bool:
    """Check whether `error` is a failure to connect that does not pass: a wrong name or certificate."""
    wrong = (aiohttp.ClientConnectorDNSError, aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError)
    return isinstance(error, wrong) or isinstance(getattr(error, "os_error", None), ssl.SSLError)


async def _open_socket(client: Any, method: str, url: str, **request: Any) -> Any:
    """Open a WebSocket for a request. Replaces the function by which the library sends a request that it has made.

    Args:
        client: `ApiClient` of the library.
    """
    configuration = client.configuration
    query = urlencode(request.get("query_params") or (), doseq=True)
    more = {"server_hostname": configuration.tls_server_name} if configuration.tls_server_name else {}
    return client.rest_client.pool_manager.ws_connect(
        yarl.URL(f"{url.replace('http', 'ws', 1)}?{query}", encoded=True),
        headers={name: value for name, value in (request.get("headers") or {}).items() if name != "Content-Type"},
        protocols=(EXEC_PROTOCOL,),
        proxy=configuration.proxy,
        proxy_headers=configuration.proxy_headers,
        autoping=False,
        **more,
    )


def _forget() -> None:
    """Have a forked process open connections of its own, also for users from before the fork."""
    for cluster in Cluster._known.values():
        _inherited.append(dict(vars(cluster)))
        cluster._reset()


_inherited: list[dict[str, Any]] = []
"""Objects of the parent, kept because closing or freeing them would change the event loop that the parent uses."""

os.register_at_fork(after_in_child=_forget)
