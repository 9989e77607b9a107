# Describe the read in which the shell of a session waits.
#
# Arguments: the mark of the session. Prints process ID, system call, descriptor, buffer and size: they are identical
# whenever the shell waits at its prompt, and different for every other wait. If the sandbox does not reveal that,
# prints the shell's process ID alone, if the shell sleeps and is the only process in the foreground of its terminal: it
# may wait at its prompt, or for other input that it reads by itself. Prints its process ID and `replaced` if it is
# another bash, which has taken the place of ours, and edits a line.
#
# Exit code 1: the shell does not wait for its terminal.
. process_lib.bash
. shell_lib.bash

[[ $shell ]] || exit 1
# Check whether the shell may wait for its terminal, and no other process of its group could read it.
alone() {
    local wait= p
    { read -r -d '' wait <"/proc/$shell/wchan"; } 2>/dev/null
    [[ ! $wait || $wait == @(0|wait_woken|n_tty_read|poll_schedule_timeout*) ]] || return 1
    for p in /proc/[1-9]*; do
        p=${p#/proc/}
        [[ $p == "$shell" ]] || ! stat_of "$p" || [[ $group != "$shell" ]] || return 1
    done
}
for ((try = 0; try < 20; try++)); do
    call=
    stat_of "$shell" || exit 1
    if [[ $state == S && $foreground == "$group" ]]; then
        if ((replaced)) && [[ $(stty -a <"/proc/$shell/fd/0" 2>/dev/null) == *' -icanon'* ]] && alone; then
            echo "$shell replaced"
            exit 0
        fi
        { read -r call <"/proc/$shell/syscall"; } 2>/dev/null
        if [[ ! $call ]]; then
            pause 0.01
            alone && stat_of "$shell" && [[ $state == S && $foreground == "$group" ]] || exit 1
            echo "$shell"
            exit 0
        fi
        # shellcheck disable=SC2086
        set -- $call
        # These are the numbers of `read` on most machines.
        if [[ $1 == @(0|3|63) && $2 == @(0x0|0xff) ]]; then
            echo "$shell $1 $2 $3 $4"
            exit 0
        fi
    fi
    pause 0.005
done
exit 1
