# Set up the terminal and the environment, and become a program.
#
# Arguments: rows (0: no terminal), columns, TERM, whether the words are escaped for printf's %b (not empty), the number
# of the program's words; the words; the variables.
[ "$1" = 0 ] || { [ -z "$3" ] || export TERM="$3"; stty rows "$1" cols "$2" 2>/dev/null; }
swx_coded=$4 swx_n=$5; shift 5; swx_a=()
for swx_w; do
  [ -z "$swx_coded" ] || printf -v swx_w %b "$swx_w"
  # shellcheck disable=SC2163 # it is NAME=value
  if ((swx_n-- > 0)); then swx_a+=("$swx_w"); else export "$swx_w"; fi
done
exec "${swx_a[@]}"
