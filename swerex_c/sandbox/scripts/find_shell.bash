# Probe the sandbox, and find the shell of a session.
#
# Arguments: the mark of a session, or any other. Prints the sandbox clock in seconds, or `-` if it is unknown.
#
# Exit code 0: the session's shell exists and leads its terminal session.
. process_lib.bash
. shell_lib.bash

now=
{ read -r now _ </proc/uptime; } 2>/dev/null
echo "${now:--}"
[[ $shell ]] && ((leads))
