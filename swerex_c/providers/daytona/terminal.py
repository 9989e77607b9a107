"""Scripts that run a program on a Daytona terminal.

They run in the sandbox; `backend` is the other end of the terminal.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence

from swerex_c.utils.shell_script import read_script

__all__ = ["BOOTSTRAP", "FAILURES", "script"]

_OUTPUT = 36 * 1024
"""Maximum number of bytes of output in one frame."""

BOOTSTRAP = (
    ' unset HISTFILE POSIXLY_CORRECT; export swx_place="$(base64 -w 0 </proc/$$/environ 2>/dev/null)"; '
    "command -v bash >/dev/null && exec bash --noprofile --norc -p -c '"
    "stty raw -echo -tostop 2>/dev/null && "
    "k=$(printf x | dd bs=1 count=1 iflag=fullblock 2>/dev/null | base64 -w 0 2>/dev/null) && "
    "[[ $k == eA== ]] || {{ printf %s%s {a} {b}T; read -r k; exit; }}; "
    "exec 0< <(exec dd bs=4096 <&0 2>/dev/null); printf %s%s {a} {b}R; "
    'while IFS=" " read -r k n && [[ $k != {b} ]]; do :; done; '
    's=$(dd bs="$n" count=1 iflag=fullblock 2>/dev/null); eval "$s"\'; printf %s%s {a} {b}B\n'
)
"""Input for the shell that the toolbox starts, whatever shell it is. It prints the two halves of a nonce, which are
separate in the echo of the input, and a letter. R: the terminal is raw, and the size of the script is expected. T:
tools are missing. B: there is no bash. After a failure the shell waits, because output before an exit may be lost. Bash
reads more than the requested line from a terminal, but not from a pipe, so a `dd` is between them. (The `cat` of
busybox waits for more data before it passes on its data.)"""

TRANSPORT = read_script("providers/daytona/transport.bash")

_SPAWN = (
    "import os,pty,sys\n"
    "status=pty.spawn(['/bin/sh','-c',sys.argv[1]])\n"
    "code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128+os.WTERMSIG(status)\n"
    "sys.exit(code)"
)
"""Python program that runs a command on a new terminal, where there is no `script`."""

FAILURES = {
    "B": "there is no bash in its PATH",
    "T": "its PATH needs stty, dd (that knows iflag=fullblock) and base64 (that knows -w) of coreutils or busybox",
    "terminal": "a terminal needs script (of util-linux; in bsdutils on Debian) or python3, and its PATH has neither",
    "pipes": "its shell cannot create pipes: /proc must be mounted, and file descriptors available",
}


def script(
    key: str, mark: str, argv: Sequence[str], environment: Mapping[str, str], terminal: tuple[int, int] | None
) -> bytes:
    """Return the script for the bash that `BOOTSTRAP` has started.

    Args:
        key: nonce at the beginning of each frame.
        mark: data that ends the streams.
        terminal: rows and columns of a terminal for the program; None runs it on pipes.
    """
    exports = "".join(f" export {name}={shlex.quote(value)};" for name, value in environment.items())
    words = " ".join(map(shlex.quote, argv))
    line = ""
    if terminal is not None:
        # A shell exits with 127 if it does not find the program; `exec` avoids a second process.
        line = f"stty rows {terminal[0]} cols {terminal[1]}; exec {words}"
    head = (
        f"swx_key={key} swx_mark={mark} swx_size={_OUTPUT} swx_line={shlex.quote(line)}\n"
        f"swx_spawn={shlex.quote(_SPAWN)}\n"
        f"swx_variables() {{{exports or ' :;'} }}\n"
        f"set -- {words}\n"
    )
    return os.fsencode(head + TRANSPORT)
