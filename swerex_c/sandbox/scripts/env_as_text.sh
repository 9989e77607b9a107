# shellcheck shell=sh
# Run a client with variables added to the text of its command, as quoted by `env_passing.quote_for_any_shell`.
# Arguments: the names of the variables; the text; the client's command line, to which the text is added.
#
# It runs in any POSIX sh on this machine. A bash that is called as sh drops the PS1 and PS2 that it is given, so they
# are read from its initial environment. The variables, except TERM, are not passed to the client itself: if the sandbox
# is on this machine, the client would look like a process that was started in it.

# Set $value to the value of the variable $1.
look_up() {
  eval "[ -n \"\${$1+x}\" ]" && eval "value=\$$1" && return
  # shellcheck disable=SC3045 # if the variable is missing, sh may be a bash
  while IFS= read -r -d '' value; do
    case $value in "$1="*) value=${value#*=}; return 0;; esac
  done <"/proc/$$/environ" 2>/dev/null
  return 1
}
drop() { [ "$1" = TERM ] || unset "$1"; }
# Replace $1 by $2 in $value.
encode() {
  rest=$value value=
  while :; do
    case $rest in
      *"$1"*) value=$value${rest%%"$1"*}$2 rest=${rest#*"$1"} ;;
      *) break ;;
    esac
  done
  value=$value$rest
}
names=$1 line=$2; shift 2
for name in $names; do
  look_up "$name" || continue
  encode @ @40; encode "'" @27; encode \\ @5c; encode ! @21; encode '
' @0a
  line="$line '$name=$value'"
  drop "$name"
done
exec "$@" "$line"
