"""Requests to the API server of a Kubernetes cluster, over shared connections.

    Access ==> Cluster.shared() -- one object per cluster, shared by its users until the last one releases it
                 get(), create(), ...   requests: JSON in and out
                 watch()                changes of a pod
                 exec()                 the WebSocket of a program

All code here runs in the event loop of `swerex_c.utils.background`. The library `kubernetes_asyncio` reads kubeconfigs,
runs the programs that they name for credentials, and makes the TLS context. The requests are our own, because a cluster
may be newer than the library's models, and a program's WebSocket needs more than its client offers.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, urlencode

import aiohttp
import yarl

from swerex_c._version import __version__
from swerex_c.exceptions import PodStartupError
from swerex_c.providers.kubernetes.pods import MAX_MESSAGE
from swerex_c.utils.load import load_library
from swerex_c.utils.temporary import temporary_directory
from swerex_c.utils.visible import error_line

__all__ = ["Access", "Cluster", "ClusterError", "require", "startup_error"]

_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Directory of the credentials that a pod has for its own cluster."""

_WATCH, _EXEC = "WATCH", "EXEC"
"""GET requests whose response is a stream: of changes, and a WebSocket."""

_EXEC_PROTOCOL = "v5.channel.k8s.io"
"""The protocol of a program's WebSocket. It can tell the end of the input; Kubernetes knows it since 1.30."""

_TOO_OLD = f"The API server does not speak {_EXEC_PROTOCOL}: Kubernetes 1.30 or later is needed"

_TIMEOUT = 30.0
"""Seconds to wait for a response, and to ask a busy server again."""

_PATIENCE = 2.0
"""Seconds to repeat a failed request, unless the caller has more patience. A server that restarts refuses connections
for a moment; a node that is lost makes requests fail too, and that has to be told soon."""

_MORE_PATIENCE = 10.0
"""The same for the creation and the deletion of a pod."""

_MAX_PAUSE = 2.0
"""Maximum seconds to pause before a failed request is repeated."""

require = functools.partial(load_library, "kubernetes_asyncio", "kubernetes")
"""Function that imports and returns the library, or raises a NotAvailableError."""


# Errors


class ClusterError(Exception):
    """A failed request to a cluster."""

    def __init__(
        self, message: str, *, code: int = 0, reason: str = "", cause: str = "unreachable", pause: float = 0.0
    ) -> None:
        """Create an error.

        Args:
            code: HTTP status of the response; 0 if there was none.
            reason: the server's word for the cause, such as `AlreadyExists`; empty if it gave none.
            cause: `cause` of a startup error, if there was no response.
            pause: seconds that the server asks to wait.
        """
        super().__init__(message)
        self.code, self.reason, self.pause = code, reason, pause
        self.cause = _cause(code, message.lower()) if code else cause
        self.is_busy = code == 429 or (code == 409 and reason == "Conflict")
        """True if the server has too much to do, or there is a conflict with other users of a quota."""

        self.may_have_run = code >= 500
        """True if the server may have carried out the request nevertheless."""


def _cause(code: int, text: str) -> str:
    """Return the `cause` of a startup error for an error response."""
    if code == 401:
        return "credentials"
    if code == 404 and "namespaces" in text or code == 403 and "is being terminated" in text:
        return "namespace"
    if code == 403 and "exceeded quota" in text or "must specify" in text and "quota" in text:
        return "quota"
    if code == 403 and ("admission webhook" not in text or " cannot " in text):
        return "forbidden"
    return "unreachable" if code >= 500 or code == 429 else "refused"


def startup_error(error: ClusterError, what: str) -> PodStartupError:
    """Return the startup error for a failed request.

    Args:
        what: action that the cluster did not carry out, for the message, such as "create the pod x".
    """
    return PodStartupError(f"Cannot {what}: {error}", cause=error.cause, reason=error.reason)


async def _raise(response: aiohttp.ClientResponse) -> None:
    """Raise the error of an error response, with the server's own words."""
    if response.status < 400:
        return
    body = await response.read()
    try:
        status = json.loads(body)
        reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
    except (ValueError, AttributeError):  # an error page of a proxy is not JSON
        reason, message = "", body[:MAX_MESSAGE].decode(errors="replace")
    text = " ".join(message.split()) or reason or f"HTTP status {response.status}"
    text += " (the credentials are wrong or have expired)" if response.status == 401 else ""
    after = response.headers.get("Retry-After", "")
    raise ClusterError(text, code=response.status, reason=reason, pause=float(after) if after.isdecimal() else 0.0)


