# Main script of a container: report that bash runs, for engines that show the container's output, then wait.
#
# Prints the greeting ($1), the bash version, the start time of the first process, and the clock. It has no standard
# input, so it reads from a pipe of its own, or waits for a child if it cannot open that pipe by name.
trap 'exit 0' TERM INT HUP
{ exec {quiet}<> <(:); } 2>/dev/null || { coproc { read -r; }; quiet=${COPROC[0]}; } 2>/dev/null
stat= now=
{ IFS= read -r -d '' stat </proc/1/stat; read -r now _ </proc/uptime; } 2>/dev/null
# shellcheck disable=SC2086
set -- "$1" ${stat##*) }
echo "$1${BASH_VERSINFO[0]} ${BASH_VERSINFO[1]} ${21:--} ${now:--}"
while :; do read -r -t 5 -u "$quiet"; (:); done
