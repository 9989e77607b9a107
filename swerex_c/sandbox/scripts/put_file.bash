# Write a file. Its contents are the last argument, escaped for %b of printf, or else standard input. For standard
# input, first prints a line with the format to send: "plain", which needs cat and stat, or "frames".
#
# Arguments: a path; the size of the input ("" if it is not known); the file's mode ("" keeps the old one); its name if
# the path may be a directory that gets it ("" if not allowed); a random string; contents.
. file_lib.bash
p=$1 size=$2 mode=$3 name=$4 word=$6 given=$# t= in_place=0 new=1 old= inside=0
if [[ $name ]]; then
  if [[ -d $p ]]; then
    p=${p%/}/$name inside=1
    [[ ! -d $p ]] || refuse directory "$name"
  elif [[ $p == */ ]]; then refuse ENOTDIR ''
  fi
fi
make_parent "${p%/*}"
for ((i = 0; ; i++)); do
  # A link in a directory is replaced: the caller has named the directory.
  [[ -L $p && $inside == 0 ]] || break
  have readlink || { in_place=1; break; }
  ((i < 40)) || refuse ELOOP ''
  to=$(readlink -n "$p" && printf x) || exit 91
  to=${to%x}
  if [[ $to == /* ]]; then p=/.$to; else p=${p%/*}/$to; fi
done
[[ ! -d $p ]] || refuse EISDIR ''
# A device keeps its mode.
[[ ! -e $p || -f $p ]] || mode=
have mv rm stat chmod || in_place=1
[[ $in_place == 0 || $inside == 0 || ! -L $p ]] || refuse lack mv
if [[ -e $p && ! -L $p ]]; then
  new=0
  if ((!in_place)) && [[ $mode && -f $p && ! -w $p ]]; then :
  elif ((!in_place)) && [[ -f $p && -O $p && -w $p ]]; then
    old=$(stat -c '%h %a %g' "$p") || exit 91
    [[ $old == '1 '* ]] || in_place=1
  else
    in_place=1
  fi
fi
if [[ $mode ]] && ! have chmod; then
  ((!(8#$mode & 07111))) || [[ -x $p ]] || refuse lack chmod
  umask "$(printf %04o $((0777 & ~8#$mode)))"
fi
fill() {
  if ((given > 5)); then printf %b "$word"; elif [[ $size ]]; then cat; else read_frames; fi
}
overwrite() {
  if have cat; then cat <"$t" >"$p"; else copy <"$t" >"$p"; fi || exit 91
}
create() { set -C; { :; } >"$t" && set +C; }
copy_attributes() {
  # shellcheck disable=SC2086
  set -- $old
  cp --attributes-only --preserve=mode,ownership,xattr "$p" "$t" 2>/dev/null && return
  [[ -G $p && -G $t ]] || chgrp "$3" "$t" || return
  chmod "$2" "$t"
}
if ((!in_place)); then
  sweep "${p%/*}"
  t=${p%/*}/$temporary-$5.tmp
  trap 'remove "$t"' EXIT
  plain=$(umask)
  if [[ $mode || $old ]]; then umask 077; fi
  if ! create 2>/dev/null; then
    said=$(create 2>&1)
    ((!new)) && unreplaceable "$said" || fail "$said"
    set +C
    in_place=1 t=
    trap - EXIT
  fi
  umask "$plain"
fi
note_waiting "$p"
if ((given < 6)); then
  if [[ $size ]] && have cat stat; then printf 'plain\n'; else size='' && printf 'frames\n'; fi
fi
if ((in_place)); then
  fill >"$p" || { code=$?; ((code != 92)) || refuse short ''; exit 91; }
  [[ ! $mode ]] || ! have chmod || chmod "$mode" "$p" || exit 91
  exit 0
fi
fill >"$t" || { code=$?; ((code != 92)) || refuse short ''; exit 91; }
if [[ $size ]]; then
  now=$(stat -c %s "$t") || exit 91
  ((now == size)) || refuse short ''
fi
if [[ $mode ]]; then
  chmod "$mode" "$t" || exit 91
elif [[ $old ]] && ! said=$(copy_attributes 2>&1); then
  unreplaceable "$said" || fail "$said"
  overwrite
  exit 0
fi
if ! said=$(mv -f "$t" "$p" 2>&1); then
  ((!new)) && unreplaceable "$said" || fail "$said"
  overwrite
  [[ ! $mode ]] || chmod "$mode" "$p" || exit 91
  exit 0
fi
trap - EXIT
exit 0
