"""Sessions, commands and files in a place that is reached by running programs, such as a container or another host."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from swerex_c.exceptions import InvalidInputError, RuntimeClosedError, SwerexException
from swerex_c.runtime._sessions import SessionsRuntime

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

    from swerex_c.exec.backend import Backend
    from swerex_c.exec.place import Place
    from swerex_c.exec.session import Look
    from swerex_c.runtime import abstract
    from swerex_c.runtime._session import BashSession

__all__ = ["ExecRuntime"]

OPEN_SECONDS = 60.0
"""How long a place that was not opened before may take to be, when the first request comes."""

ALIVE_SECONDS = 10.0
"""How long `is_alive` asks if it is not told."""


CLOSE_SECONDS = 5.0
"""How long closing waits for an opening that is under way, and that it has told to end."""


class _Config:
    def __init__(self, output_limit: int) -> None:
        if output_limit < 1024:
            msg = f"output_limit has to be a number of bytes, 1024 or more: {output_limit!r}"
            raise InvalidInputError(msg)
        self.output_limit = output_limit


class ExecRuntime(SessionsRuntime):
    """Runs everything in another place, in which nothing is installed.

    The place has to have bash 4.4 or later. The environment, the directory and the user are those that a program gets
    there anyway, such as with `docker exec`; paths are those of the place. Closing the runtime ends what it started
    there, and leaves the place.

        runtime = ExecRuntime(DockerBackend("my-container"))
        await runtime.execute(Command(command="uname -a", shell=True))
    """

    def __init__(
        self,
        place: Backend | Place,
        *,
        logger: logging.Logger | None = None,
        output_limit: int | None = None,
        known: Look | None = None,
    ) -> None:
        """
        Args:
            place: what commands run in. A `Place` may be open already; the runtime closes it.
            output_limit: bytes of output that are kept of a command: half of them its beginning, half its end.
            known: what a look into the place has shown, by whoever has just had a bash of 4.4 or later run there:
                opening does not wait for another one then.
        """
        import swerex_c.exec.session  # noqa: F401  # what is slow to import, now
        from swerex_c.exec.place import Place
        from swerex_c.runtime.config import OUTPUT_LIMIT

        super().__init__(logger=logger)
        self._config = _Config(OUTPUT_LIMIT if output_limit is None else output_limit)
        self.place = place if isinstance(place, Place) else Place(place, logger=self.logger)
        self._opening = threading.Lock()
        self._opened = False
        self._known = known
        self.ends_with_place = False
        """To be set before `close` by whoever is about to end the place: nothing in it has to be ended then."""

    # -- the place

    async def open(self, timeout: float = OPEN_SECONDS) -> None:
        """Connect to the place and see that commands can run there. The first request does it otherwise.

        Raises:
            PlaceLostError: if there is no such place, or it cannot be reached.
            NotSupportedError: if it has no bash that is new enough.
            ResourceError: if no shell can be started there for another reason.
            TimeoutError: if that takes longer than `timeout` seconds.
        """
        from swerex_c.exec.threads import in_thread

        self._check_open()
        if not self._opened:
            await in_thread(self._open, timeout)

    def _open(self, timeout: float) -> None:
        from swerex_c.exec.session import look

        with self._opening:
            self._check_open()
            if self._opened:
                return
            if self._known is None:
                self.place.open(timeout)
                self._known = look(self.place, self.place.mark)
            else:
                self.place.open(timeout, shells=False)
            self._opened = True

    async def is_alive(self, *, timeout: float | None = None) -> abstract.IsAliveResponse:
        """Whether the place can run commands, and if not, why. Answers within `timeout` seconds, or 10."""
        from swerex_c.exec.threads import in_thread
        from swerex_c.runtime.abstract import IsAliveResponse

        if self._closed:
            return IsAliveResponse(is_alive=False, message="The runtime was closed")
        backend = self.place.backend
        try:
            reason = await in_thread(backend.why_lost, ALIVE_SECONDS if timeout is None else timeout)
        except (SwerexException, TimeoutError) as e:
            reason = str(e) or f"It cannot be learned in time whether {backend.name} is still there"
        return IsAliveResponse(is_alive=reason is None, message=reason or "")

    # -- sessions

    def _new_session(self, request: abstract.CreateBashSessionRequest) -> BashSession:
        from swerex_c.exec.session import ExecSession

        limit = self._config.output_limit
        return ExecSession(self.place, request, logger=self.logger, output_limit=limit, known=self._known)

    async def create_session(self, request: abstract.CreateSessionRequest) -> abstract.CreateSessionResponse:
        """Start a session and read its startup files; see `SessionsRuntime.create_session`.

        `startup_timeout` is for the startup files. The client that reaches the shell has a minute of its own.

        Raises:
            PlaceLostError: if the place is gone.
            NotSupportedError: if it has no bash.
        """
        await self.open()
        return await super().create_session(request)

    # -- commands and files

    async def execute(self, command: abstract.Command) -> abstract.CommandResponse:
        """Run a command in the place, outside of all sessions; see `AbstractRuntime.execute`.

        What it leaves in the background goes on until the runtime is closed.
        """
        from swerex_c.exec.programs import execute

        await self.open()
        try:
            return await execute(self.place, command, self._config.output_limit)
        except SwerexException:
            self._check_open()
            raise

    async def _with_files(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """A blocking function of `swerex_c.exec.files`, in a thread."""
        from swerex_c.exec.threads import in_thread

        await self.open()
        try:
            return await in_thread(function, self.place, *arguments)
        except (SwerexException, OSError):
            self._check_open()
            raise

    async def read_file(self, request: abstract.ReadFileRequest) -> abstract.ReadFileResponse:
        """Read a text file of the place. A relative path is relative to the directory that commands start in."""
        from swerex_c.exec.files import read_text
        from swerex_c.runtime.abstract import ReadFileResponse

        content = await self._with_files(read_text, request.path, request.encoding, request.errors)
        return ReadFileResponse(content=content)

    async def write_file(self, request: abstract.WriteFileRequest) -> abstract.WriteFileResponse:
        """Write a text file, and the directories above it. It is replaced whole or not at all."""
        from swerex_c.exec.files import write_text
        from swerex_c.runtime.abstract import WriteFileResponse

        await self._with_files(write_text, request.path, request.content)
        return WriteFileResponse()

    async def upload(self, request: abstract.UploadRequest) -> abstract.UploadResponse:
        """Copy a file or a tree of this machine into the place; onto an existing directory it is merged.

        Shows how far it is if standard error is a terminal and it takes long.
        """
        from swerex_c.exec.files import upload
        from swerex_c.runtime.abstract import UploadResponse
        from swerex_c.utils.progress import shown

        with shown(f"Uploading {request.source_path}") as progress:
            await self._with_files(upload, request.source_path, request.target_path, progress)
        return UploadResponse()

    async def download(self, source_path: str, target_path: str) -> None:
        """Copy a file or a tree of the place to this machine, by the rules of `upload` the other way round."""
        from swerex_c.exec.files import download
        from swerex_c.utils.progress import shown

        with shown(f"Downloading {source_path}") as progress:
            await self._with_files(download, source_path, target_path, progress)

    # -- the end

    async def close(self) -> abstract.CloseResponse:
        """End all sessions and commands, with everything they started in the place. May be called again."""
        import asyncio

        from swerex_c.exec.session import ExecSession, end_marked
        from swerex_c.exec.threads import in_thread
        from swerex_c.runtime.abstract import CloseResponse

        self._closed = True
        sessions = list(self._sessions.values())
        self._sessions.clear()
        ends = [each.close_here() if isinstance(each, ExecSession) else each.close() for each in sessions]
        results = await asyncio.gather(*ends, return_exceptions=True)
        await in_thread(self._end, end_marked)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, RuntimeClosedError):
                raise result
        return CloseResponse()

    def _end(self, end_marked: Callable[[Place, str], str | None]) -> None:
        if self._opened and self.place.backend.outlives and not self.ends_with_place:
            left = end_marked(self.place, self.place.mark)
            if left is not None:
                self.logger.warning("%s", left)
        self.place.close()
        if self._opening.acquire(timeout=CLOSE_SECONDS):  # it has not opened the backend again meanwhile
            self._opened = False
            self._opening.release()
            self.place.backend.close()
