# End the process group in the foreground of a session's terminal, or, if that is the shell itself, the processes that
# it waits for.
#
# Arguments: the mark of the session; the output of shell_reads.bash when the shell is at its prompt, or nothing. Prints
# the sandbox's clock, and reads when the command began, at the earliest and at the latest, in hundredths of a second of
# that clock; both are empty if the clock is unknown.
#
# Exit code 0: killed; 1: nothing to kill, or not permitted; 3: the session does not exist here; 5: the shell itself
# reads, and not at its prompt: end of input would end that read; 6: it is at its prompt.
. process_lib.bash
. shell_lib.bash

tell_clock
read -r since until
prompt=$2 calm=0
[[ $shell ]] || exit 3
# Kill what the shell waits for: the processes of its session that are in a group that began with the command, or did so
# themselves in its own group, where the reader of `exec > >(tee log)` is too. Of what may have begun before, as a job in
# the background, only the last is killed, and only if nothing else was.
kill_begun() {
    local p judged target killed=1 own=$group newest= last='0 0'
    for p in /proc/[1-9]*; do
        p=${p#/proc/}
        [[ $p != "$shell" ]] && stat_of "$p" && [[ $session == "$shell" ]] || continue
        if [[ $group == "$own" ]]; then
            judged=$p target=$p
        else # by its leader, or, if nothing is left of that, by the process
            judged=$group target=-$group
            stat_of "$judged"
        fi
        if { [[ $until ]] && ((started > until)); } || [[ ! $since && $target == "$p" ]]; then
            kill -KILL "$p" 2>/dev/null && killed=0
        elif [[ $since ]] && ((started >= since)) \
            && ((started > ${last% *} || (started == ${last% *} && judged > ${last#* }))); then
            newest=$target last="$started $judged"
        fi
    done
    if ((killed)) && [[ $newest ]]; then kill -KILL -- "$newest" 2>/dev/null && killed=0; fi
    exit "$killed"
}
# Kill group $1. A single program is hung up first, so that it can let go of the terminal and of what it edits; of
# several, some could print on when the shell is at its prompt.
kill_group() {
    local p try
    for p in /proc/[1-9]*; do
        p=${p#/proc/}
        if [[ $p != "$1" ]] && stat_of "$p" && [[ $group == "$1" ]]; then
            kill -KILL -- "-$1"
            return
        fi
    done
    kill -HUP -- "-$1" || return 1
    kill -CONT -- "-$1" # unless it is gone already
    for ((try = 0; try < 20; try++)); do
        pause 0.01
        kill -0 -- "-$1" || return 0
    done
    kill -KILL -- "-$1"
} 2>/dev/null
for ((try = 0; try < 10; try++)); do
    stat_of "$shell" || exit 3
    if ((foreground > 1 && foreground != group)); then
        kill_group "$foreground" && exit 0
    elif [[ $state == S ]] && ((++calm > 3)); then
        call=
        { read -r call <"/proc/$shell/syscall"; } 2>/dev/null
        # shellcheck disable=SC2086
        set -- $call
        [[ "$shell $1 $2 $3 $4" != "$prompt" ]] || exit 6
        fd=-1
        [[ $1 != @(0|3|63) ]] || fd=$(($2))
        # pselect6 with a timeout: `read -t`, and `read` where TMOUT is set.
        [[ $1 != @(270|72) || $6 == 0x0 ]] || fd=$(($2 - 1))
        [[ -c /proc/$shell/fd/$fd ]] || kill_begun
        [[ $prompt == *' '* ]] && exit 5
        exit 1
    fi
    pause 0.002
done
exit 1
