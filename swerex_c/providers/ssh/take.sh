# shellcheck shell=sh
# Begin a client: record its process ID for its slot, and wait for a connection that is being made.
#
# Arguments: the connection's socket; the file for the process ID, or nothing; those that are left to the client.
socket=$1 place=$2; shift 2
[ -z "$place" ] || echo $$ >"$place"
n=0
while [ -e "$socket.up" ] && [ ! -S "$socket" ] && [ $((n+=1)) -lt 600 ]; do sleep 0.05; done
