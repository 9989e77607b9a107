# Become a program, or report by a note why that is impossible: the number of an error (2 ENOENT, 8 ENOEXEC, 13 EACCES,
# 20 ENOTDIR), plus 100 if it is that of the directory; 200 if the variable that was printed cannot be set; else 201.
#
# Reads words from standard input: `=` and the directory, or nothing; 1 for a shell command, 2 for one that is too long
# for an argument; the number of variables, or nothing for the sandbox's environment; 1 if bash cannot be trusted with
# their names; the search path, if there are variables; the variables; the program and its arguments.
. words_lib.bash
swx_fail() { swx_note "$1"; exit 126; }
swx_read || exit 125
exec 2>&8 8>&-
swx_tagged=${1-0} swx_mark=${2-}
set -- "${swx_words[@]}"
unset -v swx_words
[[ ! -r /dev/null ]] || exec </dev/null
swx_directory=$1 swx_shell=$2 swx_count=$3 swx_hard=$4 swx_path=${5-}
shift 5
if [[ $swx_directory ]]; then
  swx_directory=${swx_directory#=}
  [[ $swx_directory ]] || swx_fail 102
  [[ $swx_directory == /* ]] || swx_directory=./$swx_directory
  if ! cd -P -- "$swx_directory" 2>&-; then
    [[ -d $swx_directory ]] && swx_fail 113
    [[ -e $swx_directory ]] && swx_fail 120
    swx_fail 102
  fi
fi
swx_pairs=()
if [[ $swx_count ]]; then
  swx_pairs=("${@:1:swx_count}")
  shift "$swx_count"
  # Without the mark in its limits, the program is found only by the variable.
  ((swx_tagged == 0)) || swx_pairs+=("SWEREX_C_MARK=$swx_mark")
else
  swx_path=${PATH-}
fi
if ((swx_shell)); then
  swx_name=/bin/sh swx_file=/bin/sh
  [[ -x /bin/sh ]] || swx_file=$BASH
  if ((swx_shell > 1)); then
    exec 9< <(printf 'exec 9<&-;%s' "$1") || swx_fail 201
    shift
    swx_text='. /dev/fd/9'
    [[ -e /dev/fd/9 ]] || swx_text='. /proc/self/fd/9'
    set -- "$swx_text" "$@"
  fi
  set -- -c "$@"
else
  swx_name=$1 swx_file=
  shift
  if [[ $swx_name == */* ]]; then
    swx_file=$swx_name
  elif [[ $swx_name ]]; then
    while [[ $swx_path ]]; do
      swx_place=${swx_path%%:*}
      [[ $swx_path == *:* ]] && swx_path=${swx_path#*:} || swx_path=
      swx_place=${swx_place:-.}/$swx_name
      [[ -f $swx_place ]] || continue
      if [[ -x $swx_place ]]; then swx_file=$swx_place; break; fi
      swx_file=${swx_file:-$swx_place}
    done
  fi
  [[ $swx_file ]] || swx_fail 2
fi
swx_magic='#!'
if [[ -f $swx_file && -x $swx_file && -r $swx_file ]]; then
  LC_ALL=C IFS= read -r -N 4 swx_magic 2>&- <"$swx_file" || [[ $swx_magic ]] || swx_fail 8
  [[ $swx_magic == '#!'* || $swx_magic == $'\177ELF' || ! $swx_magic =~ ^[[:print:][:space:]]*$ ]] || swx_fail 8
fi
swx_fail_to_start() {
  if [[ ! -e $swx_file && -e ${swx_file%/*} && ! -d ${swx_file%/*} ]]; then swx_fail 20; fi
  [[ -e $swx_file ]] || swx_fail 2
  [[ ! -d $swx_file && -x $swx_file ]] || swx_fail 13
  (($1 != 127)) || swx_fail 2
  # bash 5.3 has 126 for a missing interpreter, too.
  if [[ $swx_magic == '#!'* ]]; then
    IFS=$' \t' read -r swx_line swx_place _ 2>&- <"$swx_file" || :
    swx_line=${swx_line#'#!'}
    [[ -e ${swx_line:-$swx_place} ]] || swx_fail 2
  fi
  [[ $swx_magic == '#!'* || $swx_magic == $'\177ELF' ]] || swx_fail 8
  swx_fail 201
}
# Keep exec from exporting SHLVL, which it counts down: an array cannot be exported.
swx_no_level() {
  unset -v SHLVL
  declare -g -a SHLVL=(1)
}
shopt -s execfail
if [[ $swx_count ]]; then
  export -n PWD OLDPWD _
  swx_no_level
  if ((swx_hard)); then
    swx_env=
    for swx_place in /usr/bin/env /bin/env; do
      [[ -x $swx_place ]] && swx_env=$swx_place
    done
    if [[ $swx_env ]]; then
      [[ -e $swx_file && ! -d $swx_file && -x $swx_file ]] || swx_fail_to_start 126
      if [[ $swx_file == *=* ]]; then
        # shellcheck disable=SC2016
        set -- /bin/sh -c 'exec "$0" "$@"' "$swx_file" "$@"
      else
        set -- "$swx_file" "$@"
      fi
      # shellcheck disable=SC2093 # execfail is set
      exec -c "$swx_env" -i -- "${swx_pairs[@]}" "$@"
      swx_fail 201
    fi
  fi
  for swx_pair in "${swx_pairs[@]}"; do
    swx_key=${swx_pair%%=*}
    [[ $swx_key != SHLVL ]] || unset -v SHLVL
    # shellcheck disable=SC2163 # it is NAME=value
    if ! export "$swx_pair" 2>&- || [[ ${!swx_key} != "${swx_pair#*=}" ]]; then
      printf %s "$swx_key"
      swx_fail 200
    fi
  done
elif ((SHLVL == 2)); then
  # The sandbox has none.
  swx_no_level
fi
swx_restore
command exec -a "$swx_name" -- "$swx_file" "$@"
swx_code=$?
unset -v FUNCNEST
swx_fail_to_start "$swx_code"
