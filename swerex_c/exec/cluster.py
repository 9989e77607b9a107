"""A cluster of Kubernetes, reached by the library `kubernetes_asyncio`: what is asked of its API server, and how.

    Access ==> Cluster.shared() -- one for all who name the same cluster, until the last has let go of it
                 ask(), get(), ...   requests: JSON in and out, on a bounded number of connections
                 watch()             what happens to the pods of a namespace
                 dial()              a WebSocket to a program in a container: a connection of its own each

All of it runs in the loop of `swerex_c.exec.loops`. The library reads configurations, finds credentials, and makes
URLs, headers and TLS; its models are not used, because a cluster may be newer than they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import socket
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import urlencode

import aiohttp
import yarl

__all__ = ["NEW", "OLD", "Access", "Cluster", "Refused", "TooOldError", "Unreachable", "Unusable", "require"]

NEW, OLD = "v5.channel.k8s.io", "v4.channel.k8s.io"
"""What is spoken on the WebSocket of a program. The first has an end of input; Kubernetes knows it since 1.30."""

_AT_ONCE = 16
"""How many requests are under way at most, for all pods of a cluster. Watches and programs have connections beside."""

_TIMEOUT = 30.0
"""How long a request may take that does not say otherwise."""

_CONNECT_PAUSES = (0.2, 1.0)
"""Pauses between attempts to connect; a server that restarts refuses for a moment."""

_BUSY_PAUSES = (0.5, 1.0, 2.0, 4.0)
"""Pauses after which a program is asked for again that the server had no time for."""

_WATCH_SECONDS = 240
"""After how long the server ends a watch, so that one that died unseen is not waited for long."""

_SERVICE = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds what it may reach its cluster with."""


_offered: ContextVar[tuple[str, ...]] = ContextVar("_offered")
"""The protocols to open a WebSocket with: the library hands on nothing that it does not know."""


def require() -> Any:
    """The library, whose modules `client` and `config` are loaded.

    Raises:
        ModuleNotFoundError: if it is not here, with the way to have it.
    """
    try:
        import kubernetes_asyncio
        import kubernetes_asyncio.client
        import kubernetes_asyncio.config
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "kubernetes_asyncio":
            raise
        message = "Pods of Kubernetes are reached by kubernetes_asyncio: pip install 'swerex-c[kubernetes]'"
        raise ModuleNotFoundError(message, name=error.name) from None
    return kubernetes_asyncio


class Unusable(Exception):
    """There is no configuration, or it cannot be used, or what it says how to get credentials by has failed."""


class Unreachable(Exception):
    """No API server answers, or not in time."""

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent
        """Whether the request may have been carried out nevertheless."""


class TooOldError(Exception):
    """The server does not speak the protocol that it was asked for. It has run nothing."""


class Refused(Exception):
    """The API server answered that it does not do this. The text is its own."""

    def __init__(self, code: int, reason: str, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.retry_after = retry_after


@dataclasses.dataclass(frozen=True)
class Access:
    """Which cluster, and as whom."""

    context: str | None = None
    """Of the kubeconfig; None is its current one."""

    kubeconfig: str | None = None
    """A file, or several as in KUBECONFIG; None is that variable or ~/.kube/config."""

    in_cluster: bool | None = None
    """Whether to use what a pod has for its own cluster; None does where there is no kubeconfig."""

    def settled(self) -> Access:
        """The same with what the environment says now in it."""
        if self.in_cluster:
            return Access(in_cluster=True)
        files = self.kubeconfig or os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())
        found = any(it and os.path.exists(os.path.expanduser(it)) for it in files.split(os.pathsep))
        inside = "KUBERNETES_SERVICE_HOST" in os.environ
        if self.in_cluster is None and not found and self.kubeconfig is None and inside:
            return Access(in_cluster=True)
        if not found:
            raise Unusable(f"There is no kubeconfig at {files}, and this is not a pod of a cluster")
        return Access(self.context, files, False)


