# swx_read: read the array swx_words from the output of `encode_request` on standard input, and not one byte more.
# swx_head gets the two words before the sizes: the nonce and a number.
#
# swx_note NUMBER: then send a number to `RunningScript.note`. Programs that the shell executes cannot do that.
swx_read() {
  local LC_ALL=C TMOUT= size word
  IFS=' ' read -r -a swx_head || return
  for size in "${swx_head[@]:2}"; do
    word=
    if ((size)); then IFS= read -r -N "$size" word || return; fi
    swx_words+=("$word")
  done
}
swx_note() { printf '%sN%s;' "${swx_head[0]}" "$1"; }
# With POSIXLY_CORRECT, a trapped SIGCHLD would end the loader's wait, and an old bash could not do the rest. FUNCNEST
# would forbid functions, and TMOUT would end reads. If the sandbox sets them, the scripts do without, and swx_restore
# sets them for the command that the caller wants to execute.
swx_posix=${POSIXLY_CORRECT+=$POSIXLY_CORRECT}
set +o posix
swx_nest=${FUNCNEST+=$FUNCNEST} swx_idle=${TMOUT+=$TMOUT}
unset -v FUNCNEST TMOUT
swx_restore() {
  [[ ! $swx_posix ]] || export POSIXLY_CORRECT="${swx_posix#=}"
  [[ ! $swx_idle ]] || export TMOUT="${swx_idle#=}"
  [[ ! $swx_nest ]] || export FUNCNEST="${swx_nest#=}"
}
