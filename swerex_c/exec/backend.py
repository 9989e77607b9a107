"""What has to be known of a kind of place to run commands in it; for those who add one.

A place is reached through *clients*: programs of this machine that run a program there and carry its streams, such as
`docker exec` and `ssh`. A backend says how their command lines look, and what has become of the place. All else is
shared: sessions on a terminal, single commands, files, timeouts, interrupts, the end of everything that was started.

    class Chroot(Backend):
        name = "the directory /srv/root"
        outlives = False

        def terminal(self, argv, names):
            return ["chroot", "/srv/root", *argv]

        def pipes(self, argv, names):
            return ["chroot", "/srv/root", *argv]

        def why_lost(self, timeout):
            return None if os.path.isdir("/srv/root") else "The directory /srv/root is gone"

`ExecRuntime(Chroot())` is then a full runtime. The place needs bash 4.4 or later; what else is there is used.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

__all__ = ["Backend"]


class Backend(ABC):
    """One place. Its methods may be called from any thread and several at once; those that say so block."""

    name: str
    """What messages call the place, such as "container 3f2a91c07d11"."""

    outlives: ClassVar[bool] = True
    """Whether a program in the place goes on when its client has ended."""

    shares_processes: ClassVar[bool] = False
    """Whether the place's programs are processes that this process can see under the same numbers."""

    @abstractmethod
    def terminal(self, argv: Sequence[str], names: Sequence[str]) -> list[str]:
        """The command line of a client that runs `argv` in the place on a terminal of its own.

        The client is started on a terminal itself, and passes on what is typed there and printed, byte for byte. It
        ends with the program's exit code when the program ends.

        names: variables of the client's environment that the program has to get, with the client's values. What else
        the program's environment holds is the place's own business.
        """

    @abstractmethod
    def pipes(self, argv: Sequence[str], names: Sequence[str]) -> list[str]:
        """The same with three pipes instead of the terminal: standard output and standard error stay apart."""

    @abstractmethod
    def why_lost(self, timeout: float) -> str | None:
        """Why the place can run nothing any more, as a sentence; None if it can. Blocks for `timeout` seconds at most.

        Asked when a client has ended that should not have, and by `is_alive`.

        Raises:
            TimeoutError: if that cannot be learned in time, because the place or its engine does not answer.
            SwerexException: if it cannot be learned for another reason, which this says by its type; the place may be
                there all the same.
        """

    def unsure(self, client: Sequence[str], code: int) -> str | None:
        """Why a client's exit code may not be that of its program in the place, as a sentence; None if it is.

        Asked when a client has ended by itself, and what it ran in the place has ended too. Blocks for some seconds at
        most.

        Args:
            client: its command line, as `terminal` or `pipes` made it.
        """
        return None

    def environment(self) -> dict[str, str]:
        """The whole environment of a client; that of this process if not overridden."""
        return dict(os.environ)

    def open(self, timeout: float) -> None:  # noqa: B027 - many need nothing
        """What the clients need to be fast or to work at all, such as a connection that they share. Blocks.

        Called once, before any client. Clients have to work without it too if the backend can do that.

        Raises:
            PlaceLostError: if the place cannot be reached.
        """

    def close(self) -> None:  # noqa: B027 - as open
        """Undo `open`. The place itself stays. May be called again. Blocks for some seconds at most."""

    def archive_in(self, directory: str) -> list[str] | None:
        """A client that unpacks the tar archive on its standard input into a directory of the place, keeping modes.

        For places without the program tar; None if the engine has no such way.
        """
        return None

    def archive_out(self, path: str) -> list[str] | None:
        """A client that writes a tar archive of a file or a tree of the place to its standard output.

        The members' names begin with the last part of `path`. None if the engine has no such way.
        """
        return None
