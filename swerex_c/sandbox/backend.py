"""Interface that describes one kind of sandbox, for authors of a new kind.

A backend starts programs in the sandbox and reports whether the sandbox is lost. All else is shared: sessions on a
terminal, single commands, files, timeouts, interrupts, cleanup of everything that was started.

If a client program of this machine runs programs there, as `docker exec` and `ssh` do, the backend is a
`swerex_c.sandbox.clients.CommandBackend`, which only builds command lines. If a library does, it is a
`swerex_c.sandbox.api_backend.ApiBackend`.

`SandboxRuntime(backend)` is then a full runtime. The sandbox needs bash 4.4 or later; other programs are optional. All
programs must see the same processes, because one that a session started is interrupted and ended by another one.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from swerex_c.exceptions import SwerexException

__all__ = ["Backend", "Process"]


class Process(ABC):
    """A program in the sandbox, used in the event loop of `swerex_c.utils.background`."""

    @abstractmethod
    async def send(self, data: bytes) -> None:
        """Write to the program's standard input. Waits while the sandbox accepts no more.

        Raises:
            BrokenPipeError: if the program takes no more input.
            Exception: any, if the connection broke.
        """

    @abstractmethod
    async def end_input(self) -> None:
        """Close standard input after the data that was sent. Not called for a program on a terminal."""

    @abstractmethod
    async def receive(self) -> tuple[int, bytes] | None:
        """Return the next output, or None after the last.

        Returns:
            1 or 2 (standard output or error; 1 on a terminal), and bytes.
        """

    @abstractmethod
    async def wait(self) -> int:
        """Return the exit code. Called after the last output.

        It is 128 plus the signal number if a signal ended the program.

        Raises:
            Exception: any, if the code cannot be known, because the connection broke. Do not invent a code.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close all connections of a program that is no longer needed.

        Called once at the end, in any case. The program need not end.
        """


class Backend(ABC):
    """Access to one sandbox. All coroutines run in the event loop of `swerex_c.utils.background`, several at once."""

    name: str
    """Name of the sandbox in messages, such as "container 3f2a91c07d11"."""

    mark: str = ""
    """Beginning of the marks of all that is started in the sandbox, see `processes`; set by its `Sandbox`."""

    @abstractmethod
    async def exec(self, argv: Sequence[str], env: Mapping[str, str]) -> Process:
        """Start a program in the sandbox on three pipes.

        Args:
            env: variables added to those of the sandbox. They may hold secrets: do not log them.

        Raises:
            OSError: if a client program of this machine cannot be started.
            Exception: any other; its text is reported to the caller.
        """

    @abstractmethod
    def terminal(self, argv: Sequence[str], names: Sequence[str]) -> list[str]:
        """Return the command line of a client that runs `argv` on a terminal.

        The program runs in the sandbox on a terminal of its own. The client itself is started on a terminal, and passes
        input and output through byte for byte. It ends with the program's exit code when the program ends.

        Args:
            names: variables of the client's environment that the program must get, with the client's values. The
                sandbox decides the rest of the program's environment.
        """

    async def why_lost(self) -> str | None:
        """Return why the sandbox can run nothing more, as a sentence, or None.

        Called when a program has ended unexpectedly, and by `is_alive`; it is cancelled when it takes too long. By
        default it tries to run bash.

        Raises:
            SwerexException: if the answer cannot be determined; the sandbox may still exist.
        """
        words = b""
        try:
            process = await self.exec(["bash", "-c", ":"], {})
            try:
                while (output := await process.receive()) is not None:
                    words += output[1]
                code = await process.wait()
            finally:
                await process.close()
        except SwerexException:
            raise
        except Exception as error:
            return f"The {self.name} is out of reach: {error}"
        said = " ".join(words.decode(errors="replace").split()) or f"exit code {code}"
        return f"The {self.name} runs no bash: {said}" if code else None

    async def unsure(self, client: Sequence[str], code: int, printed: str) -> str | None:
        """Return why a client's exit code may not be its program's, as a sentence, or None.

        Called when a client has ended by itself and its program in the sandbox has ended too.

        Args:
            client: its command line.
            code: its exit code.
            printed: what came on its terminal, or last on its standard error.
        """
        return None

    def environment(self) -> dict[str, str]:
        """Return the complete environment of a client; by default that of this process."""
        return dict(os.environ)

    async def open(self) -> None:  # noqa: B027 - many backends need nothing
        """Prepare the resources of programs, such as a shared connection.

        Called once, before any program. It is cancelled when it takes too long, and `close` follows.

        Raises:
            SandboxLostError: if the sandbox cannot be reached.
        """

    async def close(self) -> None:  # noqa: B027 - as open
        """Undo `open`, but keep the sandbox. May be called again. Takes at most a few seconds."""

    async def abandon(self) -> None:
        """Close the backend of a `Sandbox` that was dropped: what it has started may still run."""
        await self.close()
