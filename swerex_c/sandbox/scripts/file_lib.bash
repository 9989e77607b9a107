# Functions of the scripts that read, write and copy files; see `file_scripts.py`.
#
# `copy` and `take` replace cat in bash. `copy` uses `-d ''` to find NULs, which no variable can hold. `take` reads
# frames with `read -N`, which reads in blocks; NULs and backslashes are escaped for printf's %b. `sweep` removes files
# that killed scripts left in a directory; it waits an hour, because a script of another container may still use them.
# `waits` tells of a file that may wait for its other end, for which the time is then limited.
LC_ALL=C
export LC_ALL
unset -v TAR_OPTIONS POSIXLY_CORRECT
refuse() { printf '\0%s\0%s\0' "$1" "$2" >&2; exit 90; }
have() { hash "$@" 2>&-; }
need() {
  local name lacks=
  for name; do
    have "$name" || lacks+=", $name"
  done
  [[ ! $lacks ]] || refuse lack "${lacks:2}"
}
say() { printf '%s\n' "$1" >&2; exit 91; }
copy() {
  local x
  while IFS= read -r -d '' -n 65536 x; do
    if ((${#x} == 65536)); then printf %s "$x" || return; else printf '%s\0' "$x" || return; fi
  done
  printf %s "$x"
}
take() {
  local n x
  while IFS= read -r n; do
    ((n)) || return 0
    IFS= read -r -N "$n" x && ((${#x} == n)) || break
    printf %b "$x" || return 91
  done
  return 92
}
# The kind is for the caller.
# shellcheck disable=SC2034
special() {
  if [[ -p $1 ]]; then kind='a named pipe'
  elif [[ -S $1 ]]; then kind='a socket'
  elif [[ -c $1 ]]; then kind='a character device'
  elif [[ -b $1 ]]; then kind='a block device'
  else return 1
  fi
}
waits() { [[ ! -p $1 && ! -c $1 ]] || swx_note 1; }
above() {
  if [[ ! -d ${1:-/} ]]; then
    need mkdir
    said=$(mkdir -p "$1" 2>&1) || refuse above "$said"
  fi
}
# shellcheck disable=SC2034
temporary=.swerex-$BASHPID
sweep() {
  local f pid now changed
  have stat rm || return 0
  printf -v now '%(%s)T' -1
  for f in "$1"/.swerex-*-*.tmp; do
    pid=${f##*/.swerex-}
    [[ -e $f && ! -d /proc/${pid%%-*} ]] && changed=$(stat -c %Y "$f") && ((now - changed > 3600)) \
      && rm -rf "$f"
  done 2>/dev/null
  return 0
}
unreplaceable() {
  [[ $1 == *'Permission denied'* || $1 == *'Operation not permitted'* || $1 == *[Bb]usy* \
    || $1 == *'Read-only file system'* || $1 == *[Cc]'ross-device link'* ]]
}
