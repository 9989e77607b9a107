"""How the values of variables reach a place whose client hands over none: a shell here puts them into the command.

The client's command line is written before its environment is known. So it begins with a `sh` on this machine, which
finds the variables' values in its own environment, adds them to the command line as `NAME=value`, and becomes the
client. In the place a bash takes them off again, exports them and becomes the program.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["as_words", "in_one_word"]

# A bash that is called as sh forgets the PS1 and PS2 that it is given, so it is asked what it was started with. The
# client itself does not get the variables, but for TERM: where the place is this machine after all, it would be taken
# for something that was started there.
_LOOK = """
look() {
  eval "[ -n \\"\\${$1+x}\\" ]" && eval "value=\\$$1" && return
  while IFS= read -r -d '' value; do
    case $value in "$1="*) value=${value#*=}; return 0;; esac
  done <"/proc/$$/environ" 2>/dev/null
  return 1
}
drop() { [ "$1" = TERM ] || unset "$1"; }
"""

_WORDS = (
    _LOOK
    + """
names=$1; shift
for name in $names; do look "$name" && set -- "$@" "$name=$value"; drop "$name"; done
exec "$@"
"""
)

_UNPACK = 'n=$1; shift; a=("${@:1:n}"); shift "$n"; for v; do export "$v"; done; exec "${a[@]}"'

# What means something to a login shell even between single quotes: in sh, bash and zsh the quote, in fish the backslash
# too, in csh also the exclamation mark and the line's end.
_CODED = {"'": "@27", "\\": "@5c", "!": "@21", "\n": "@0a"}

_ONE_WORD = (
    _LOOK
    + """
code() {
  rest=$value value=
  while :; do
    case $rest in
      *"$1"*) value=$value${rest%%"$1"*}$2 rest=${rest#*"$1"} ;;
      *) break ;;
    esac
  done
  value=$value$rest
}
names=$1 line=$2; shift 2
for name in $names; do
  look "$name" || continue
  code @ @40; code "'" @27; code \\\\ @5c; code ! @21; code '
' @0a
  line="$line '$name=$value'"
  drop "$name"
done
exec "$@" "$line"
"""
)

# Bash's own %q gives the backslash that this may not contain.
_DECODE = (
    'printf -v b %q " ";b=${b% }x;a=();n=$1;shift;for w;do printf -v w %b "${w//@/$b}";'
    'if ((n-->0));then a+=("$w");else export "$w";fi;done;exec "${a[@]}"'
)


def as_words(client: Sequence[str], argv: Sequence[str], names: Sequence[str]) -> list[str]:
    """The command line of a client that takes the words of a command: `client`, and `argv` with the variables."""
    if not names:
        return [*client, *argv]
    command = ["bash", "-c", _UNPACK, "bash", str(len(argv)), *argv]
    return ["sh", "-c", _WORDS, "sh", " ".join(names), *client, *command]


def in_one_word(client: Sequence[str], argv: Sequence[str], names: Sequence[str], *, before: str = "") -> list[str]:
    """The command line of a client that takes a command as one text, for a shell of whatever kind to understand.

    Nothing of `argv` and of the values is seen by that shell: it is sh, bash, zsh, fish, csh or one like these.

    Args:
        before: commands of sh that are carried out on this machine before `client`; whole lines.
    """
    words = " ".join(f"'{_coded(word)}'" for word in argv)
    # No startup files for the bash between: a server's bash takes itself for the login shell again.
    line = f"exec bash --norc -c '{_DECODE}' bash {len(argv)} {words}"
    return ["sh", "-c", before + _ONE_WORD, "sh", " ".join(names), line, *client]


def _coded(word: str) -> str:
    word = word.replace("@", "@40")
    for plain, code in _CODED.items():
        word = word.replace(plain, code)
    return word
