# Probe the sandbox, and find the shell of a session.
#
# Arguments: the mark of a session, or any other. Prints a number that changes when the sandbox restarts, and the
# sandbox clock in seconds (`-` for a value that cannot be determined).
#
# Exit code 0: the session's shell exists and leads its terminal session.
. process_lib.bash
. shell_lib.bash

born= now=
stat_of 1 && born=$started
{ read -r now _ </proc/uptime; } 2>/dev/null
echo "${born:--} ${now:--}"
[[ $shell ]] && ((leads))
