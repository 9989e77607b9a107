# Arguments: a path. Prints the format of the rest, then a file or a tree.
. file_lib.bash
p=$1
if [[ -d $p ]]; then
  if ((${#tar[@]})); then
    cd "$p" || exit 91
    printf 'tar\0'
    exec "${tar[@]}" -c -f - .
  fi
  cd "$p" || exit 91
  shopt -s nullglob dotglob
  say_ignored() { printf '%s: %s ignored\n' "$1" "$kind" >&2; }
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
      elif special "$e"; then say_ignored "$e"
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
elif [[ -x $p ]]; then mode=x
else mode=-
fi
printf 'file %s\0' "$mode"
if ((${#cat[@]})); then exec "${cat[@]}" <&3; fi
copy <&3