# Credentials


@dataclass(frozen=True)
class Access:
    """The choice of a cluster and of the credentials for it."""

    context: str | None = None
    """Context of the kubeconfig; None is its current context."""

    kubeconfig: str | None = None
    """Path of a file, or of several as in KUBECONFIG; None is that variable or ~/.kube/config."""

    in_cluster: bool | None = None
    """True uses the service account of the pod we run in; None does so where there is no kubeconfig."""

    def resolved(self) -> Access:
        """Return a copy with the defaults resolved from the environment.

        Raises:
            ClusterError: if there is no kubeconfig, and we do not run in a pod.
        """
        if self.in_cluster:
            return Access(in_cluster=True)
        files = self.kubeconfig or os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())
        if any(it and os.path.exists(os.path.expanduser(it)) for it in files.split(os.pathsep)):
            return Access(self.context, files, False)
        if self.in_cluster is None and self.kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            return Access(in_cluster=True)
        raise ClusterError(f"There is no kubeconfig at {files}, and this is no pod of a cluster", cause="credentials")

    async def load(self, directory: str) -> tuple[Any, str]:
        """Return the library's configuration, and the namespace of the context.

        Args:
            directory: where key files are written to. They are needed until clients are made.

        Raises:
            Exception: any, if the configuration is malformed or leads to no credentials.
        """
        library = require()
        configuration = library.client.Configuration()
        namespace = ""
        if self.in_cluster:
            library.config.load_incluster_config(client_configuration=configuration)
            with contextlib.suppress(OSError):
                namespace = (_SERVICE_ACCOUNT / "namespace").read_text().strip()
        else:
            loader = await library.config.load_kube_config(
                config_file=self.kubeconfig,
                context=self.context,
                client_configuration=configuration,
                persist_config=False,
                temp_file_path=directory,
            )
            namespace = str((loader.current_context or {}).get("context", {}).get("namespace") or "")
        configuration.connection_pool_maxsize = 0  # no limit: each program and each watch has a connection of its own
        return configuration, namespace or "default"


def _release_files(directory: str) -> None:
    """Have the library release the key files in a directory: it remembers their paths and never closes them."""
    files = getattr(require().config.kube_config, "_temp_files", {})
    for content in [it for it, path in files.items() if path.startswith(directory)]:
        del files[content]
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith(directory):
                os.close(int(descriptor))


