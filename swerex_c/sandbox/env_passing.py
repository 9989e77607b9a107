"""Environment variables for sandboxes whose client passes none.

The client's command line is written before its environment is known. It therefore begins with a `sh` on this machine,
which reads the variables' values from its own environment, adds them to the command line as `NAME=value`, and becomes
the client. In the sandbox a bash removes them from the arguments, exports them and becomes the program.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from swerex_c.utils.shell_script import read_script

__all__ = ["as_words", "command_as_text", "quote_for_any_shell"]

_AS_TEXT = read_script("sandbox/scripts/env_as_text.sh")

# Characters that a login shell interprets even inside single quotes: in sh, bash and zsh the quote, in fish also the
# backslash, in csh also the exclamation mark and the newline.
_CODED = str.maketrans({"@": "@40", "'": "@27", "\\": "@5c", "!": "@21", "\n": "@0a"})

# This text must not contain a backslash, so bash's own %q produces it.
_DECODE = (
    'printf -v b %q " ";b=${b% }x;a=();n=$1;shift;for w;do printf -v w %b "${w//@/$b}";'
    'if ((n-->0));then a+=("$w");else export "$w";fi;done;exec "${a[@]}"'
)


def as_words(argv: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return a command that exports the variables in the sandbox and becomes `argv`."""
    if not environment:
        return list(argv)
    return ["bash", "-c", quote_for_any_shell(argv, [f"{name}={value}" for name, value in environment.items()])]


def command_as_text(client: Sequence[str], argv: Sequence[str], names: Sequence[str], *, before: str = "") -> list[str]:
    """Return the command line of a client that runs `argv` with the variables `names` of its environment.

    The last word of `client` is followed by a text for a shell of any kind, such as sh, bash, zsh, fish or csh, which
    does not interpret `argv` or the values.

    Args:
        before: whole lines of sh commands that run on this machine before `client`.
    """
    return ["sh", "-c", before + _AS_TEXT, "sh", " ".join(names), quote_for_any_shell(argv), *client]


def quote_for_any_shell(argv: Sequence[str], variables: Sequence[str] = ()) -> str:
    """Return a command as one text for a shell of any kind.

    The shell becomes a bash, which exports the variables, each as `NAME=value`, and becomes the command's program.
    """
    words = " ".join(f"'{word.translate(_CODED)}'" for word in (*argv, *variables))
    # The bash in between reads no startup files: a server's bash would act as the login shell again.
    return f"exec bash --norc -c '{_DECODE}' bash {len(argv)} {words}"
