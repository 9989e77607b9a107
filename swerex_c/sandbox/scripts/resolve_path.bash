# Resolve a path for an engine that copies to it. Refuses a path with a mount: some engines copy from the image and its
# layer, and do not see what is mounted in the sandbox.
#
# Arguments: a path. Prints its deepest existing directory with links resolved, the numbers of the user and the group,
# the umask, the kind of the path ("file", "tree" or "nothing"), and the path's missing parts below that directory.
. file_lib.bash
mounted() {
  local line fields point
  [[ -r /proc/self/mountinfo ]] || return 1
  while IFS= read -r line; do
    # shellcheck disable=SC2206
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
  kind='file'
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
! mounted "${PWD%/}${missing[0]:+/${missing[0]}}" "$kind" || refuse mounted ''
printf '%s\0' "$PWD" "$EUID" "${GROUPS[0]}" "$(umask)" "$kind" "${missing[@]}"
