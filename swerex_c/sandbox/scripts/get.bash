# Arguments: a path. Prints a line that names the format of the rest, then a file or a tree.
. file_lib.bash
mode_of() {
  mode=-
  if have stat; then mode=$(stat -L -c %a "$1") || exit 91
  elif [[ -x $1 && ! -d $1 ]]; then mode=755
  fi
}
if [[ ! -d $1 ]]; then
  if special "$1"; then refuse kind "$kind"; fi
  exec 3<"$1" || exit 91
  mode_of "$1"
  printf 'file %s\n' "$mode"
  if have cat; then exec cat <&3; fi
  copy <&3
  exit
fi
cd "$1" || exit 91
if have tar; then
  printf 'tar\n'
  exec tar -c -f - .
fi
# A record is a line with the kind, the mode and the length of the name, then the name. A link's line has the length of
# its target too, which follows; a file's contents follow in pieces, each after a line with its length, and at last 0.
shopt -s nullglob dotglob
mode_of .
printf 'tree\nd %s 1\n.' "$mode"
stack=(./)
while ((${#stack[@]})); do
  above=${stack[-1]}
  unset -v 'stack[-1]'
  [[ -r $above && -x $above ]] || fail "$above: Permission denied"
  for e in "$above"*; do
    if [[ -L $e ]]; then
      need readlink
      to=$(readlink -n "$e" && printf x) || exit 91
      printf 'l - %s %s\n%s%s' "${#e}" $((${#to} - 1)) "$e" "${to%x}"
    elif [[ -d $e ]]; then
      mode_of "$e"
      printf 'd %s %s\n%s' "$mode" "${#e}" "$e"
      stack+=("$e/")
    elif special "$e"; then
      printf '%s: %s ignored\n' "$e" "$kind" >&2
    else
      exec 3<"$e" || exit 91
      mode_of "$e"
      printf 'f %s %s\n%s' "$mode" "${#e}" "$e"
      while IFS= read -r -u 3 -d '' -n 65536 x; do
        if ((${#x} == 65536)); then printf '65536\n%s' "$x"; else printf '%s\n%s\0' $((${#x} + 1)) "$x"; fi
      done
      if [[ $x ]]; then printf '%s\n%s' "${#x}" "$x"; fi
      printf '0\n'
      exec 3<&-
    fi
  done
done
printf 'end\n'
exit 0
