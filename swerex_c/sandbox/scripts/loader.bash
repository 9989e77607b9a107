# Run scripts one after another, for a `Loader`. $1 is the word that the greeting begins with.
#
# - A header line gives the nonce, the kind of the script (below), and the sizes of the words that follow.
# - The script runs in a subshell with a process group of its own (`set -m`), so that `kill 0` does not reach the
#   loader. Monitor mode is turned off before the wait, or a program that stops itself would count as ended. If it stops
#   earlier than that, it is waited for again.
# - bash gives 137 both for `exit 137` and for SIGKILL; its job table tells which, until the job has been waited for. A
#   signal's number is sent with a minus.
# - Writing a record is retried until it succeeds, because the program may have left the pipe non-blocking. bash has no
#   builtin sleep, so the loader reads with a timeout from a pipe that never has data.
# - SHELLOPTS and BASHOPTS would reveal the loader's options: if the sandbox exports them, they are not passed on.
# - swx_tagged is 0 if the mark is in the limits too, so that the process is found without it in the environment.
#
# A script of the kind 1 (`REUSABLE`) prints into fresh pipes, which two `cat` processes copy out. When it has ended, its
# last record takes the same path, after all that it printed. The client acknowledges the record once it has arrived on
# both streams. Then the loader closes its ends of the pipes. If both copiers end within 0.1 seconds, no other process
# holds the pipes and everything is copied, so the loader can take another script, and says so. Otherwise it kills them
# and ends: processes that the script left get SIGPIPE if they print more, as if their caller were gone. The copiers
# belong to no script, or one that ends everything with the runtime's mark would lose its own result. A loader is used
# once if there is no `cat`, or one that does not copy.
# shellcheck disable=SC2034 # scripts use what seems unused
. words_lib.bash
swx_quiet=
swx_pause() { [[ ! $swx_quiet ]] || read -r -t "$1" -u "$swx_quiet"; }
swx_say() {
  local end=$((SECONDS + 60))
  until printf '%s%s;' "${swx_head[0]}" "$1"; do
    ((SECONDS < end)) || exit 1
    swx_pause 0.01
  done
}
swx_copiers=() swx_out= swx_err=
swx_pipes() {
  [[ -x $swx_cat ]] || return 0
  exec {swx_out}> >(unset -v SWEREX_C_MARK; exec {swx_two}>&- {swx_quiet}>&-; exec "$swx_cat")
  swx_copiers[0]=$!
  exec {swx_err}> >(unset -v SWEREX_C_MARK; exec {swx_out}>&- >&"$swx_two" {swx_two}>&- {swx_quiet}>&-; exec "$swx_cat")
  swx_copiers[1]=$!
}
swx_copying() { ((${#swx_copiers[@]} == 2)) && kill -0 "${swx_copiers[0]}" && kill -0 "${swx_copiers[1]}"; }
swx_drained() {
  local try
  exec {swx_out}>&- {swx_err}>&-
  for ((try = 0; try < 100; try++)); do
    kill -0 "${swx_copiers[0]}" || kill -0 "${swx_copiers[1]}" || { swx_copiers=(); return 0; }
    swx_pause 0.001
  done
  return 1
}
# Read from the job table how the job has ended, without a child if possible: its end would be one more SIGCHLD.
swx_read_jobs() {
  local state=
  [[ $swx_quiet ]] || { trap - CHLD; swx_jobs=$(jobs "%?swx_script"); return; }
  { jobs "%?swx_script" && printf '\n'; } >&"$swx_quiet"
  while read -r -t 0 -u "$swx_quiet" && IFS= read -r -u "$swx_quiet"; do
    state+=$REPLY
  done
  [[ ! $state ]] || swx_jobs=$state
}
swx_env() {
  if [[ $swx_locale ]]; then LC_ALL=${swx_locale#=}; else unset -v LC_ALL; fi
  export -n SHELLOPTS BASHOPTS
  export SWEREX_C_MARK="$swx_mark"
  . tag_limits.bash

  swx_tagged=$?
}
swx_locale=${LC_ALL+=$LC_ALL}
LC_ALL=C
swx_directory=$PWD
hash cat 2>&-
for swx_cat in /bin/cat /usr/bin/cat "${BASH_CMDS[cat]-}"; do [[ ! -x $swx_cat ]] || break; done
exec {swx_two}>&2
[[ ! -w /dev/null ]] || exec 2>/dev/null
[[ $("$swx_cat" < <(printf swx)) == swx ]] || swx_cat=
exec {swx_quiet}<> <(:)
swx_pipes
swx_head=("$1") swx_stat=
{ IFS= read -r -d '' swx_stat </proc/1/stat; } 2>&-
# shellcheck disable=SC2086
set -- ${swx_stat##*) }
swx_say "H${BASH_VERSINFO[0]}.${BASH_VERSINFO[1]}.${swx_cat:+1}.${20//[!0-9]/}"
swx_say H >&"$swx_two"
while swx_words=(); swx_read; do
  swx_kind=${swx_head[1]}
  ((swx_kind & 1)) && ! swx_copying && swx_kind=$((swx_kind & 6))
  set -- "${swx_words[@]:2}"
  swx_mark=${swx_words[0]} swx_script=${swx_words[1]} swx_words=()
  swx_one=1 swx_both=$swx_two
  if ((swx_kind & 1)); then swx_one=$swx_out swx_both=$swx_err; fi
  ((swx_kind & 2)) && swx_both=$swx_one
  # Another directory may have its name by now.
  [[ . -ef $swx_directory ]] || cd -P "$swx_directory" || :
  swx_say B
  swx_say B >&"$swx_two"
  swx_jobs=
  trap swx_read_jobs CHLD
  set -m
  (
    ((swx_kind & 4)) && [[ -r /dev/null ]] && exec </dev/null
    exec >&"$swx_one" 2>&"$swx_both" {swx_two}>&- {swx_quiet}>&-
    [[ ! $swx_out ]] || exec {swx_out}>&- {swx_err}>&-
    swx_env 2>&-
    eval "$swx_script"
  ) <&0 &
  set +m
  until wait "$!"; swx_code=$?; ((swx_code <= 128)) || [[ ! $swx_jobs =~ Stopped|Running ]]; do
    trap - CHLD # bash may crash in a `read` with a timeout if a trap reads too
    swx_pause 0.05
    swx_jobs=
    swx_read_jobs
    trap swx_read_jobs CHLD
  done
  trap - CHLD
  if ((swx_code > 128)) && [[ $swx_jobs && ! $swx_jobs =~ [^0-9]"$swx_code"[^0-9] ]]; then
    swx_code=$((128 - swx_code))
  fi
  if ! ((swx_kind & 1)); then
    swx_say E$swx_code
    swx_say E$swx_code >&"$swx_two"
    break
  fi
  swx_say E$swx_code >&"$swx_out"
  swx_say E$swx_code >&"$swx_err"
  if ! IFS= read -r swx_reply || [[ $swx_reply != "${swx_head[0]}" ]] || ! swx_drained; then
    kill -9 "${swx_copiers[@]}"
    break
  fi
  swx_say R
  swx_say R >&"$swx_two"
  swx_pipes
done
