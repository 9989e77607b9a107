# End all processes with a mark, and their descendants. They are stopped until no more are found, and then killed, so
# that none of them can outrun this script by forking.
#
# Arguments: a mark, or the part of it before the dot; seconds to wait for the first process (0 if missing).
#
# Prints dots while it makes progress, and a line with two numbers at the end: the processes that are left (those that
# may not be killed, or did not end), and those that ended.
. process_lib.bash

# Maximum seconds; a process that survives this long waits for a device in the kernel. On a slow machine a scan alone
# may take longer, so that there are at least a few of them.
limit=$((SECONDS + 5)) scans=3
await=$((SECONDS + ${2:-0}))
# Finish even if nobody reads the output: the processes that were found are stopped.
trap '' PIPE

# Start times by process ID.
declare -A found=() spared=() refused=()
ended=0 fresh=0 steps=0
# A script of ours ends by itself when its programs are killed, and removes its files. One that waits in its own shell,
# such as for a named pipe, is killed a second later, for which two more scans are made even if the time is over.
patient=1 scripts=0 grace=$((SECONDS + 1))
# Spare this script and its ancestors, which have to report the result.
p=$BASHPID
while ((p > 0)) && stat_of "$p"; do
    spared[$p]=1 p=$parent
done
spared[$$]=1
# Set $newest to the number of the newest process or thread.
last_pid() {
    local load=
    { read -r load </proc/loadavg; } 2>/dev/null
    newest=${load##* }
    [[ $newest == +([0-9]) ]]
}
progress() { ((++steps % 100)) || echo -n . 2>/dev/null; }
overdue() { ((scans <= 0 && SECONDS >= limit)); }
# Stop process $1 if it is to be ended. A stopped process starts no other one, and stays the parent of its children.
stop_marked() {
    local birth belongs= above
    progress
    [[ ${spared[$1]} ]] && return
    stat_of "$1" || return
    birth=$started
    [[ ${found[$1]} == "$birth" ]] && return
    if marked "$1"; then
        belongs=1
    elif [[ ${found[$parent]} ]]; then
        above=$parent
        stat_of "$above" && [[ ${found[$above]} == "$started" ]] && belongs=1
    fi
    [[ $belongs ]] || return
    if kill -STOP "$1" 2>/dev/null; then
        # If another process has got the number meanwhile, continue it.
        stat_of "$1" && [[ $started != "$birth" ]] && { kill -CONT "$1" 2>/dev/null; return; }
    fi
    found[$1]=$birth
    ((fresh += 1))
}
# Look at all processes, and at the numbers that are given out meanwhile: a chain of processes that fork and exit is in
# no list of /proc.
scan() {
    local from p round
    fresh=0 newest=0 scripts=0
    ((scans -= 1))
    last_pid; from=$newest
    for p in /proc/[1-9]*; do
        stop_marked "${p#/proc/}"
    done
    for ((round = 0; round < 1000; round++)); do
        last_pid && ((newest > from && newest < from + 10000)) || break
        for ((p = from + 1; p <= newest; p++)); do stop_marked "$p"; done
        from=$newest
        ((SECONDS < limit)) || break
    done
}
# Kill the processes that were found, and count those that still exist.
kill_found() {
    local p
    left=0 killed=0
    for p in "${!found[@]}"; do
        progress
        if stat_of "$p" && [[ $started == "${found[$p]}" ]]; then
            ((left += 1))
            if kill -KILL "$p" 2>/dev/null; then ((killed += 1)); else refused[$p]=1; fi
        else
            [[ ${refused[$p]} ]] || ((ended += 1))
            unset "found[$p]" "refused[$p]"
        fi
    done
}
while :; do
    scan
    while ((fresh > 0)) && ! overdue; do scan; done
    kill_found
    if ((killed + fresh + scripts == 0)); then
        ((ended + left == 0 && SECONDS < await)) || break
    fi
    if [[ $patient ]] && ((scripts > 0)) && { ((killed + fresh == 0 && SECONDS > grace)) || overdue; }; then
        patient= scans=2
    elif overdue; then
        # Without another scan, leave time to end for the processes that were just killed.
        pause 0.1
        kill_found
        break
    fi
    pause 0.01
done
echo $'\n'"$left $ended"
