# shellcheck shell=sh
# End the connections when standard input is closed, so that they end with our process in any case.
#
# Arguments: the directory of the sockets; a command line of ssh.
directory=$1; shift
# shellcheck disable=SC2034
read -r line
for up in "$directory"/*.up; do
  [ ! -S "${up%.up}" ] || "$@" -O exit -o "ControlPath=${up%.up}" -- place
done >/dev/null 2>&1
rm -rf "$directory"
