"""What runs in a sandbox of Daytona to carry a program over a terminal; `swerex_c.exec.daytona` is its other end."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

__all__ = ["BOOTSTRAP", "FAILURES", "script"]

_OUTPUT = 36 * 1024
"""Bytes of output in one frame at most."""

BOOTSTRAP = (
    ' unset HISTFILE POSIXLY_CORRECT; export swx_place="$(base64 -w 0 </proc/$$/environ 2>/dev/null)"; '
    "command -v bash >/dev/null && exec bash --noprofile --norc -p -c '"
    "stty raw -echo -tostop 2>/dev/null || {{ printf %s%s {a} {b}S; read -r k; exit; }}; "
    "k=$(printf x | dd bs=1 count=1 iflag=fullblock 2>/dev/null | base64 -w 0 2>/dev/null); "
    "[[ $k == eA== ]] || {{ printf %s%s {a} {b}T; read -r k; exit; }}; "
    "exec 0< <(exec dd bs=4096 <&0 2>/dev/null); printf %s%s {a} {b}R; "
    'while IFS=" " read -r k n && [[ $k != {b} ]]; do :; done; '
    's=$(dd bs="$n" count=1 iflag=fullblock 2>/dev/null); eval "$s"\'; printf %s%s {a} {b}B\n'
)
"""What is typed at the shell that the toolbox starts, whichever it is. It answers with the two halves of a nonce,
which are apart in what is echoed, and a letter: R it is raw, and the size of the script is waited for; S there is no
`stty`; T other tools are missing; B there is no bash. It stays then, for what is printed last may be lost. From a
terminal bash reads more than the line that it is asked for, from a pipe it does not: so there is a `dd` between. (The
`cat` of busybox waits for more before it hands on what it has.)"""

CARRIER = r"""
exec {swx_tty}<&0 {swx_out}> >(exec dd bs=65536 2>/dev/null) </dev/null >/dev/null 2>/dev/null
swx_say() {
  local turn
  IFS= read -r -N 1 -u "$swx_turn" turn
  printf '\n%s%s%d %s\n' "$swx_key" "$1" "${#2}" "$2" >&"$swx_out"
  printf x >&"$swx_turn"
}
swx_stay() { local never; IFS= read -r -N 1 -u "$swx_never" never; exit; }
swx_fail() { swx_say f "$1"; swx_stay; }
swx_pipe() {
  local both
  exec {both}<> <(:) && exec {swx_r}<"/dev/fd/$both" {swx_w}>"/dev/fd/$both" {swx_m}>"/dev/fd/$both" {both}>&-
}
swx_copy() {
  local credit data
  while IFS= read -r -N 1 -u "$3" credit; do
    data=$(dd bs="$swx_size" count=1 <&"$2" | base64 -w 0)
    [[ ! $data ]] || swx_say "$1" "$data"
  done
}
swx_take() {
  local kind size data
  while IFS=' ' read -r -u "$swx_tty" kind size; do
    case $kind in
      1) printf x >&"$swx_one" ;;
      2) printf x >&"$swx_two" ;;
      i)
        data=$(dd bs="$size" count=1 iflag=fullblock <&"$swx_tty" | base64 -w 0)
        { printf %s "$data" | base64 -d >&"$swx_w0"; swx_say a; } &
        ;;
      e) exec {swx_w0}>&- ;;
    esac
  done
}
swx_start() {
  swx_setsid=()
  ! command -v setsid || swx_setsid=(setsid)
  exec <&"$swx_r0" 2>&"$swx_w2" {swx_r0}<&- {swx_r1}<&- {swx_r2}<&- {swx_w2}>&- {swx_m1}>&- {swx_m2}>&- \
    {swx_one}>&- {swx_two}>&- {swx_turn}>&- {swx_never}>&- {swx_out}>&- {swx_tty}<&-
  if ((${#swx_environ[@]})); then
    for swx_each in $(compgen -e); do unset -v "$swx_each"; done
    for swx_each in "${swx_environ[@]}"; do export "$swx_each"; done
    [[ $swx_line ]] || unset -v TERM
  fi 2>&-
  swx_variables
  export -n SHELLOPTS BASHOPTS
  if [[ ! $swx_line ]]; then
    exec "${swx_setsid[@]}" "$@" >&"$swx_w1" {swx_w1}>&-
  fi
  if [[ ${SHELL+x} ]]; then
    swx_line="SHELL=${SHELL@Q}; export SHELL; $swx_line"
  else
    swx_line="unset SHELL; $swx_line"
  fi
  if [[ $swx_inner == script ]]; then
    SHELL=/bin/sh exec "${swx_setsid[@]}" script -qefc "$swx_line" /dev/null >&"$swx_w1" {swx_w1}>&-
  fi
  exec "${swx_setsid[@]}" python3 -c "$swx_spawn" "$swx_line" >&"$swx_w1" {swx_w1}>&-
}
exec {swx_turn}<> <(:) {swx_never}<> <(:) {swx_one}<> <(:) {swx_two}<> <(:)
printf x >&"$swx_turn"
swx_environ=()
mapfile -d '' -t swx_environ < <(printf %s "$swx_place" | base64 -d)
unset -v swx_place
swx_inner=
if [[ $swx_line ]]; then
  if [[ $(script --version </dev/null) == *util-linux* ]]; then
    swx_inner=script
  elif command -v python3; then
    swx_inner=python3
  else
    swx_fail terminal
  fi
fi
swx_pipe && swx_r1=$swx_r swx_w1=$swx_w swx_m1=$swx_m || swx_fail pipes
swx_pipe && swx_r2=$swx_r swx_w2=$swx_w swx_m2=$swx_m || swx_fail pipes
swx_copy 1 "$swx_r1" "$swx_one" &
swx_copy 2 "$swx_r2" "$swx_two" &
swx_pipe && exec {swx_m}>&- && swx_r0=$swx_r swx_w0=$swx_w || swx_fail pipes
swx_take &
exec {swx_w0}>&- {swx_r1}<&- {swx_r2}<&-
(swx_start "$@")
swx_code=$?
exec {swx_r0}<&-
printf %s "$swx_mark" >&"$swx_m1"
printf %s "$swx_mark" >&"$swx_m2"
swx_say x "$swx_code"
swx_stay
"""
"""What keeps a program on pipes and carries their bytes. It has the program's words in `$@`, and in `swx_line` the
same for a shell, if it is to have a terminal.

- What it is told comes in lines; input as its size, with so many bytes behind. These are put into a variable and
  written to the program in the background, so that the next line is read whether or not the program reads. There is
  no further input before that is done, and told.
- Each frame is printed by one at a time, who has taken the byte out of the pipe `swx_turn`. It says how long it is, so
  that one of which a part is lost, or into which others print, is not taken for whole.
- No copying ends by itself, because processes that the program left may hold the pipes for ever: when the program has
  ended, a mark goes into them behind all that it printed. It has descriptors of its own: those of the program may have
  been set not to wait, and then a mark would be lost that finds the pipe full.
- The program runs in the foreground of this shell, or its interrupts would be ignored; and in a session of its own if
  there is `setsid`, so that it has no terminal of ours to print to and to read our lines from.
- Its environment is the one that the toolbox gave the first shell, not what that has made of it by its startup files:
  they set another PATH than the image has.
"""

_SPAWN = (
    "import os,pty,sys\n"
    "status=pty.spawn(['/bin/sh','-c',sys.argv[1]])\n"
    "code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128+os.WTERMSIG(status)\n"
    "sys.exit(code)"
)
"""A terminal where there is no `script`."""

FAILURES = {
    "S": "there is no program stty in its PATH (it is part of coreutils)",
    "B": "there is no bash in its PATH",
    "T": "dd and base64 of coreutils or busybox are not in its PATH, or do not know iflag=fullblock or -w",
    "terminal": "a terminal needs script (of util-linux; in bsdutils on Debian) or python3, and there is neither",
    "pipes": "its shell could make no pipes; /proc has to be mounted, and descriptors be free",
}


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def script(
    key: str, mark: str, argv: Sequence[str], environment: Mapping[str, str], terminal: tuple[int, int] | None
) -> bytes:
    """What the bash on the terminal is to do, when `BOOTSTRAP` has made it ready.

    Args:
        key: what its frames begin with.
        mark: what ends the streams.
        terminal: rows and columns of a terminal for the program; None: pipes.
    """
    exports = "".join(f" export {name}={_quoted(value)};" for name, value in environment.items())
    words = " ".join(map(_quoted, argv))
    line = ""
    if terminal is not None:
        # A shell that finds no program says 127; `exec` makes it one process.
        line = f"stty rows {terminal[0]} cols {terminal[1]}; exec {words}"
    head = (
        f"swx_key={key} swx_mark={mark} swx_size={_OUTPUT} swx_line={_quoted(line)} swx_spawn={_quoted(_SPAWN)}\n"
        f"swx_variables() {{{exports or ' :;'} }}\n"
        f"set -- {words}\n"
    )
    return os.fsencode(head + CARRIER)
