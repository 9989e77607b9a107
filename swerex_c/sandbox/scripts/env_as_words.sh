# shellcheck shell=sh
# Run a client with variables added to its arguments. Arguments: the names of the variables; the client's command line.
. env_lib.sh
names=$1; shift
for name in $names; do look "$name" && set -- "$@" "$name=$value"; drop "$name"; done
exec "$@"
