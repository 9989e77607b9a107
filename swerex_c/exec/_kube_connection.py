"""What is kept of a cluster of Kubernetes: connections and credentials, and how anything is sent there.

    Access ==> Connection.shared() -- one for all who name the same cluster, until the last has let go of it
                 send()    whatever it is: with new credentials where they have expired, again where nothing was begun

All of it runs in the loop of `swerex_c.exec.loops`. The library makes URLs, headers and TLS; its models are not used,
because a cluster may be newer than they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, ClassVar, Self, TypeVar

import aiohttp

from swerex_c.exec._kube_access import Access, reading, settings
from swerex_c.exec._kube_errors import Refused, passes, require, told
from swerex_c.exec._kube_sockets import open_socket

__all__ = ["Connection"]

T = TypeVar("T")

_CONNECT_PAUSES = (0.2, 1.0)
"""Pauses between attempts to connect; a server that restarts refuses for a moment."""


class Connection:
    """To be had from `shared`, and let go of by `release`."""

    _known: ClassVar[dict[Access, Connection]] = {}

    def __init__(self, access: Access) -> None:
        self.access = access
        self.namespace = "default"
        """That of the context, or of the pod that this runs in."""

        self._users = 0
        self._begin()

    def _begin(self) -> None:
        """Have no connections and no credentials yet."""
        self._renewing = asyncio.Lock()
        self._generation = 0
        self._configuration: Any = None
        self._settings: list[Any] = []
        self._requests: Any = None
        self._sockets: Any = None
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
            async with reading(self.access) as (configuration, self.namespace):
                self._use(configuration)
            self._generation += 1

    def _use(self, configuration: Any) -> None:
        now, found = self._configuration, settings(configuration)
        if now is not None and found == self._settings:
            now.api_key = configuration.api_key
            now.refresh_api_key_hook = configuration.refresh_api_key_hook
            return
        if self._requests is not None:
            self._former += [self._requests, self._sockets]  # there are programs on their connections
        configuration.connection_pool_maxsize = 0  # no limit but that of turns
        client = require().client
        self._requests, self._sockets = client.ApiClient(configuration), client.ApiClient(configuration)
        self._sockets.request = functools.partial(open_socket, self._sockets, configuration)
        # aiohttp asks again whatever should be harmless to ask for twice, and takes the start of a program for that.
        session = self._sockets.rest_client.pool_manager
        if hasattr(session, "_retry_connection"):
            session._retry_connection = False
        self._configuration, self._settings = configuration, found
        from swerex_c._version import __version__

        self._requests.user_agent = self._sockets.user_agent = f"swerex-c/{__version__}"

    @property
    def for_requests(self) -> Any:
        """The library's `CoreV1Api`, which sends requests."""
        return require().client.CoreV1Api(self._requests)

    @property
    def for_sockets(self) -> Any:
        """The same, which opens WebSockets instead."""
        return require().client.CoreV1Api(self._sockets)

    # Sending

    async def send(self, begin: Callable[[], Awaitable[T]], timeout: float, *, busy: tuple[float, ...] = ()) -> T:
        """What `begin` gives. It is called again where what it asks for certainly was not begun.

        Args:
            timeout: seconds for each call.
            busy: pauses after which it is called again if the server has no time for it.

        Raises:
            Refused: if `begin` does.
            Unreachable, Unusable
        """
        renewed, pauses, busy_pauses = False, iter(_CONNECT_PAUSES), iter(busy)
        await self._renew(0)
        while True:
            generation = self._generation
            try:
                with self.telling(timeout):
                    async with asyncio.timeout(timeout):
                        return await begin()
            except Refused as refused:
                if refused.code == 401 and not renewed:
                    renewed = True
                    await self._renew(generation)
                elif refused.code == 429 and (pause := next(busy_pauses, None)) is not None:
                    await asyncio.sleep(pause)
                else:
                    raise
            except Exception as error:
                cause = error.__cause__
                if not isinstance(cause, aiohttp.ClientConnectorError) or not passes(cause):
                    raise
                if (pause := next(pauses, None)) is None:
                    raise
                await asyncio.sleep(pause)

    @contextlib.contextmanager
    def telling(self, timeout: float) -> Iterator[None]:
        """What the libraries raise within is raised as one of our errors; timeout: seconds that the server had.

        Raises:
            Unreachable, Unusable
        """
        try:
            yield
        except Exception as error:
            host, origin = str(self._configuration.host), self.access.origin
            ours = told(error, host=host, origin=origin, timeout=timeout, closed=not self._users)
            if ours is None:
                raise
            raise ours from error


def _forget() -> None:
    """A forked process has connections of its own, also for those who name a cluster since before."""
    for connection in Connection._known.values():
        _inherited.extend(connection.begin_anew())


_inherited: list[Any] = []

os.register_at_fork(after_in_child=_forget)
