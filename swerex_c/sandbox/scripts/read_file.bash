# Arguments: a path. Prints the file.
. file_lib.bash
[[ ! -d $1 ]] || refuse EISDIR ''
note_waiting "$1"
exec 3<"$1" || exit 91
if have cat; then exec cat <&3; fi
copy <&3
