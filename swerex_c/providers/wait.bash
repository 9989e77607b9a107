# Main script of a container, a pod or a cloud's sandbox: wait, and exit when signalled. It needs no program but bash.
#
# With a greeting ($1), first prints it and the bash version, in one line, to report that bash runs. It has no standard
# input, so it reads from a pipe of its own, or waits for a child if it cannot open that pipe by name. When a child of
# its own exits, bash also reaps the processes that it inherited.
trap 'exit 0' TERM INT HUP
{ exec {quiet}<> <(:); } 2>/dev/null || { coproc { read -r; }; quiet=${COPROC[0]}; } 2>/dev/null
[[ ! $1 ]] || echo "$1${BASH_VERSINFO[0]} ${BASH_VERSINFO[1]}"
while :; do read -r -t 5 -u "$quiet"; (:); done
