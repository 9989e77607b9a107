# shellcheck shell=sh
# Run a client with variables added to the text of its command, as quoted by `env_passing.quote_for_any_shell`.
# Arguments: the names of the variables; the text; the client's command line, to which the text is added.
. env_lib.sh
code() {
  rest=$value value=
  while :; do
    case $rest in
      *"$1"*) value=$value${rest%%"$1"*}$2 rest=${rest#*"$1"} ;;
      *) break ;;
    esac
  done
  value=$value$rest
}
names=$1 line=$2; shift 2
for name in $names; do
  look "$name" || continue
  code @ @40; code "'" @27; code \\ @5c; code ! @21; code '
' @0a
  line="$line '$name=$value'"
  drop "$name"
done
exec "$@" "$line"
