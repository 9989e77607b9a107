# Arguments: names of programs. Prints for each one found its name, or "busybox NAME" if busybox provides it, and its
# path; each ends with a NUL.
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
  if [[ $found ]]; then printf '%s\0%s\0' "$name" "$found"; continue; fi
  if [[ $busybox && ! $applets ]]; then applets=$'\n'$("$busybox" --list 2>/dev/null)$'\n'; fi
  if [[ $applets == *$'\n'"$name"$'\n'* ]]; then printf '%s\0%s\0' "busybox $name" "$busybox"; fi
done
