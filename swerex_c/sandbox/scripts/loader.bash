# Run scripts one after another, for a `LoaderClient`. $1 is the word that the greeting begins with.
#
# - A header line gives the nonce, the kind of the script (below), and the sizes of the words that follow.
# - The script runs in a subshell with a process group of its own (`set -m`), so that `kill 0` does not reach the
#   loader. Monitor mode is turned off before the wait, or a program that stops itself would count as ended.
# - bash gives 137 both for `exit 137` and for SIGKILL; its job table tells which, until the job has been waited for. A
#   signal's number is sent with a minus.
# - Writing a record is retried until it succeeds, because the program may have left the pipe non-blocking. bash has no
#   builtin sleep, so the loader reads with a timeout from a pipe that never has data.
# - If the sandbox sets POSIXLY_CORRECT, a trapped SIGCHLD would end the wait, and an old bash could not do the rest.
# - FUNCNEST would forbid the scripts' functions, and TMOUT would end their reads: if the sandbox sets them, they are
#   unset for the scripts, and restored for the command that the caller wants to execute.
# - SHELLOPTS and BASHOPTS would reveal the loader's options: if the sandbox exports them, they are not passed on.
# - swx_branded is 0 if the mark is in the limits too, so that the process is found without it in the environment.
#
# A script of the kind 1 (`REUSABLE`) leaves the shell reusable. Everything that it executes has only a pair of fresh pipes,
# and standard input from elsewhere; two `cat` processes copy from these pipes to the client's. When the script has
# ended, its last record takes the same path, after all that it printed. The client acknowledges the record once it has
# arrived on both streams; then the shell kills the two `cat`, waits until they are gone, and reports on the client's
# pipes that it is ready. No process of the earlier script can write to the client's pipes: only the shell and the two
# `cat` ever had them open, and the `cat` are gone. Output between the last record and this report comes from processes
# that the script left, and is discarded; they get SIGPIPE if they print more, as if their caller were gone. The two
# `cat` are executed through a descriptor, under another name, so that `pkill cat` and `killall cat` do not match them.
# They carry no mark, or a script that ends everything with the runtime's mark would lose its own result; they end with
# the shell and with the processes that hold their pipes. A shell is used once if there is no `cat`, or if its two were
# killed while it waited.
# shellcheck disable=SC2034 # scripts use what seems unused
. words_lib.bash
swx_posix=${POSIXLY_CORRECT+=$POSIXLY_CORRECT}
set +o posix
swx_nest=${FUNCNEST+=$FUNCNEST} swx_idle=${TMOUT+=$TMOUT}
unset -v FUNCNEST TMOUT
swx_say() {
  local quiet end=$((SECONDS + 60))
  until printf '%s%s;' "${swx_head[0]}" "$1"; do
    ((SECONDS < end)) || exit 1
    exec {quiet}<> <(:) && { read -r -t 0.01 -u "$quiet"; exec {quiet}>&-; }
  done
}
swx_cats=() swx_out= swx_err=
swx_copy() {
  local file
  case $swx_how in
  hidden) exec {file}<"$swx_cat" && exec -a swerex-c "/proc/self/fd/$file" ;;
  busybox) exec {file}<"$swx_cat" && exec -a busybox "/proc/self/fd/$file" cat ;;
  *) exec "$swx_cat" ;;
  esac
}
swx_pipes() {
  [[ -x $swx_cat ]] || return 0
  swx_out= swx_err=
  exec {swx_out}> >(unset -v SWEREX_C_MARK; exec {swx_two}>&-; swx_copy)
  swx_cats[0]=$!
  exec {swx_err}> >(unset -v SWEREX_C_MARK; exec {swx_out}>&- >&"$swx_two" {swx_two}>&-; swx_copy)
  swx_cats[1]=$!
  [[ $swx_out && $swx_err ]] || { swx_settle; swx_cat=; }
}
swx_piped() { ((${#swx_cats[@]} == 2)) && kill -0 "${swx_cats[0]}" && kill -0 "${swx_cats[1]}"; }
swx_settle() {
  local cat try
  ((${#swx_cats[@]})) || return 0
  [[ ! $swx_out ]] || exec {swx_out}>&-
  [[ ! $swx_err ]] || exec {swx_err}>&-
  swx_out= swx_err=
  kill -9 "${swx_cats[@]}"
  for cat in "${swx_cats[@]}"; do
    wait "$cat"
    for ((try = 0; try < 100000; try++)); do kill -0 "$cat" || continue 2; done
    exit 1
  done
  swx_cats=()
}
swx_env() {
  if [[ $swx_locale ]]; then LC_ALL=${swx_locale#=}; else unset -v LC_ALL; fi
  export -n SHELLOPTS BASHOPTS
  export SWEREX_C_MARK="$swx_mark"
  . tag_limits.bash

  swx_branded=$?
}
swx_locale=${LC_ALL+=$LC_ALL}
LC_ALL=C
swx_directory=$PWD
hash cat 2>&-
for swx_cat in /bin/cat /usr/bin/cat "${BASH_CMDS[cat]-}"; do [[ ! -x $swx_cat ]] || break; done
exec {swx_two}>&2
[[ ! -w /dev/null ]] || exec 2>/dev/null
swx_how=hidden
[[ ! $swx_cat -ef ${swx_cat%/*}/busybox ]] || swx_how=busybox
[[ $swx_cat ]] && for swx_how in "$swx_how" plain none; do
  [[ $swx_how != none && $(swx_copy < <(printf swx)) != swx ]] || break
done
[[ $swx_how != none ]] || swx_cat=
swx_pipes
swx_head=("$1")
swx_say "H${BASH_VERSINFO[0]}.${BASH_VERSINFO[1]}.${swx_cat:+1}"
swx_say H >&"$swx_two"
while swx_words=(); swx_read; do
  swx_kind=${swx_head[1]}
  ((swx_kind & 1)) && ! swx_piped && swx_kind=$((swx_kind & 6))
  set -- "${swx_words[@]:2}"
  swx_mark=${swx_words[0]} swx_script=${swx_words[1]} swx_words=()
  swx_one=1 swx_both=$swx_two
  if ((swx_kind & 1)); then swx_one=$swx_out swx_both=$swx_err; fi
  ((swx_kind & 2)) && swx_both=$swx_one
  [[ . -ef $swx_directory ]] || cd -P "$swx_directory" || : # it may have been made anew
  swx_say B
  swx_say B >&"$swx_two"
  swx_jobs=
  trap 'trap - CHLD; swx_jobs=$(jobs "%?swx_script")' CHLD
  set -m
  if ((swx_kind & 4)); then
    (
      exec >&"$swx_one" 2>&"$swx_both" {swx_two}>&-
      [[ ! $swx_out ]] || exec {swx_out}>&- {swx_err}>&-
      swx_env 2>&-
      eval "$swx_script"
    ) </dev/null &
  else
    (
      exec >&"$swx_one" 2>&"$swx_both" {swx_two}>&-
      [[ ! $swx_out ]] || exec {swx_out}>&- {swx_err}>&-
      swx_env 2>&-
      eval "$swx_script"
    ) <&0 &
  fi
  set +m
  wait "$!"
  swx_code=$?
  trap - CHLD
  if ((swx_code > 128)) && [[ $swx_jobs && ! $swx_jobs =~ [^0-9]"$swx_code"[^0-9]|Running ]]; then
    swx_code=$((128 - swx_code))
  fi
  if ((swx_kind & 1)); then
    swx_say E$swx_code >&"$swx_out"
    swx_say E$swx_code >&"$swx_err"
    IFS= read -r swx_reply && [[ $swx_reply == "${swx_head[0]}" ]] || break
    swx_settle
    swx_say R
    swx_say R >&"$swx_two"
    swx_pipes
  else
    swx_say E$swx_code
    swx_say E$swx_code >&"$swx_two"
    break
  fi
done
swx_settle