class Cluster:
    """Client of the API server of one cluster.

    Get an object from `shared`, and return it with `release`. The requests raise `ClusterError`.
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
        self._configuration: Any = None
        self._session: Any = None
        self._sessions: list[aiohttp.ClientSession] = []  # with former ones, whose connections programs still use
        self._renewing = asyncio.Lock()

    @classmethod
    async def shared(cls, access: Access) -> Cluster:
        """Return the shared object of a cluster, whose credentials were read but not necessarily checked.

        Raises:
            ClusterError: if the credentials cannot be read.
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
        """Return an object from `shared`. Its connections are closed when all its users have returned it."""
        self._users -= 1
        if self._users:
            return
        if self._known.get(self.access) is self:
            del self._known[self.access]
        for session in self._sessions:
            with contextlib.suppress(Exception):
                await session.close()

    async def _renew(self, stale: Any) -> None:
        """Read the configuration and open a session with it, unless that was done since `stale` was in use."""
        async with self._renewing:
            if self._session is not stale:
                return
            with temporary_directory("swerex-c-") as directory:
                try:
                    configuration, self.namespace = await self.access.load(directory)
                    library_session = require().client.ApiClient(configuration).rest_client.pool_manager
                except Exception as error:  # a malformed file can make the library raise any exception
                    files = self.access.kubeconfig
                    origin = f"The kubeconfig {files}" if files else "The pod's service account"
                    message = f"{origin} cannot be used: {error_line(error)[:MAX_MESSAGE]}"
                    raise ClusterError(message, cause="credentials") from error
                finally:
                    _release_files(directory)
            headers = {"User-Agent": f"swerex-c/{__version__}"}
            if token := configuration.api_key.get("BearerToken"):  # is read again when the server refuses it
                headers["Authorization"] = str(token).strip()  # its file may end with a newline
            self._configuration = configuration
            self._session = aiohttp.ClientSession(
                connector=library_session.connector,
                headers=headers,
                timeout=aiohttp.ClientTimeout(),
                trust_env=True,
                read_bufsize=2 << 20,  # for a watch, which has a pod in each line
                raise_for_status=_raise,
            )
            library_session.detach()
            self._sessions.append(self._session)

    # Sending

    async def _send(
        self,
        path: str,
        query: Mapping[str, Any] | None = None,
        *,
        method: str = "GET",
        body: Any = None,
        patience: float = _PATIENCE,
        busy: float = _TIMEOUT,
    ) -> Any:
        """Send a request, which is repeated while it fails in a way that may pass.

        Any of our requests may be carried out twice: we choose the name of a pod to create, there may be nothing to
        delete, and a program to start is an idle bash, which ends with its connection.

        Args:
            query: parameters; those that are None are left out.
            method: of HTTP, or `_WATCH` or `_EXEC`.
            patience: seconds for which the request is repeated after failures.
            busy: the same for a server that has too much to do.

        Returns:
            the body of the response; for a watch the response, before its body is read; for a program its WebSocket.
        """
        began, pause = time.monotonic(), 0.1
        renewed = may_have_run = False
        while True:
            await self._renew(None)
            used = self._session
            try:
                async with asyncio.timeout(_TIMEOUT):
                    return await self._ask(method, path, query or {}, body)
            except ClusterError as raised:
                error = raised
            except ValueError as raised:  # no address, also as the library's `InvalidURL`
                raise self._converted(raised) from raised
            except (aiohttp.ClientError, OSError) as raised:
                error = self._converted(raised)
            error.may_have_run = may_have_run = may_have_run or error.may_have_run
            if error.code == 401 and not renewed:
                renewed = True
                await self._renew(used)
                continue
            pause, limit = min(2 * pause, _MAX_PAUSE), patience
            if error.is_busy:
                pause, limit = error.pause or pause, busy
            may_pass = error.is_busy or not error.code or error.code >= 500
            if not may_pass or time.monotonic() + pause > began + limit:
                raise error
            await asyncio.sleep(pause)

    async def _ask(self, method: str, path: str, query: Mapping[str, Any], body: Any) -> Any:
        session, configuration = self._session, self._configuration
        options = {
            "proxy": configuration.proxy,
            "proxy_headers": configuration.proxy_headers,
            "server_hostname": configuration.tls_server_name,
        }
        parameters = urlencode({name: value for name, value in query.items() if value is not None}, doseq=True)
        url = yarl.URL(f"{configuration.host}/api/v1/{path}?{parameters}", encoded=True)
        if method == _EXEC:
            return await session.ws_connect(url, protocols=(_EXEC_PROTOCOL,), autoping=False, **options)
        response = await session.request("GET" if method == _WATCH else method, url, json=body, **options)
        return response if method == _WATCH else await response.read()

    def _converted(self, error: Exception) -> ClusterError:
        """Return the error for an exception of the libraries, which is its cause."""
        late = isinstance(error, TimeoutError) and not str(error)
        why = f"did not answer within {_TIMEOUT:g} seconds" if late else f"cannot be reached: {error_line(error)}"
        converted = ClusterError(f"{self._configuration.host} {why[:MAX_MESSAGE]}")
        converted.may_have_run = not isinstance(error, (aiohttp.ClientConnectorError, ValueError))
        converted.__cause__ = error
        return converted

    # Requests

    async def _json(self, path: str, query: Mapping[str, Any] | None = None) -> dict[str, Any]:
        body = await self._send(path, query)
        with contextlib.suppress(ValueError):
            if isinstance(found := json.loads(body), dict):
                return found
        raise ClusterError(f"The server is not an API server of Kubernetes. It answered: {body[:200]!r}")

    async def get(self, namespace: str, name: str) -> dict[str, Any]:
        """Return a pod."""
        return await self._json(_pods(namespace, name))

    async def create(self, namespace: str, pod: Mapping[str, Any], *, busy: float) -> None:
        """Create a pod. It is no error if there is already one of its name, which is ours.

        Args:
            busy: seconds to ask a server again that has too much to do.
        """
        try:
            await self._send(_pods(namespace), method="POST", body=pod, patience=_MORE_PATIENCE, busy=busy)
        except ClusterError as error:
            if error.reason != "AlreadyExists":
                raise

    async def delete(self, namespace: str, name: str, grace: int) -> bool:
        """Delete a pod, and return whether there was one.

        Args:
            grace: seconds that the pod has to end by itself. With 0, the server does not wait for the node.
        """
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": grace}
        try:
            await self._send(_pods(namespace, name), method="DELETE", body=options, patience=_MORE_PATIENCE)
        except ClusterError as error:
            if error.code != 404:
                raise
            return False
        return True

    async def find(self, namespace: str, selector: str) -> list[dict[str, Any]]:
        """Return the pods that match a label selector."""
        return list((await self._json(_pods(namespace), {"labelSelector": selector}))["items"])

    async def log(self, namespace: str, name: str, container: str, *, tail: int | None) -> str:
        """Return the output of a container; of its lines only the last `tail`."""
        output: bytes = await self._send(_pods(namespace, name, "log"), {"container": container, "tailLines": tail})
        return output.decode(errors="replace")

    async def events(self, namespace: str, pod: str, uid: str) -> list[dict[str, Any]]:
        """Return the events of a pod."""
        selector = f"involvedObject.kind=Pod,involvedObject.name={pod}" + (f",involvedObject.uid={uid}" if uid else "")
        path = f"namespaces/{quote(namespace)}/events"
        return (await self._json(path, {"fieldSelector": selector})).get("items") or []

    async def node(self, name: str) -> dict[str, Any]:
        return await self._json(f"nodes/{quote(name)}")

    async def watch(self, namespace: str, name: str, version: str) -> AsyncGenerator[tuple[str, dict[str, Any]], None]:
        """Yield the changes of a pod since a version, as pairs of kind and pod, until the server ends the watch.

        The kind is `ADDED`, `MODIFIED` or `DELETED`; `ERROR`, with a status, if the version is too old.

        Raises:
            aiohttp.ClientError, OSError: if the connection breaks.
            LookupError, TypeError, ValueError: if an event does not have the form of one.
        """
        query = {"fieldSelector": f"metadata.name={name}", "resourceVersion": version, "watch": "true"}
        response = await self._send(_pods(namespace), query, method=_WATCH)
        try:
            async for line in response.content:
                event = json.loads(line)
                yield event["type"], event["object"]
                await asyncio.sleep(0)
        finally:
            response.close()

    async def exec(
        self, namespace: str, pod: str, container: str, command: list[str], *, tty: bool
    ) -> aiohttp.ClientWebSocketResponse:
        """Start a program in a container, and return the WebSocket to it."""
        streams = {"stdin": True, "stdout": True, "stderr": not tty, "tty": tty}
        query = {name: str(value).lower() for name, value in streams.items()}
        opened: aiohttp.ClientWebSocketResponse
        try:
            opened = await self._send(
                _pods(namespace, pod, "exec"), {**query, "container": container, "command": command}, method=_EXEC
            )
        except ClusterError as error:
            if error.code in (400, 403) and not error.reason:  # not a refusal of Kubernetes, but of the protocol
                raise ClusterError(f"{error}. {_TOO_OLD}", code=error.code) from error
            raise
        if opened.protocol != _EXEC_PROTOCOL:
            await opened.close()
            raise ClusterError(_TOO_OLD, code=400)
        return opened


def _pods(namespace: str, *parts: str) -> str:
    """Return the path of the pods of a namespace, or of a part of a pod."""
    return "/".join(("namespaces", quote(namespace), "pods", *map(quote, parts)))


def _forget() -> None:
    """Have a forked process open connections of its own, also for users from before the fork."""
    for cluster in Cluster._known.values():
        _inherited.extend(cluster._sessions)
        cluster._reset()


_inherited: list[Any] = []
"""Sessions of the parent, kept because closing or freeing them would change the event loop that the parent uses."""

os.register_at_fork(after_in_child=_forget)
