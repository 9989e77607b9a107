# Script that keeps a program on pipes and transports their bytes. $@ has the words of the program; swx_line has them as
# a shell command, if the program needs a terminal.
#
# - Commands to the script are lines. A line for input has its size, and the bytes follow. They are stored in a variable
#   and written to the program in the background, so that the next line is read even if the program reads nothing. No
#   further input is sent before the script has acknowledged that write.
# - Only the process that has taken the byte out of the pipe swx_turn prints a frame. A frame has its length, so that
#   the receiver detects a frame that lost a part, or into which other processes printed.
# - The copy loops do not end at the end of a pipe, because processes that the program left behind may hold it open
#   forever. When the program has ended, a mark is written to the pipes behind all its output. The mark uses descriptors
#   of its own: the program may have made its own non-blocking, and then a mark would be lost if the pipe is full.
# - The program runs in the foreground of this shell, or its interrupts would be ignored. It runs in a session of its
#   own if there is `setsid`, so that it cannot print to our terminal or read our lines from it.
# - Its environment is the one that the toolbox gave to the first shell, without the changes by that shell's startup
#   files, which set another PATH than the image has.
# shellcheck disable=SC2034,SC2154 # variables that are read only to wait, and those that terminal.py sets
exec {swx_tty}<&0 {swx_out}> >(exec dd bs=65536 2>/dev/null) </dev/null >/dev/null 2>/dev/null
swx_say() {
  local turn
  IFS= read -r -N 1 -u "$swx_turn" turn
  printf '\n%s%s%d %s\n' "$swx_key" "$1" "${#2}" "$2" >&"$swx_out"
  printf x >&"$swx_turn"
}
swx_stay() { local never; IFS= read -r -N 1 -u "$swx_never" never; exit; }
swx_fail() { swx_say f "$1"; swx_stay; }
swx_pipe() {
  local both
  exec {both}<> <(:) && exec {swx_r}<"/dev/fd/$both" {swx_w}>"/dev/fd/$both" {swx_m}>"/dev/fd/$both" {both}>&-
}
swx_copy() {
  local credit data
  while IFS= read -r -N 1 -u "$3" credit; do
    data=$(dd bs="$swx_size" count=1 <&"$2" | base64 -w 0)
    [[ ! $data ]] || swx_say "$1" "$data"
  done
}
swx_take() {
  local kind size data
  while IFS=' ' read -r -u "$swx_tty" kind size; do
    case $kind in
      1) printf x >&"$swx_one" ;;
      2) printf x >&"$swx_two" ;;
      i)
        data=$(dd bs="$size" count=1 iflag=fullblock <&"$swx_tty" | base64 -w 0)
        { printf %s "$data" | base64 -d >&"$swx_w0"; swx_say a; } &
        ;;
      e) exec {swx_w0}>&- ;;
    esac
  done
}
swx_start() {
  swx_setsid=()
  ! command -v setsid || swx_setsid=(setsid)
  exec <&"$swx_r0" 2>&"$swx_w2" {swx_r0}<&- {swx_r1}<&- {swx_r2}<&- {swx_w2}>&- {swx_m1}>&- {swx_m2}>&- \
    {swx_one}>&- {swx_two}>&- {swx_turn}>&- {swx_never}>&- {swx_out}>&- {swx_tty}<&-
  if ((${#swx_environ[@]})); then
    for swx_each in $(compgen -e); do unset -v "$swx_each"; done
    # shellcheck disable=SC2163 # it is NAME=value
    for swx_each in "${swx_environ[@]}"; do export "$swx_each"; done
    [[ $swx_line ]] || unset -v TERM
  fi 2>&-
  swx_variables
  export -n SHELLOPTS BASHOPTS
  if [[ ! $swx_line ]]; then
    exec "${swx_setsid[@]}" "$@" >&"$swx_w1" {swx_w1}>&-
  fi
  if [[ ${SHELL+x} ]]; then
    swx_line="SHELL=${SHELL@Q}; export SHELL; $swx_line"
  else
    swx_line="unset SHELL; $swx_line"
  fi
  if [[ $swx_inner == script ]]; then
    SHELL=/bin/sh exec "${swx_setsid[@]}" script -qefc "$swx_line" /dev/null >&"$swx_w1" {swx_w1}>&-
  fi
  exec "${swx_setsid[@]}" python3 -c "$swx_spawn" "$swx_line" >&"$swx_w1" {swx_w1}>&-
}
exec {swx_turn}<> <(:) {swx_never}<> <(:) {swx_one}<> <(:) {swx_two}<> <(:)
printf x >&"$swx_turn"
swx_environ=()
mapfile -d '' -t swx_environ < <(printf %s "$swx_place" | base64 -d)
unset -v swx_place
swx_inner=
if [[ $swx_line ]]; then
  if [[ $(script --version </dev/null) == *util-linux* ]]; then
    swx_inner=script
  elif command -v python3; then
    swx_inner=python3
  else
    swx_fail terminal
  fi
fi
swx_pipe && swx_r1=$swx_r swx_w1=$swx_w swx_m1=$swx_m || swx_fail pipes
swx_pipe && swx_r2=$swx_r swx_w2=$swx_w swx_m2=$swx_m || swx_fail pipes
swx_copy 1 "$swx_r1" "$swx_one" &
swx_copy 2 "$swx_r2" "$swx_two" &
swx_pipe && exec {swx_m}>&- && swx_r0=$swx_r swx_w0=$swx_w || swx_fail pipes
swx_take &
exec {swx_w0}>&- {swx_r1}<&- {swx_r2}<&-
(swx_start "$@")
swx_code=$?
exec {swx_r0}<&-
printf %s "$swx_mark" >&"$swx_m1"
printf %s "$swx_mark" >&"$swx_m2"
swx_say x "$swx_code"
swx_stay
