# shellcheck shell=sh
# Make one connection, and end it with its process group when standard input is closed, so that it ends with our process
# in any case. While the file $1.up exists and the socket $1 does not, the connection is being made.
#
# Without a line before that end, our process has ended without a close: then first run a command that ends what it has
# started on the host, but for five minutes at most.
#
# Arguments: the socket; the socket of a connection to wait for, or nothing; that command; ssh's command line.
socket=$1 before=$2 sweep=$3; shift 3
trap 'exit 143' TERM
exec 3<&0
# A signal that comes twice must not end rm.
end() { trap '' TERM; rm -rf "${socket%/*}"; kill 0; }
# If the connection breaks meanwhile, the sweep fails, and a signal comes from below.
sweep() { trap end TERM; { sleep 300; end; } & eval "$sweep"; }
# shellcheck disable=SC2034
{ read -r line <&3 || sweep; end; } </dev/null >/dev/null 2>&1 &
n=0
while [ -e "$before.up" ] && [ ! -S "$before" ] && [ $((n+=1)) -lt 400 ]; do sleep 0.05; done
"$@" </dev/null >/dev/null 2>"$socket.said" 3<&-
code=$?
kill "$!"
rm -f "$socket.up" "$socket"
exit "$code"
