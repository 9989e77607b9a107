# Functions of the scripts that read, write and copy files; see `file_scripts.py`.
LC_ALL=C
export LC_ALL
unset -v TAR_OPTIONS POSIXLY_CORRECT
# Report a refusal: a reason, and a text for it; see `file_scripts.py`.
refuse() { printf '\0%s\0%s\0' "$1" "$2" >&2; exit 90; }
have() { hash "$@" 2>&-; }
# Refuse if one of these programs is missing.
need() {
  local name lacks=
  for name; do
    have "$name" || lacks+=", $name"
  done
  [[ ! $lacks ]] || refuse lack "${lacks:2}"
}
# Report the error message of a program.
fail() { printf '%s\n' "$1" >&2; exit 91; }
# Copy standard input, as cat does. `-d ''` finds the NULs, which no variable can hold.
copy() {
  local x
  while IFS= read -r -d '' -n 65536 x; do
    if ((${#x} == 65536)); then printf %s "$x" || return; else printf '%s\0' "$x" || return; fi
  done
  printf %s "$x"
}
# Print the contents of frames. `read -N` reads them in blocks; NULs and backslashes are escaped for %b of printf.
read_frames() {
  local n x
  while IFS= read -r n; do
    ((n)) || return 0
    IFS= read -r -N "$n" x && ((${#x} == n)) || break
    printf %b "$x" || return 91
  done
  return 92
}
# Check whether a path is a special file, and set $kind to a description.
# shellcheck disable=SC2034
special() {
  if [[ -p $1 ]]; then kind='a named pipe'
  elif [[ -S $1 ]]; then kind='a socket'
  elif [[ -c $1 ]]; then kind='a character device'
  elif [[ -b $1 ]]; then kind='a block device'
  else return 1
  fi
}
# Report a file that may wait for its other end, so that the client limits the time.
note_waiting() { [[ ! -p $1 && ! -c $1 ]] || swx_note 1; }
# Create a directory and those above it.
make_parent() {
  if [[ ! -d ${1:-/} ]]; then
    need mkdir
    said=$(mkdir -p "$1" 2>&1) || refuse above "$said"
  fi
}
# shellcheck disable=SC2034
temporary=.swerex-$BASHPID
# Remove what a script made, or was about to make: a program may be killed as soon as it has made it. The one that removes
# may be killed too, with those that the script ran before.
remove() { rm -rf "$@" || rm -rf "$@"; } 2>/dev/null
# Remove the files that killed scripts left in a directory. The age of an hour spares those of a script that runs in
# another container.
sweep() {
  local f pid now changed
  have stat rm || return 0
  printf -v now '%(%s)T' -1
  for f in "$1"/.swerex-[0-9]*-*.tmp; do
    pid=${f##*/.swerex-}
    [[ -e $f && ! -d /proc/${pid%%-*} ]] && changed=$(stat -c %Y "$f") && ((now - changed > 3600)) \
      && rm -rf "$f"
  done 2>/dev/null
  return 0
}
# Check whether an error message means that a file cannot be replaced, although it may be writable.
unreplaceable() {
  [[ $1 == *'Permission denied'* || $1 == *'Operation not permitted'* || $1 == *[Bb]usy* \
    || $1 == *'Read-only file system'* || $1 == *[Cc]'ross-device link'* ]]
}
