# shellcheck shell=sh
# Make one connection, and end it with its process group when standard input is closed, so that it ends with our process
# in any case. While the file $1.up exists and the socket $1 does not, the connection is being made.
#
# Arguments: the socket; the socket of a connection to wait for, or nothing; ssh's command line.
socket=$1 before=$2; shift 2
trap 'exit 143' TERM
exec 3<&0
# shellcheck disable=SC2034
{ read -r line <&3; rm -rf "${socket%/*}"; kill 0; } &
n=0
while [ -e "$before.up" ] && [ ! -S "$before" ] && [ $((n+=1)) -lt 400 ]; do sleep 0.05; done
"$@" </dev/null >/dev/null 2>"$socket.said" 3<&-
code=$?
kill "$!"
rm -f "$socket.up" "$socket"
exit "$code"
