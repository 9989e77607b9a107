# Unpack a tree from standard input beside the target, then move it there by the rules of uploads. First prints a line
# with the format to send: "tar", or "records" if the sandbox has no tar. The input is the tree "it", and then the file
# "end", which proves that it is complete. That file has pairs of a mode and a directory below "it" ("" is the root,
# others end with a slash), each word with a NUL. A directory that did not exist before gets its mode last.
#
# Arguments: a path; a random string.
. file_lib.bash
need mkdir mv rm
t=$1
if [[ -e $t || -L $t ]] && [[ ! -d $t ]]; then refuse file ''; fi
parent=${t%/*}
make_parent "$parent"
made=()
trap 'cd /; remove "${made[@]}"' EXIT
for where in "${parent:-/}" "$t" "${TMPDIR:-/tmp}"; do
  sweep "$where"
  [[ $where == /* ]] || where=$PWD/$where
  staging=$where/$temporary-$2.tmp
  [[ -d $where ]] && made+=("$staging") && mkdir -m 700 "$staging" 2>/dev/null && break
  staging=
done
if [[ ! $staging ]]; then
  said=$(mkdir -m 700 "${parent:-/}/$temporary-$2.tmp" 2>&1)
  fail "$said"
fi
[[ $t == /* ]] || t=$PWD/$t
cd "$staging" || exit 91
if have tar; then
  printf 'tar\n'
  tar -x -p -o -f - || exit 91
else
  printf 'records\n'
  while IFS= read -r -d '' what; do
    case $what in
      d) IFS= read -r -d '' n && IFS= read -r -d '' m || refuse short ''
         mkdir -m "$m" "./$n" || exit 91 ;;
      l) need ln
         IFS= read -r -d '' n && IFS= read -r -d '' to && ln -s -- "$to" "./$n" || exit 91 ;;
      f) IFS= read -r -d '' n && IFS= read -r -d '' m || refuse short ''
         # No mode keeps this script from writing the file: the redirection creates it.
         printf -v mask %o $((0777 & ~8#$m))
         umask "$mask"
         ((!(8#$m & 01111))) || need chmod
         read_frames >"./$n" || { code=$?; ((code != 92)) || refuse short ''; exit 91; }
         ((!(8#$m & 01111))) || chmod "$m" "./$n" || exit 91 ;;
    esac
  done
  umask 077
fi
[[ -f end && -d it ]] || refuse short ''
mapfile -d '' -t last <end
shopt -s nullglob dotglob
stack=('')
while ((${#stack[@]})); do
  above=${stack[-1]}
  unset -v 'stack[-1]'
  for e in "it/$above"*; do
    n=${e##*/}
    to=$t/$above$n
    if [[ -d $e && ! -L $e ]]; then
      if [[ -L $to ]]; then refuse link "$above$n"
      elif [[ ! -e $to ]]; then : # asked first, because another upload may create it now
      elif [[ -d $to ]]; then stack+=("$above$n/")
      else refuse file "$above$n"
      fi
    elif [[ -d $to && ! -L $to ]]; then refuse directory "$above$n"
    elif [[ ! -L $to ]] && special "$to"; then refuse 'special file' "$above$n"
    fi
  done
done
# A link that has replaced a directory meanwhile is not followed. A directory that another upload has created meanwhile
# is merged into, as one that existed before.
declare -A kept=()
said=$(mkdir "$t" 2>&1) || { [[ -d $t ]] || fail "$said"; kept[./]=1; }
cd -P "$t" || exit 91
root=${PWD%/}
enter() {
  cd -P "$root/$1" || exit 91
  [[ ${PWD%/}/ == "$root/$1" ]] || refuse link "$1"
}
merge() {
  n=${e##*/}
  [[ -d $e && ! -L $e && -d ./$n && ! -L ./$n ]] || return
  stack+=("$above$n/") sources+=("$source$n/") kept["./$above$n/"]=1
}
# Set $mount to the number of a directory's mount, or to nothing if it is not known.
find_mount() {
  local key
  mount=
  while read -r key mount; do [[ $key != mnt_id: ]] || return 0; done 2>/dev/null 9<"$1" </proc/self/fdinfo/9
}
# Only a rename replaces a file whole. What is for another mount is first moved there, beside its place.
approach() {
  local here near=./$temporary-$1.tmp
  find_mount .
  here=$mount
  find_mount "$source"
  [[ $mount != "$here" ]] && sweep . && made+=("$PWD/$near") && mkdir -m 700 "$near" 2>/dev/null || return 0
  near=$PWD/$near
  said=$(mv -f "${source%/}" "$near/it" 2>&1) || fail "$said"
  source=$near/it/
}
flush() {
  local e left
  while ((${#batch[@]})) && ! said=$(mv -f "${batch[@]}" . 2>&1); do
    left=()
    for e in "${batch[@]}"; do
      [[ ! -e $e && ! -L $e ]] || merge || left+=("$e")
    done
    ((${#left[@]} < ${#batch[@]})) || fail "$said"
    batch=("${left[@]}")
  done
  batch=()
}
stack=('') sources=("$staging/it/")
while ((${#stack[@]})); do
  above=${stack[-1]} source=${sources[-1]}
  unset -v 'stack[-1]' 'sources[-1]'
  enter "$above"
  approach "$2"
  batch=()
  for e in "$source"*; do
    merge || batch+=("$e")
    ((${#batch[@]} < 200)) || flush
  done
  flush
done
for ((i = 0; i < ${#last[@]}; i += 2)); do
  below=${last[i + 1]}
  [[ ${kept["./$below"]-} ]] || ! have chmod || { enter "$below" && chmod "${last[i]}" .; } || exit 91
done
exit 0
