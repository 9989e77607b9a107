# shellcheck shell=sh
# Functions of the scripts that pass environment variables to a client. They run in any POSIX sh on this machine.
#
# A bash that is called as sh drops the PS1 and PS2 that it is given, so they are read from its initial environment. The
# variables, except TERM, are not passed to the client itself: if the sandbox is on this machine, the client would look
# like a process that was started in it.
look() {
  eval "[ -n \"\${$1+x}\" ]" && eval "value=\$$1" && return
  # shellcheck disable=SC3045 # if the variable is missing, sh may be a bash
  while IFS= read -r -d '' value; do
    case $value in "$1="*) value=${value#*=}; return 0;; esac
  done <"/proc/$$/environ" 2>/dev/null
  return 1
}
drop() { [ "$1" = TERM ] || unset "$1"; }
