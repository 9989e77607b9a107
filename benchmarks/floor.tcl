# floor.tcl: Tcl's Expect as a careful user drives it, with the fence of floor.c as the prompt of a bash.
#
#   expect -f floor.tcl command N TEXT [REST]   one session; N times TEXT; every latency. REST is as for floor.c
#   expect -f floor.tcl output FILE ROUNDS      one session; `cat FILE`, read to its end and counted
#   expect -f floor.tcl create N                spawn to the first prompt
#
# Prints one JSON object. Times are microseconds, read beside the calls.

log_user 0
set timeout -1
set stty_init "-echo -opost"
set env(TERM) dumb
set env(PS1) "\036F\$?;\037"
set env(PS2) ""
unset -nocomplain env(PROMPT_COMMAND)
set fence {\u001eF([0-9]+);\u001f}

proc start {} {
    global spawn_id fence
    spawn -noecho bash --noprofile --norc --noediting -i
    expect -re $fence
}

proc answer {count wrong samples more} {
    puts "{\"count\": $count, \"wrong\": $wrong, \"samples_us\": \[[join $samples ", "]\]$more}"
}

proc command {count text rest} {
    global spawn_id fence expect_out
    start
    for {set i 0} {$i < 20} {incr i} {
        send -- "$text\n"
        expect -re $fence
    }
    set samples {}
    set wrong 0
    for {set i 0} {$i < $count} {incr i} {
        set until [expr {[clock microseconds] + $rest}]
        while {[clock microseconds] < $until} {}
        set began [clock microseconds]
        send -- "$text\n"
        expect -re $fence
        lappend samples [expr {[clock microseconds] - $began}]
        if {$expect_out(1,string) ne "0" || $expect_out(buffer) ne $expect_out(0,string)} {incr wrong}
    }
    answer $count $wrong $samples ""
}

# What is before the fence is counted piece by piece: Expect's own buffer would grow with the output, and its time
# with the square of it.
proc output {path count} {
    global spawn_id fence expect_out
    match_max 65536
    start
    set size [file size $path]
    set samples {}
    set wrong 0
    for {set i 0} {$i < $count} {incr i} {
        set got 0
        set began [clock microseconds]
        send -- "cat $path\n"
        expect {
            -re {^[^\u001e]+} {
                incr got [string length $expect_out(0,string)]
                exp_continue
            }
            -re $fence {}
        }
        lappend samples [expr {[clock microseconds] - $began}]
        if {$got != $size || $expect_out(1,string) ne "0"} {incr wrong}
    }
    answer $count $wrong $samples ", \"bytes\": $size"
}

proc create {count} {
    global spawn_id
    set samples {}
    for {set i 0} {$i < $count} {incr i} {
        set began [clock microseconds]
        start
        lappend samples [expr {[clock microseconds] - $began}]
        exec kill -9 [exp_pid]
        close
        wait
    }
    answer $count 0 $samples ""
}

switch [lindex $argv 0] {
    command {command [lindex $argv 1] [lindex $argv 2] [expr {[llength $argv] > 3 ? [lindex $argv 3] : 0}]}
    output {output [lindex $argv 1] [lindex $argv 2]}
    create {create [lindex $argv 1]}
    default {puts stderr "floor.tcl: what to do? See its beginning."; exit 2}
}
