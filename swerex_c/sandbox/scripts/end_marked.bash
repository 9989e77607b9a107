# End all processes with a mark, and their descendants. They are first stopped, until no more are found, and then
# killed, so that none can outrun this script by forking.
#
# Arguments: a mark, or the part of it before the dot; seconds that the script may take; seconds to wait for the first
# process (0 if missing).
#
# Prints two numbers: how many processes are left (0, or those that may not be killed), and how many have ended.
. process_lib.bash

declare -A known=() spared=() refused=()
ended=0 fresh=0
# Those above this script are needed until it has ended.
p=$BASHPID
while ((p > 0)) && stat_of "$p"; do
    spared[$p]=1 p=$parent
done
spared[$$]=1
last_pid() { # the number of the newest process or thread
    local load=
    { read -r load </proc/loadavg; } 2>/dev/null
    newest=${load##* }
    [[ $newest == +([0-9]) ]]
}
take() { # stops process $1 if it belongs to those that are to end: it starts no more, and its children have a parent
    local birth belongs= above
    [[ ${spared[$1]} ]] && return
    stat_of "$1" || return
    birth=$started
    [[ ${known[$1]} == "$birth" ]] && return
    if marked "$1"; then
        belongs=1
    elif [[ ${known[$parent]} ]]; then
        above=$parent
        stat_of "$above" && [[ ${known[$above]} == "$started" ]] && belongs=1
    fi
    [[ $belongs ]] || return
    if kill -STOP "$1" 2>/dev/null; then
        stat_of "$1" && [[ $started != "$birth" ]] && { kill -CONT "$1" 2>/dev/null; return; } # another by now
    fi
    known[$1]=$birth
    ((fresh += 1))
}
look() { # at all processes, and at those that come meanwhile: who forks and ends is never in a list
    local from p round
    fresh=0 newest=0
    last_pid; from=$newest
    for p in /proc/[1-9]*; do
        take "${p#/proc/}"
    done
    for ((round = 0; round < 1000; round++)); do
        last_pid && ((newest > from && newest < from + 10000)) || break
        for ((p = from + 1; p <= newest; p++)); do take "$p"; done
        from=$newest
        ((SECONDS < limit)) || break
    done
}
strike() { # kills what was found, and counts who is left of it
    local p
    left=0 busy=0
    for p in "${!known[@]}"; do
        if stat_of "$p" && [[ $started == "${known[$p]}" ]]; then
            ((left += 1))
            if kill -KILL "$p" 2>/dev/null; then ((busy += 1)); else refused[$p]=1; fi
        else
            [[ ${refused[$p]} ]] || ((ended += 1))
            unset "known[$p]" "refused[$p]"
        fi
    done
}
limit=$((SECONDS + $2)) await=$((SECONDS + ${3:-0}))
while :; do
    look
    while ((fresh > 0 && SECONDS < limit)); do look; done
    strike
    if ((busy == 0 && fresh == 0)); then
        ((ended + left == 0 && SECONDS < await)) || break
    fi
    if ((SECONDS >= limit)); then # there is no time for another look, but those that were just killed end
        pause 0.1
        strike
        break
    fi
    pause 0.01
done
echo "$left $ended"
