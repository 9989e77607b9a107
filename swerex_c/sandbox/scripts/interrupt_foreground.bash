# Send SIGINT to the process group in the foreground of a session's terminal, but never to the shell. A shell that is
# about to start a program would not survive SIGINT: it returns to its prompt, and then the program takes the terminal.
#
# Argument: the mark of the session. Prints the sandbox's clock, and reads the last moment to send a signal, in
# hundredths of a second of that clock; it is empty if the clock is unknown.
#
# Exit code 0: sent, or a stopped shell goes on; 1: the shell itself waits or computes; 3: the session does not exist
# here; 4: too late.
. process_lib.bash
. shell_lib.bash

tell_clock
read -r deadline _
[[ $shell ]] || exit 3
[[ $deadline ]] || exit 4
calm=0 young=0
for ((try = 0; try < 30; try++)); do
    stat_of "$shell" || exit 3
    if [[ $state == T ]]; then
        # A stopped shell would not notice an interrupt. What it starts from now on may be part of a question.
        kill -CONT "$shell" 2>/dev/null
        ((foreground > 1 && foreground != group)) || exit 0
    fi
    target=$foreground
    if ((target > 1 && target != group)); then
        if is_shell "$target" && [[ $ours ]] && ((++young < 8)); then
            # A subshell that is about to become a program would drop the signal.
            pause 0.002
        elif stat_of "$target" || ((++calm > 4)); then
            # A group whose first process has ended gets the signal only if it stays in the foreground.
            { read -r now _ </proc/uptime; } 2>/dev/null || exit 4
            ((${now/.} < deadline)) || exit 4
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
