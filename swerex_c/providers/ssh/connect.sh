# shellcheck shell=sh
# Make one connection. While the file $1.up exists and the socket $1 does not, the connection is being made.
#
# Arguments: the socket; the socket of a connection to wait for, or nothing; ssh's command line.
socket=$1 before=$2; shift 2
n=0
while [ -e "$before.up" ] && [ ! -S "$before" ] && [ $((n+=1)) -lt 400 ]; do sleep 0.05; done
"$@" </dev/null >/dev/null 2>"$socket.said"
code=$?
rm -f "$socket.up" "$socket"
exit "$code"
