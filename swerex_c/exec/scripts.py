"""What is said to a bash of the place, to find and to end the programs that were started there.

Every program that is started in a place has `MARK` in its environment, and so has what it starts: `RUNTIME.PART`, two
numbers of 24 hexadecimal digits. The first is that of the runtime, the second that of a session or of a single command.
By that the whole tree is found, wherever it went, though nothing else ties it together in a container: not its group,
for a shell gives each job one of its own, not its session (setsid), not its parents (double forks), and the client that
started it ends alone. Environments are lost too, by `env -i`, `su`, and programs that write their title over them: so
`BRAND` writes the same numbers into resource limits that no kernel heeds, and what descends from a process that was
found belongs to it as well. What escapes has cleared its environment, and got new limits, and has lost its parents.

The scripts need bash 4.4 and /proc, and no other program. Nothing without one of these signs gets a signal.
"""

from __future__ import annotations

import secrets

__all__ = [
    "BRAND",
    "END_MARKED",
    "END_SECONDS",
    "FIND_SHELL",
    "INTERRUPT_FOREGROUND",
    "KILL_FOREGROUND",
    "MARK",
    "SHELL_READS",
    "draw_mark",
]

MARK = "SWEREX_C_MARK"
"""The variable in the environment of every program of ours in the place."""

END_SECONDS = 5
"""How long END_MARKED tries. What does not end by then waits for a device in the kernel."""


def draw_mark(runtime: str = "") -> str:
    """A new mark of a runtime, or, of a runtime whose mark is given, that of a part."""
    number = secrets.token_hex(12)
    return f"{runtime}.{number}" if runtime else number


# Linux heeds neither limit: RLIMIT_LOCKS since 2.4.25, RLIMIT_RSS (which bash counts in KiB) since 2.4.30. Nobody takes
# a number near 2^50 for one that means something. Where a lower one is in force this fails, and no harm is done.
BRAND = """\
if [[ ${SWEREX_C_MARK-} =~ ^[0-9a-f]{24}\\.[0-9a-f]{24}$ ]]; then {
builtin ulimit -x $((0x4000000000000 + 0x${SWEREX_C_MARK:0:12}))
builtin ulimit -m $((0x4000000000000 + 0x${SWEREX_C_MARK:25:12}))
} 2>/dev/null; fi
"""
"""For the first bash of everything that is started: has it and its children carry the mark in their limits too. Leaves
`BASH_REMATCH` and `$?` changed."""

_COMMON = r"""
stat_of() { # state, parent and so on of process $1. False: it has ended
    local text=
    { IFS= read -r -d '' text <"/proc/$1/stat"; } 2>/dev/null
    [[ $text == *') '* ]] || return 1
    set -- ${text##*) } # the name before it may hold anything
    state=$1 parent=$2 group=$3 session=$4 foreground=$6 threads=${18} started=${20}
    [[ $state != [ZX] ]] || ((threads > 1)) # the first thread may have ended before the others
}
marked() { # whether process $1 carries the mark
    local -a variables=()
    local variable limits=
    { mapfile -d '' -t variables <"/proc/$1/environ"; } 2>/dev/null
    for variable in "${variables[@]}"; do
        case $variable in
        "SWEREX_C_MARK=$mark".*) return 0 ;;
        "SWEREX_C_MARK=${mark%%.*}") # no part: a client, which would not see its end if somebody has stopped it
            [[ ${state-} != T ]] || kill -CONT "$1" 2>/dev/null
            return 1
            ;;
        "SWEREX_C_MARK=$mark") return 0 ;;
        esac
    done
    [[ $sign ]] || return 1
    { IFS= read -r -d '' limits <"/proc/$1/limits"; } 2>/dev/null
    [[ $limits =~ $sign ]]
}
pause() { # a moment: there is no sleep among the builtins
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
"""

