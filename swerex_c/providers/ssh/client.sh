# shellcheck shell=sh
# Begin a client: record its process ID for its slot, and wait for a connection that is being made.
#
# Arguments: the connection's socket; the file for the process ID; the client's command line.
socket=$1 pid_file=$2; shift 2
echo $$ >"$pid_file"
n=0
while [ -e "$socket.up" ] && [ ! -S "$socket" ] && [ $((n+=1)) -lt 600 ]; do sleep 0.05; done
