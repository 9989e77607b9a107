# Find the shell of the session whose mark is $mark. `$shell` is its process ID, or empty; `$leads` is 1 if it leads its
# terminal session, and `$replaced` if it is another bash in the place of ours. Sourced after process_lib.bash.

# Print the sandbox's clock in seconds, or `-` if it is unknown.
tell_clock() {
    local now=
    { read -r now _ </proc/uptime; } 2>/dev/null
    echo "${now:--}"
}
# Check whether process $1 is the shell of a session, or a subshell of it: `$ours` is 1; or an interactive bash, which may
# have taken its place (`exec bash`).
is_shell() {
    local -a words=()
    local word
    ours=
    { mapfile -d '' -t words <"/proc/$1/cmdline"; } 2>/dev/null
    if [[ ${words[*]} == *bash' --noprofile --norc --noediting -i' ]]; then # its first word may be an emulator
        ours=1
        return
    fi
    [[ ${words[0]##*/} == ?(-)bash* ]] || return 1
    for word in "${words[@]:1}"; do
        [[ $word == -[!c]* ]] || return 1
    done
}
fields() { started=$1 parent=$2 session=$3 ours=$4; }
shell= eldest= leads= replaced= terminal=
declare -A shells=()
for p in /proc/[1-9]*; do
    p=${p#/proc/}
    is_shell "$p" && marked "$p" && stat_of "$p" || continue
    if [[ $ours || ($session == "$p" && $terminal != 0) ]]; then shells[$p]="$started $parent $session $ours"; fi
done
for p in "${!shells[@]}"; do
    # shellcheck disable=SC2086
    fields ${shells[$p]}
    # Skip a subshell.
    [[ ${shells[$parent]} ]] && continue
    # shellcheck disable=SC2034 # for the caller
    if [[ ! $shell ]] || ((started < eldest)); then
        shell=$p eldest=$started leads=$((session == p)) replaced=$((!ours))
    fi
done
