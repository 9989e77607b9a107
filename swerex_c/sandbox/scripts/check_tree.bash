# Arguments: a tree's path; its entries, directories with a trailing slash. Prints 1 per existing directory, else 0.
. file_lib.bash
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
