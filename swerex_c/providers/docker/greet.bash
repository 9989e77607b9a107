# Main script of a container: report that bash runs, for engines that show the container's output, then wait.
#
# Prints the greeting ($1) and the bash version. It has no standard input, so it reads from a pipe of its own, or waits
# for a child if it cannot open that pipe by name.
trap 'exit 0' TERM INT HUP
{ exec {quiet}<> <(:); } 2>/dev/null || { coproc { read -r; }; quiet=${COPROC[0]}; } 2>/dev/null
echo "$1${BASH_VERSINFO[0]} ${BASH_VERSINFO[1]}"
while :; do read -r -t 5 -u "$quiet"; (:); done
