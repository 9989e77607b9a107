# Functions that find processes by a mark, which is $1: the mark of a session or of a single command, or the part before
# the dot, which stands for the whole runtime.
# shellcheck disable=SC2034,SC2086 # its variables are for the caller, and have no blanks

# Read the state of process $1 into variables. Fails if it has ended.
stat_of() {
    local text=
    { IFS= read -r -d '' text <"/proc/$1/stat"; } 2>/dev/null
    [[ $text == *') '* ]] || return 1
    # The name before the last parenthesis may contain anything.
    set -- ${text##*) }
    state=$1 parent=$2 group=$3 session=$4 terminal=$5 foreground=$6 threads=${18} started=${20}
    # A zombie with more threads has only lost its first one.
    [[ $state != [ZX] ]] || ((threads > 1))
}
# Check whether process $1 has the mark in its environment or its limits. If $patient is set, a subshell of a loader, in
# which a script runs, does not count, but is added to $scripts.
marked() {
    local -a variables=()
    local variable limits= loader=
    { mapfile -d '' -t variables <"/proc/$1/environ"; } 2>/dev/null
    for variable in "${variables[@]}"; do
        case $variable in
        "SWEREX_C_MARK=$mark".*) return 0 ;;
        "SWEREX_C_MARK=${mark%%.*}") loader=1 ;;
        "SWEREX_C_MARK=$mark") return 0 ;;
        esac
    done
    if [[ $sign ]]; then
        { IFS= read -r -d '' limits <"/proc/$1/limits"; } 2>/dev/null
        if [[ $limits =~ $sign ]]; then
            [[ $loader && ${patient-} ]] || return 0
            ((scripts += 1))
        fi
    fi
    # Spare a loader, and continue it if a script has stopped it, or it would not notice its client's end.
    [[ ! $loader || ${state-} != T ]] || kill -CONT "$1" 2>/dev/null
    return 1
}
# Sleep $1 seconds: bash has no builtin for it, so it reads with a timeout from a pipe that never has data.
pause() {
    if [[ ! $quiet ]]; then { exec {quiet}<> <(:); } 2>/dev/null || quiet=none; fi
    [[ $quiet == none ]] || read -r -t "$1" -u "$quiet"
}
mark=$1 sign= quiet=
if [[ $mark =~ ^[0-9a-f]{24}$ ]]; then
    sign="Max file locks +[a-z0-9]+ +$((0x4000000000000 + 0x${mark:0:12})) "
elif [[ $mark =~ ^[0-9a-f]{24}\.[0-9a-f]{24}$ ]]; then
    sign="Max resident set +[a-z0-9]+ +$(((0x4000000000000 + 0x${mark:25:12}) * 1024)) "
fi
[[ $mark ]] || exit 2