END_MARKED = (
    _COMMON
    + r"""
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
limit=$((SECONDS + $2)) await=$((SECONDS + ${3:-0}))
while :; do
    look
    while ((fresh > 0 && SECONDS < limit)); do look; done
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
    if ((busy == 0 && fresh == 0)); then
        ((ended + left == 0 && SECONDS < await)) || break
    fi
    ((SECONDS < limit)) || break
    pause 0.01
done
echo "$left $ended"
"""
)
"""Words: a mark, or the part of it before the dot; seconds that it may take; seconds to wait until there is something
to end (0 if missing). Ends all that carries it, and what descends from that. First everything is stopped, until no
more is found, then it is killed, so that nothing can outrun it by forking.

Prints two numbers: how many processes are left (0, or those that may not be killed), and how many have ended."""

_FIND_SHELL = r"""
is_shell() { # whether process $1 is the shell of a session, or a copy that it made of itself
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
    fields ${shells[$p]}
    [[ ${shells[$parent]} ]] && continue # a copy that another one made of itself
    if [[ ! $shell ]] || ((started < eldest)); then
        shell=$p eldest=$started leads=$((session == p))
    fi
done
"""

FIND_SHELL = (
    _COMMON
    + _FIND_SHELL
    + r"""
born= now=
stat_of 1 && born=$started
{ read -r now _ </proc/uptime; } 2>/dev/null
echo "${born:--} ${now:--}"
[[ $shell ]] && ((leads))
"""
)
"""Words: the mark of a session, or any other. Prints what is another number when the place was started anew, and how
many seconds the place's clock shows (`-` for what cannot be told). Exit code 0: the session's shell is there, at the
head of its terminal."""

SHELL_READS = (
    _COMMON
    + _FIND_SHELL
    + r"""
[[ $shell ]] || exit 1
for ((look = 0; look < 20; look++)); do
    call=
    stat_of "$shell" || exit 1
    if [[ $state == S && $foreground == "$group" ]]; then
        { read -r call <"/proc/$shell/syscall"; } 2>/dev/null
        [[ $call ]] || exit 1
        set -- $call
        if [[ $1 == @(0|3|63) && $2 == @(0x0|0xff) ]]; then # the numbers of read, on most machines
            echo "$shell $1 $2 $3 $4"
            exit 0
        fi
    fi
    pause 0.005
done
exit 1
"""
)
"""Words: the mark of a session. Prints which read its shell waits in (its number, the system call, the descriptor, the
buffer and the size): it is the same one whenever the shell waits at its prompt, and no other wait is.

Exit code 1: it waits in none, or the place does not tell."""

INTERRUPT_FOREGROUND = (
    _COMMON
    + _FIND_SHELL
    + r"""
[[ $shell ]] || exit 3
calm=0
for ((look = 0; look < 30; look++)); do
    stat_of "$shell" || exit 3
    target=$foreground
    if ((target > 1 && target != group)); then
        if stat_of "$target" || ((++calm > 4)); then # where its first process has ended no signal might change anything
            { read -r now _ </proc/uptime; } 2>/dev/null || exit 4
            ((${now/.} < $2)) || exit 4
            kill -INT -- "-$target" 2>/dev/null && exit 0
        fi
    elif [[ $state == S ]]; then
        if ((++calm > 3)); then exit 1; fi
        pause 0.002
    else
        pause 0.001
    fi
done
exit 1
"""
)
"""Words: the mark of a session; until when, in hundredths of a second of the place's clock. Sends SIGINT to the process
group in the foreground of the session's terminal. A shell that is about to start a program would not survive it (it
goes back to its prompt, then the program takes the terminal away from it): so it never gets one here.

Exit code 0: sent; 1: it is the shell itself that waits or computes; 3: there is no such session here; 4: too late."""

KILL_FOREGROUND = (
    _COMMON
    + _FIND_SHELL
    + r"""
[[ $shell ]] || exit 3
for ((look = 0; look < 10; look++)); do
    stat_of "$shell" || exit 3
    if ((foreground > 1 && foreground != group)); then
        kill -KILL -- "-$foreground" 2>/dev/null && exit 0
    fi
    pause 0.002
done
exit 1
"""
)
"""Words: the mark of a session. Kills the process group in the foreground of its terminal, unless the shell itself is
that.

Exit code 0: killed; 1: there is none, or it may not be killed; 3: there is no such session here."""
