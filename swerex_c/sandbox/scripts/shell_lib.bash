# Find the shell of the session whose mark is $mark. `$shell` is its process ID, or empty; `$leads` is 1 if it leads its
# terminal session. Sourced after process_lib.bash.

# Print the sandbox's clock in seconds, or `-` if it is unknown.
tell_clock() {
    local now=
    { read -r now _ </proc/uptime; } 2>/dev/null
    echo "${now:--}"
}
# Check whether process $1 is the shell of a session, or a subshell of it.
is_shell() {
    local -a words=()
    { mapfile -d '' -t words <"/proc/$1/cmdline"; } 2>/dev/null
    [[ ${words[*]} == *bash' --noprofile --norc --noediting -i' ]]
}
fields() { started=$1 parent=$2 session=$3; }
shell= eldest= leads=
declare -A shells=()
for p in /proc/[1-9]*; do
    p=${p#/proc/}
    if is_shell "$p" && marked "$p" && stat_of "$p"; then shells[$p]="$started $parent $session"; fi
done
for p in "${!shells[@]}"; do
    # shellcheck disable=SC2086
    fields ${shells[$p]}
    # Skip a subshell.
    [[ ${shells[$parent]} ]] && continue
    # shellcheck disable=SC2034 # for the caller
    if [[ ! $shell ]] || ((started < eldest)); then
        shell=$p eldest=$started leads=$((session == p))
    fi
done