class Cluster:
    """What is kept of a cluster: connections and credentials. To be had from `shared`, and let go of by `release`."""

    _known: ClassVar[dict[Access, Cluster]] = {}

    def __init__(self, access: Access) -> None:
        self.access = access
        self.namespace = "default"
        """That of the context, or of the pod that this runs in."""

        self.speaks: str | None = None
        """`NEW` or `OLD`, when a program was run."""

        self._users = 0
        self._begin()

    def _begin(self) -> None:
        """Have no connections and no credentials yet."""
        self._renewing = asyncio.Lock()
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._generation = 0
        self._configuration: Any = None
        self._requests: Any = None
        self._sockets: Any = None
        self._core: Any = None
        self._core_sockets: Any = None
        self._former: list[Any] = []

    def begin_anew(self) -> list[Any]:
        """In a process that was forked: leave the connections to its parent, and have others when they are needed.

        Returns what nobody may close or drop in this process, for the parent's loop would hear of that.
        """
        inherited = [self._requests, self._sockets, *self._former]
        self._begin()
        return inherited

    @classmethod
    async def shared(cls, access: Access) -> Self:
        """The cluster, with credentials. Nobody is asked yet whether they are good.

        Raises:
            Unusable: if they cannot be had.
        """
        settled = access.settled()
        found = cls._known.get(settled)
        if found is None:
            found = cls._known[settled] = cls(settled)
        assert isinstance(found, cls)
        found._users += 1
        try:
            await found._renew(0)
        except BaseException:
            await found.release()
            raise
        return found

    async def release(self) -> None:
        """Not to be used any more by the one who got it. After the last one the connections are closed."""
        self._users -= 1
        if self._users:
            return
        if self._known.get(self.access) is self:
            del self._known[self.access]
        clients = [it for it in (self._requests, self._sockets, *self._former) if it is not None]
        for client in clients:
            with contextlib.suppress(Exception):
                await client.close()

    # Credentials

    async def _renew(self, generation: int) -> None:
        """Read the configuration again, unless that was done since it was at this generation."""
        if self._generation != generation:
            return
        async with self._renewing:
            if self._generation != generation:
                return
            with tempfile.TemporaryDirectory(prefix="swerex-c-") as directory:
                try:
                    configuration = await self._read(directory)
                    self._use(configuration)
                except Unusable:
                    raise
                except Exception as error:  # the library raises whatever a malformed file leads to
                    raise Unusable(f"{self._origin()} cannot be used: {_text(error)}") from error
                finally:
                    # It remembers the files that it wrote keys into; they are gone with the directory.
                    files = getattr(require().config.kube_config, "_temp_files", {})
                    for content in [it for it, path in files.items() if path.startswith(directory)]:
                        del files[content]
            self._generation += 1

    def _origin(self) -> str:
        return "The pod's service account" if self.access.in_cluster else f"The kubeconfig {self.access.kubeconfig}"

    async def _read(self, directory: str) -> Any:
        configuration = require().client.Configuration()
        if self.access.in_cluster:
            require().config.load_incluster_config(client_configuration=configuration)
            with contextlib.suppress(OSError):
                self.namespace = (_SERVICE / "namespace").read_text().strip() or "default"
            return configuration
        loader = await require().config.load_kube_config(
            config_file=self.access.kubeconfig,
            context=self.access.context,
            client_configuration=configuration,
            persist_config=False,
            temp_file_path=directory,
        )
        self.namespace = str((loader.current_context or {}).get("context", {}).get("namespace") or "default")
        return configuration

    def _use(self, configuration: Any) -> None:
        _strip(configuration)
        if (refresh := configuration.refresh_api_key_hook) is not None:

            def renewed(it: Any) -> None:
                refresh(it)
                _strip(it)

            configuration.refresh_api_key_hook = renewed
        now = self._configuration
        kept = ("host", "ssl_ca_cert", "cert_file", "key_file", "verify_ssl", "tls_server_name", "proxy")
        files = [_content(getattr(configuration, it)) for it in kept]
        if now is not None and files == now.swerex_c_files:
            now.api_key = configuration.api_key
            now.refresh_api_key_hook = configuration.refresh_api_key_hook
            return
        configuration.swerex_c_files = files
        if self._requests is not None:
            self._former += [self._requests, self._sockets]  # there are programs on their connections
        configuration.connection_pool_maxsize = 0  # no limit but that of turns
        client = require().client
        self._requests, self._sockets = client.ApiClient(configuration), client.ApiClient(configuration)
        self._sockets.request = self._open_socket
        # aiohttp asks again whatever should be harmless to ask for twice, and takes the start of a program for that.
        session = self._sockets.rest_client.pool_manager
        if hasattr(session, "_retry_connection"):
            session._retry_connection = False
        self._configuration = configuration
        self._core, self._core_sockets = client.CoreV1Api(self._requests), client.CoreV1Api(self._sockets)
        from swerex_c._version import __version__

        self._requests.user_agent = self._sockets.user_agent = f"swerex-c/{__version__}"

    # Requests

    async def ask(self, method: str, *args: Any, timeout: float = _TIMEOUT, **parameters: Any) -> bytes:
        """Call a method of the library's `CoreV1Api`, and return what the server answers as it is.

        Raises:
            Refused, Unreachable, Unusable
        """
        async with self._turns:
            response = await self._respond(method, args, timeout, parameters)
            try:
                async with asyncio.timeout(timeout):
                    return bytes(await response.read())
            except (aiohttp.ClientError, OSError) as error:
                raise self._unreachable(error, timeout) from error
            finally:
                response.release()

    async def _respond(self, method: str, args: Any, timeout: float, parameters: Mapping[str, Any]) -> Any:
        """The beginning of an answer that is no refusal."""
        renewed = False
        pauses = iter(_CONNECT_PAUSES)
        await self._renew(0)
        limit = aiohttp.ClientTimeout(total=None, connect=timeout)
        while True:
            generation = self._generation
            try:
                async with asyncio.timeout(timeout):
                    response = await getattr(self._core, method)(
                        *args, _preload_content=False, _request_timeout=limit, **parameters
                    )
                    if response.status < 400:
                        return response
                    body = await response.read()
            except aiohttp.ClientConnectorError as error:
                if (pause := next(pauses, None)) is None or not _passing(error):
                    raise self._unreachable(error, timeout) from error
                await asyncio.sleep(pause)
                continue
            except (aiohttp.ClientError, OSError) as error:
                raise self._unreachable(error, timeout) from error
            except require().config.ConfigException as error:
                raise Unusable(f"{self._origin()} cannot be used: {_text(error)}") from error
            except RuntimeError as error:
                if self._users:
                    raise
                raise Unusable("The connections to the cluster were closed") from error
            if response.status == 401 and not renewed:
                renewed = True
                await self._renew(generation)
                continue
            raise _refused(response.status, body, response.headers.get("Retry-After"))

    def _unreachable(self, error: BaseException, timeout: float) -> Unreachable:
        host = str(self._configuration.host)
        if isinstance(error, TimeoutError) and not str(error):
            return Unreachable(f"{host} did not answer within {timeout:g} seconds")
        sent = not isinstance(error, aiohttp.ClientConnectorError)
        return Unreachable(f"{host} cannot be reached: {_text(error)}", sent=sent)

    async def get(self, namespace: str, name: str, *, timeout: float = _TIMEOUT) -> dict[str, Any]:
        """A pod."""
        return _object(await self.ask("read_namespaced_pod", name, namespace, timeout=timeout))

    async def create(self, namespace: str, pod: Mapping[str, Any]) -> dict[str, Any]:
        return _object(await self.ask("create_namespaced_pod", namespace, dict(pod)))

    async def delete(self, namespace: str, name: str, grace: int) -> None:
        """Have a pod deleted, within so many seconds. With 0 it is not waited until its node has ended it."""
        options = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": grace}
        await self.ask("delete_namespaced_pod", name, namespace, body=options)

    async def find(self, namespace: str | None, selector: str) -> dict[str, Any]:
        """Pods with certain labels, as a list with its version; of all namespaces if None."""
        if namespace is None:
            return _object(await self.ask("list_pod_for_all_namespaces", label_selector=selector))
        return _object(await self.ask("list_namespaced_pod", namespace, label_selector=selector))

    async def log(self, namespace: str, name: str, container: str, **parameters: Any) -> str:
        """What a container has printed, as `read_namespaced_pod_log` gives it."""
        said = await self.ask("read_namespaced_pod_log", name, namespace, container=container, **parameters)
        return said.decode(errors="replace")

    async def events(self, namespace: str, pod: str, uid: str) -> list[dict[str, Any]]:
        """What was noted of a pod."""
        selector = f"involvedObject.kind=Pod,involvedObject.name={pod}" + (f",involvedObject.uid={uid}" if uid else "")
        return list(_object(await self.ask("list_namespaced_event", namespace, field_selector=selector))["items"])

    async def node(self, name: str, *, timeout: float = _TIMEOUT) -> dict[str, Any]:
        return _object(await self.ask("read_node", name, timeout=timeout))

    async def watch(self, namespace: str, selector: str, version: str) -> AsyncIterator[tuple[str, dict[str, Any]]]:
        """What happens to pods after a version, as pairs of `ADDED`, `MODIFIED`, `DELETED` or `BOOKMARK` and the pod.

        Ends when the server ends it.

        Raises:
            Refused: with 410 if the version is too old.
            Unreachable, Unusable
        """
        parameters = {
            "label_selector": selector,
            "resource_version": version,
            "watch": True,
            "allow_watch_bookmarks": True,
            "timeout_seconds": _WATCH_SECONDS,
        }
        response = await self._respond("list_namespaced_pod", (namespace,), _TIMEOUT, parameters)
        try:
            while True:
                async with asyncio.timeout(_WATCH_SECONDS + _TIMEOUT):
                    line = await response.content.readline()
                if not line:
                    return
                event = _object(line)
                if event["type"] == "ERROR":
                    raise _refused(int(event["object"].get("code", 500)), json.dumps(event["object"]).encode(), None)
                yield str(event["type"]), event["object"]
        except (aiohttp.ClientError, OSError, ValueError, KeyError) as error:
            raise self._unreachable(error, _WATCH_SECONDS) from error
        finally:
            response.close()

    # Programs

    async def dial(
        self,
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
        renewed, pauses, busy = False, iter(_CONNECT_PAUSES), iter(_BUSY_PAUSES)
        await self._renew(0)
        while True:
            generation = self._generation
            offered = _offered.set(protocols)
            try:
                async with asyncio.timeout(timeout):
                    opened: aiohttp.ClientWebSocketResponse = await (
                        await self._core_sockets.connect_get_namespaced_pod_exec(
                            pod, namespace, command=command, _preload_content=False, **parameters
                        )
                    )
            except aiohttp.ClientConnectorError as error:
                if (pause := next(pauses, None)) is None or not _passing(error):
                    raise self._unreachable(error, timeout) from error
                await asyncio.sleep(pause)
                continue
            except aiohttp.WSServerHandshakeError as error:
                if error.status == 401 and not renewed:
                    renewed = True
                    await self._renew(generation)
                    continue
                if error.status == 429 and (pause := next(busy, None)) is not None:
                    await asyncio.sleep(pause)
                    continue
                refused = await self._why_refused(namespace, pod, parameters, error)
                if error.status in (400, 403) and not refused.reason and OLD not in protocols:
                    raise TooOldError(str(refused)) from error
                raise refused from error
            except (aiohttp.ClientError, OSError) as error:
                raise self._unreachable(error, timeout) from error
            except require().config.ConfigException as error:
                raise Unusable(f"{self._origin()} cannot be used: {_text(error)}") from error
            except RuntimeError as error:
                if self._users:
                    raise
                raise Unusable("The connections to the cluster were closed") from error
            finally:
                _offered.reset(offered)
            if opened.protocol not in protocols:
                await opened.close()
                raise Refused(400, "", f"The API server speaks none of {', '.join(protocols)}")
            self.speaks = opened.protocol
            _keep_alive(opened)
            return opened

    async def _open_socket(self, method: str, url: str, **request: Any) -> Any:
        """What the library calls to send a request that it has made, in place of its own: open a WebSocket by it."""
        words: list[tuple[str, Any]] = []
        for name, value in request.get("query_params") or ():
            for each in value if isinstance(value, list) else [value]:
                words.append((name, str(each).lower() if isinstance(each, bool) else each))
        target = yarl.URL(f"{url}?{urlencode(words)}", encoded=True)
        configuration = self._configuration
        more = {"server_hostname": configuration.tls_server_name} if configuration.tls_server_name else {}
        return self._sockets.rest_client.pool_manager.ws_connect(
            target.with_scheme({"http": "ws", "https": "wss"}.get(target.scheme, target.scheme)),
            headers={name: value for name, value in (request.get("headers") or {}).items() if name != "Content-Type"},
            protocols=_offered.get(),
            proxy=configuration.proxy,
            proxy_headers=configuration.proxy_headers,
            autoping=False,
            **more,
        )

    async def _why_refused(
        self, namespace: str, pod: str, parameters: Mapping[str, Any], error: aiohttp.WSServerHandshakeError
    ) -> Refused:
        """In what words a WebSocket was refused: the client does not read them. So it is asked again without one,
        which comes to nothing where the refusal has passed."""
        again = Refused(error.status, "", f"HTTP status {error.status}")
        try:
            await self.ask(
                "connect_get_namespaced_pod_exec", pod, namespace, command="true", timeout=10, **parameters
            )
        except Refused as refused:
            return again if "pgrade" in str(refused) else refused
        except (Unreachable, Unusable):
            pass
        return again


def _passing(error: aiohttp.ClientConnectorError) -> bool:
    """Whether connecting may succeed in a moment: not with a name or a certificate that is wrong."""
    wrong = (aiohttp.ClientConnectorDNSError, aiohttp.ClientConnectorCertificateError, aiohttp.ClientSSLError)
    return not isinstance(error, wrong) and not isinstance(error.os_error, ssl.SSLError)


def _refused(code: int, body: bytes, retry_after: str | None) -> Refused:
    try:
        status = json.loads(body)
        reason, message = str(status.get("reason") or ""), str(status.get("message") or "")
    except (ValueError, AttributeError):  # what proxies say is no JSON
        reason, message = "", body[:500].decode(errors="replace")
    words = " ".join(message.split()) or reason or f"HTTP status {code}"
    seconds = float(retry_after) if retry_after and retry_after.isdecimal() else None
    return Refused(code, reason, words, seconds)


def _object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data)
        if isinstance(found, dict):
            return found
    except ValueError:
        pass
    raise Unreachable(f"What answers is no API server of Kubernetes: {data[:200]!r}")


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


def _strip(configuration: Any) -> None:
    """A file with a token may end with the end of its line, which no header may hold."""
    configuration.api_key = {name: str(key).strip() for name, key in configuration.api_key.items()}


def _content(value: Any) -> Any:
    """A setting to compare: of a file, what is in it."""
    if isinstance(value, str) and value.startswith("/"):
        with contextlib.suppress(OSError):
            return Path(value).read_bytes()
    return value


def _text(error: BaseException) -> str:
    return " ".join(str(error).split())[:500] or type(error).__name__


def _forget() -> None:
    """A forked process has connections of its own, also for those who name a cluster since before."""
    for cluster in Cluster._known.values():
        _inherited.extend(cluster.begin_anew())


_inherited: list[Any] = []

os.register_at_fork(after_in_child=_forget)
