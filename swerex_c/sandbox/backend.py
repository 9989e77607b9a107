"""Interface that describes one kind of sandbox, for authors of a new kind.

A sandbox is reached through *clients*: programs on this machine that run a program there and relay its streams, such
as `docker exec` and `ssh`. A backend builds their command lines and reports whether the sandbox is lost. All else is
shared: sessions on a terminal, single commands, files, timeouts, interrupts, cleanup of everything that was started.

    class Chroot(Backend):
        name = "the directory /srv/root"

        def terminal(self, argv, names):
            return ["chroot", "/srv/root", *argv]

        def pipes(self, argv, names):
            return ["chroot", "/srv/root", *argv]

        def why_lost(self, timeout):
            return None if os.path.isdir("/srv/root") else "The directory /srv/root is gone"

`SandboxRuntime(Chroot())` is then a full runtime. The sandbox needs bash 4.4 or later; other programs are optional. All
clients must see the same processes, because a session is interrupted and ended by another client.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence

__all__ = ["Backend"]


class Backend(ABC):
    """Access to one sandbox.

    Methods may be called from any thread, several at once; methods that block say so.
    """

    name: str
    """Name of the sandbox in messages, such as "container 3f2a91c07d11"."""

    @abstractmethod
    def terminal(self, argv: Sequence[str], names: Sequence[str]) -> list[str]:
        """Return the command line of a client that runs `argv` on a terminal.

        The program runs in the sandbox on a terminal of its own. The client itself is started on a terminal, and passes
        input and output through byte for byte. It ends with the program's exit code when the program ends.

        Args:
            names: variables of the client's environment that the program must get, with the client's values. The
                sandbox decides the rest of the program's environment.
        """

    @abstractmethod
    def pipes(self, argv: Sequence[str], names: Sequence[str]) -> list[str]:
        """Return the command line of a client that runs `argv` on three pipes.

        Standard output and standard error stay separate. `names` is as for `terminal`.
        """

    @abstractmethod
    def why_lost(self, timeout: float) -> str | None:
        """Return why the sandbox can run nothing more, as a sentence, or None.

        Blocks at most `timeout` seconds. Called when a client has ended unexpectedly, and by `is_alive`.

        Raises:
            TimeoutError: if the answer is not known in time, because the sandbox or its engine does not answer.
            SwerexException: if the answer cannot be determined for another reason, given by the type; the sandbox
                may still exist.
        """

    def unsure(self, client: Sequence[str], code: int) -> str | None:
        """Return why a client's exit code may not be its program's, or None.

        The reason is a sentence; None means that the code is the program's. Called when a client has ended by itself
        and its program in the sandbox has ended too. Blocks for at most a few seconds.

        Args:
            client: its command line, as `terminal` or `pipes` made it.
            code: its exit code.
        """
        return None

    def environment(self) -> dict[str, str]:
        """Return the complete environment of a client; by default that of this process."""
        return dict(os.environ)

    def open(self, timeout: float) -> None:  # noqa: B027 - many backends need nothing
        """Prepare the resources of clients, such as a shared connection. Blocks.

        Clients may need them to work, or to be fast. Called once, before any client. If the backend allows it, clients
        also work without this call.

        Raises:
            SandboxLostError: if the sandbox cannot be reached.
        """

    def close(self) -> None:  # noqa: B027 - as open
        """Undo `open`, but keep the sandbox.

        May be called again. Blocks for at most a few seconds.
        """

    def archive_in(self, directory: str) -> list[str] | None:
        """Return a client that unpacks a tar archive into a sandbox directory.

        It reads the archive from its standard input, and keeps modes. For sandboxes without the program tar; None if
        the engine cannot do that.
        """
        return None

    def archive_out(self, path: str) -> list[str] | None:
        """Return a client that writes a tar archive of a file or tree in the sandbox.

        It writes to its standard output. The members' names begin with the last part of `path`. None if the engine
        cannot do that.
        """
        return None
