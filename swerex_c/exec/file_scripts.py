"""What runs in a place to read, write and copy files there: bash alone where it must, programs where they are.

Every path in a script begins with "/." or "./", so that none is taken for an option nor for a name that bash gives a
meaning of its own, such as /dev/tcp/HOST/PORT. `prelude` comes first, with an array for each program: its command, or
nothing where the place has none.

A refusal that is no system's is told as a record on standard error, `NUL reason NUL text NUL`, with exit code 90.
Anything else that fails leaves the message of bash or of the program there, in English, with the system's words last.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

__all__ = [
    "BUSYBOX",
    "DIRECT",
    "FILL_BY_BASH",
    "FILL_BY_TAR",
    "GET",
    "HERE",
    "PROBE",
    "PROGRAMS",
    "PUT",
    "READ",
    "REFUSED",
    "TREE_BEGIN",
    "TREE_END",
    "prelude",
]

PROGRAMS = ("cat", "chgrp", "chmod", "cp", "ln", "mkdir", "mv", "readlink", "rm", "stat", "tar")
"""The programs that are used where they are."""

BUSYBOX = "busybox"

REFUSED = 90
"""The exit code of a script that tells why by a record."""

PROBE = """\
LC_ALL=C
directories=(/usr/local/bin /usr/bin /bin /usr/local/sbin /usr/sbin /sbin /busybox)
find() {
  found=
  if hash "$1" 2>/dev/null; then found=${BASH_CMDS[$1]}; fi
  if [[ ! $found || ! -x $found ]]; then
    found=
    for directory in "${directories[@]}"; do
      if [[ -f $directory/$1 && -x $directory/$1 ]]; then found=$directory/$1; break; fi
    done
  fi
  [[ ! $found || $found == /* ]] || found=$PWD/$found
}
find busybox
busybox=$found applets=
for name; do
  find "$name"
  if [[ $found ]]; then printf '%s\\0%s\\0' "$name" "$found"; continue; fi
  if [[ $busybox && ! $applets ]]; then applets=$'\\n'$("$busybox" --list 2>/dev/null)$'\\n'; fi
  if [[ $applets == *$'\\n'"$name"$'\\n'* ]]; then printf '%s\\0%s\\0' "busybox $name" "$busybox"; fi
done
"""
"""Words: names of programs. Prints for each that is there its name, or "busybox NAME" where busybox has it, and its
path."""

_COMMON = r"""
LC_ALL=C
export LC_ALL
unset -v TAR_OPTIONS POSIXLY_CORRECT
refuse() { printf '\0%s\0%s\0' "$1" "$2" >&2; exit 90; }
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
special() {
  if [[ -p $1 ]]; then kind='a named pipe'
  elif [[ -S $1 ]]; then kind='a socket'
  elif [[ -c $1 ]]; then kind='a character device'
  elif [[ -b $1 ]]; then kind='a block device'
  else return 1
  fi
}
above() {
  if [[ ! -d ${1:-/} ]]; then
    ((${#mkdir[@]})) || refuse lack mkdir
    said=$("${mkdir[@]}" -p "$1" 2>&1) || refuse above "$said"
  fi
}
unreplaceable() {
  [[ $1 == *'Permission denied'* || $1 == *'Operation not permitted'* || $1 == *[Bb]usy* \
    || $1 == *'Read-only file system'* || $1 == *[Cc]'ross-device link'* ]]
}
"""
# `copy` and `take` are cat in bash. What is read has NULs, which no variable can hold: they are found by `-d ''`. What
# comes in is framed, with NULs and backslashes written as printf's %b takes them; `read -N` reads in blocks.


def prelude(programs: Mapping[str, Sequence[str]]) -> str:
    """What comes before every script but PROBE.

    Args:
        programs: the command of each of PROGRAMS that the place has.
    """
    return "".join(f"{name}=({shlex.join(programs.get(name, ()))})\n" for name in PROGRAMS) + _COMMON


READ = r"""
[[ ! -d $1 ]] || refuse EISDIR ''
exec 3<"$1" || exit 91
if ((${#cat[@]})); then exec "${cat[@]}" <&3; fi
copy <&3
"""
"""Words: a path. Prints the file."""

PUT = r"""
p=$1 size=$2 mode=$3 name=$4 t= in_place=0 new=1 old=
if [[ $name ]]; then
  if [[ -d $p ]]; then
    p=${p%/}/$name
    [[ ! -d $p ]] || refuse directory "$p"
  elif [[ $p == */ ]]; then refuse ENOTDIR ''
  fi
fi
above "${p%/*}"
for ((i = 0; ; i++)); do
  [[ -L $p ]] || break
  ((${#readlink[@]})) || { in_place=1; break; }
  ((i < 40)) || refuse ELOOP ''
  to=$("${readlink[@]}" -n "$p" && printf x) || exit 91
  to=${to%x}
  if [[ $to == /* ]]; then p=/.$to; else p=${p%/*}/$to; fi
done
[[ ! -d $p ]] || refuse EISDIR ''
((${#mv[@]} && ${#rm[@]} && ${#stat[@]} && ${#chmod[@]})) || in_place=1
if [[ -e $p ]]; then
  new=0
  if ((!in_place)) && [[ -f $p && -O $p && -w $p ]]; then
    old=$("${stat[@]}" -c '%h %a %g' "$p") || exit 91
    [[ $old == '1 '* ]] || in_place=1
  else
    in_place=1
  fi
fi
if [[ $mode && ${#chmod[@]} == 0 ]]; then
  ((!(8#$mode & 07111))) || [[ -x $p ]] || refuse lack chmod
  umask "$(printf %04o $((0777 & ~8#$mode)))"
fi
fill() {
  if [[ $size ]]; then "${cat[@]}"; else take; fi
}
onto() {
  if ((${#cat[@]})); then "${cat[@]}" <"$t" >"$p"; else copy <"$t" >"$p"; fi || exit 91
}
make() { set -C; { :; } >"$t" && set +C; }
take_over() {
  set -- $old
  "${cp[@]}" --attributes-only --preserve=mode,ownership,xattr "$p" "$t" 2>/dev/null && return
  [[ -G $p && -G $t ]] || "${chgrp[@]}" "$3" "$t" || return
  "${chmod[@]}" "$2" "$t"
}
if ((!in_place)); then
  t=${p%/*}/.swerex-$5.tmp
  plain=$(umask)
  if [[ $mode || $old ]]; then umask 077; fi
  if ! make 2>/dev/null; then
    said=$(make 2>&1)
    ((!new)) && unreplaceable "$said" || say "$said"
    set +C
    in_place=1 t=
  fi
  umask "$plain"
fi
if ((in_place)); then
  fill >"$p" || { code=$?; ((code != 92)) || refuse short ''; exit 91; }
  [[ ! $mode || ${#chmod[@]} == 0 ]] || "${chmod[@]}" "$mode" "$p" || exit 91
  exit 0
fi
trap '"${rm[@]}" -f "$t"' EXIT
fill >"$t" || { code=$?; ((code != 92)) || refuse short ''; exit 91; }
if [[ $size ]]; then
  now=$("${stat[@]}" -c %s "$t") || exit 91
  ((now == size)) || refuse short ''
fi
if [[ $mode ]]; then
  "${chmod[@]}" "$mode" "$t" || exit 91
elif [[ $old ]] && ! said=$(take_over 2>&1); then
  unreplaceable "$said" || say "$said"
  onto
  exit 0
fi
if ! said=$("${mv[@]}" -f "$t" "$p" 2>&1); then
  ((!new)) && unreplaceable "$said" || say "$said"
  onto
  [[ ! $mode ]] || "${chmod[@]}" "$mode" "$p" || exit 91
  exit 0
fi
trap - EXIT
exit 0
"""
"""Words: a path; the file's size ("" if what comes is framed, which needs neither cat nor stat); its mode ("" to keep
that of the old one); its name if it goes into a directory ("" if it must not); something random. Makes its standard
input the file."""

TREE_BEGIN = r"""
t=$1
if [[ -e $t || -L $t ]] && [[ ! -d $t ]]; then refuse file ''; fi
parent=${t%/*}
above "$parent"
for where in "${parent:-/}" "$t" "${TMPDIR:-/tmp}"; do
  spool=$where/.swerex-$2.tmp
  [[ -d $where ]] && "${mkdir[@]}" -m 700 "$spool" 2>/dev/null && break
  spool=
done
if [[ ! $spool ]]; then
  said=$("${mkdir[@]}" -m 700 "${parent:-/}/.swerex-$2.tmp" 2>&1)
  say "$said"
fi
[[ $spool == /* ]] || spool=$PWD/$spool
[[ $t == /* ]] || t=$PWD/$t
trap 'cd /; "${rm[@]}" -rf "$spool"' EXIT
cd "$spool" || exit 91
"""
"""Words: a path for a tree, something random, and what TREE_END needs. Makes a directory to unpack into."""

FILL_BY_TAR = r"""
"${tar[@]}" -x -p -o -f - || { code=$?; [[ -d end ]] || exit $code; exit 91; }
"""

FILL_BY_BASH = r"""
umask 077
files=() modes=()
while IFS= read -r -d '' what; do
  case $what in
    d) IFS= read -r -d '' n && IFS= read -r -d '' m || refuse short ''
       "${mkdir[@]}" "./$n" || exit 91
       [[ $m == 700 ]] || modes[8#$m]+=" ${#files[@]}"
       files+=("./$n") ;;
    l) IFS= read -r -d '' n && IFS= read -r -d '' to && "${ln[@]}" -s -- "$to" "./$n" || exit 91 ;;
    f) IFS= read -r -d '' n && IFS= read -r -d '' m || refuse short ''
       ((${#chmod[@]})) || umask "$(printf %04o $((0777 & ~8#$m)))"
       take >"./$n" || { code=$?; ((code != 92)) || refuse short ''; exit 91; }
       ((${#chmod[@]} == 0)) || [[ $m == 600 ]] || modes[8#$m]+=" ${#files[@]}"
       files+=("./$n") ;;
  esac
done
for m in "${!modes[@]}"; do
  some=()
  for i in ${modes[m]}; do
    some+=("${files[i]}")
    if ((${#some[@]} == 200)); then "${chmod[@]}" "$(printf %o "$m")" "${some[@]}" || exit 91; some=(); fi
  done
  ((${#some[@]} == 0)) || "${chmod[@]}" "$(printf %o "$m")" "${some[@]}" || exit 91
done
"""

TREE_END = r"""
[[ -d end && -d it ]] || refuse short ''
shopt -s nullglob dotglob
declare -A kept=()
levels=()
if [[ -d $t ]]; then kept[./]=1; else "${mkdir[@]}" "$t" || exit 91; fi
stack=('')
while ((${#stack[@]})); do
  above=${stack[-1]}
  unset -v 'stack[-1]'
  levels+=("$above")
  for e in "it/$above"*; do
    n=${e##*/}
    to=$t/$above$n
    if [[ -d $e && ! -L $e ]]; then
      if [[ -d $to ]]; then
        stack+=("$above$n/")
        kept["./$above$n/"]=1
      elif [[ -e $to || -L $to ]]; then refuse file "$above$n"
      fi
    elif [[ -d $to && ! -L $to ]]; then refuse directory "$above$n"
    elif [[ ! -L $to ]] && special "$to"; then refuse special "$above$n"
    fi
  done
done
flush() {
  ((${#batch[@]} == 0)) || "${mv[@]}" -f "${batch[@]}" "$into/" || exit 91
  batch=()
}
overwrite() {
  local mode
  mode=$("${stat[@]}" -c %a "$1") || exit 91
  "${cat[@]}" <"$1" >"$into/$1" || exit 91
  "${chmod[@]}" "$mode" "$into/$1" || exit 91
}
careful=$((${#stat[@]} && ${#cat[@]} && ${#chmod[@]}))
for above in "${levels[@]}"; do
  cd "$spool/it/$above" || exit 91
  into=$t/$above
  into=${into%/}
  batch=() doubtful=()
  for e in ./*; do
    to=$into/${e#./}
    if [[ -d $to && -d $e && ! -L $e ]]; then continue; fi
    if [[ $careful == 1 && -f $to && ! -L $to ]]; then
      if [[ -L $e ]]; then batch+=("$e")
      elif [[ ! -O $to || ! -w $to ]]; then overwrite "$e"
      else doubtful+=("$e")
      fi
    else
      batch+=("$e")
    fi
    ((${#batch[@]} < 200)) || flush
  done
  for ((i = 0; i < ${#doubtful[@]}; i += 200)); do
    some=("${doubtful[@]:i:200}")
    mapfile -t links < <(cd "$into" && "${stat[@]}" -c %h "${some[@]}")
    ((${#links[@]} == ${#some[@]})) || say 'stat: No such file or directory'
    for j in "${!some[@]}"; do
      if ((links[j] > 1)); then overwrite "${some[j]}"; else batch+=("${some[j]}"); fi
    done
    flush
  done
  flush
done
cd "$spool" || exit 91
for ((i = 3; i < $#; i += 2)); do
  j=$((i + 1))
  [[ ${kept["./${!j}"]-} ]] || ((${#chmod[@]} == 0)) || "${chmod[@]}" "${!i}" "$t/${!j}" || exit 91
done
exit 0
"""
"""Moves what was unpacked to its place, by the rules of uploads. Further words: modes and directories ("" is the root,
the others end with a slash) that get them last if they were made, and did not have them before."""

HERE = r"""
mounted() {
  local line fields point
  [[ -r /proc/self/mountinfo ]] || return 1
  while IFS= read -r line; do
    fields=(${line%% - *})
    printf -v point %b "${fields[4]//\\/\\0}"
    [[ $point == / ]] && continue
    [[ $1/ != "$point"/* ]] || return 0
    [[ $2 != tree || $point/ != "$1"/* ]] || return 0
  done </proc/self/mountinfo
  return 1
}
set -f
p=$1 missing=() kind=tree
if [[ ! -d $p ]]; then
  kind=file
  [[ ! -L $p ]] || refuse link ''
  if special "$p"; then refuse special ''; fi
  [[ -e $p ]] || kind=nothing
fi
base=$p
until [[ -d ${base:-/} ]]; do
  missing=("${base##*/}" "${missing[@]}")
  if [[ ${#missing[@]} -gt 1 && ( -e $base || -L $base ) ]]; then refuse above 'Not a directory'; fi
  base=${base%/*}
done
cd -P "${base:-/}" || exit 91
! mounted "${PWD%/}${missing:+/$missing}" "$kind" || refuse mounted ''
printf '%s\0' "$PWD" "$EUID" "${GROUPS[0]}" "$(umask)" "$kind" "${missing[@]}"
"""
"""Words: a path. Prints the deepest directory of it that is there, as it is called without links, the user's and the
group's number, the umask, what the path is ("file", "tree" or "nothing"), and what is missing below the directory.
Refuses where something is mounted: some engines' copying sees what the image and its layer hold, and not what the place
has there."""

DIRECT = r"""
t=$1
shift
if [[ -e $t || -L $t ]] && [[ ! -d $t ]]; then refuse file ''; fi
for e; do
  if [[ $e == */ ]]; then
    to=$t/${e%/}
    if [[ -d $to ]]; then printf 1; continue; fi
    [[ ! -e $to && ! -L $to ]] || refuse file "${e%/}"
  else
    to=$t/$e
    [[ ! -d $to || -L $to ]] || refuse directory "$e"
  fi
  printf 0
done
"""
"""Words: a path for a tree, and what is in it, directories with a slash at the end. Prints 1 for each that is there."""

GET = r"""
p=$1
if [[ -d $p ]]; then
  if ((${#tar[@]})); then
    cd "$p" || exit 91
    printf 'tar\0'
    exec "${tar[@]}" -c -f - .
  fi
  [[ $2 != archive ]] || { printf 'archive\0'; exit 0; }
  cd "$p" || exit 91
  shopt -s nullglob dotglob
  mode_of() {
    if ((${#stat[@]})); then mode=$("${stat[@]}" -L -c %a "$1") || exit 91
    elif [[ -x $1 ]]; then mode=x
    else mode=-
    fi
  }
  mode_of .
  printf 'bash\0d\0.\0%s\0' "$mode"
  stack=(./)
  while ((${#stack[@]})); do
    above=${stack[-1]}
    unset -v 'stack[-1]'
    [[ -r $above && -x $above ]] || say "$above: Permission denied"
    for e in "$above"*; do
      if [[ -L $e ]]; then
        ((${#readlink[@]})) || refuse lack readlink
        to=$("${readlink[@]}" -n "$e" && printf x) || exit 91
        printf 'l\0%s\0%s\0' "$e" "${to%x}"
      elif [[ -d $e ]]; then
        mode_of "$e"
        printf 'd\0%s\0%s\0' "$e" "$mode"
        stack+=("$e/")
      elif special "$e"; then refuse special "$e"
      else
        exec 3<"$e" || exit 91
        mode_of "$e"
        printf 'f\0%s\0%s\0' "$e" "$mode"
        while IFS= read -r -u 3 -d '' -n 65536 x; do
          if ((${#x} == 65536)); then printf '65536\0%s' "$x"; else printf '%s\0%s\0' $((${#x} + 1)) "$x"; fi
        done
        if [[ $x ]]; then printf '%s\0%s' "${#x}" "$x"; fi
        printf '0\0'
        exec 3<&-
      fi
    done
  done
  printf 'e\0'
  exit 0
fi
if special "$p"; then refuse special ''; fi
exec 3<"$p" || exit 91
if ((${#stat[@]})); then mode=$("${stat[@]}" -L -c %a "$p") || exit 91
elif [[ $2 == archive && ! -L $p && -s $p ]]; then printf 'archive\0'; exit 0
elif [[ -x $p ]]; then mode=x
else mode=-
fi
printf 'file %s\0' "$mode"
if ((${#cat[@]})); then exec "${cat[@]}" <&3; fi
copy <&3
"""
"""Words: a path, and "archive" if the engine can copy. Prints how the rest is to be read, then a file or a tree."""
