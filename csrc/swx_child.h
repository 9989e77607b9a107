/* swx_child.h: starting a program, learning of its end, and ending it with everything it started.
 *
 * Start: in a new session, every signal back to its default and unblocked, so that a parent that ignores SIGPIPE or
 * blocks SIGINT does not hand that down; no descriptor but 0-2 is handed down.  It is clone (as vfork) and exec, as
 * posix_spawn is inside, with nothing but system calls between the two: fork is never used, because the parent has threads.
 * posix_spawn itself cannot set a limit (next paragraph), and set from outside after it, the mark comes too late on a
 * busy machine: one program in ten had forked by then.
 *
 * The whole tree: a process that calls setsid, forks twice or clears its environment is no longer tied to its
 * starter by group, session, parent or variable.  What it cannot shed by accident is its resource limits, which
 * fork and exec hand down.  So each child gets a mark in a limit that has no effect at that size: a random number
 * of microseconds near 2^61 as RLIMIT_RTTIME (the CPU time a real-time process may burn without a system call:
 * 2^60 us are 36,000 years).  prlimit(2) reads it back from any process of the same user for 0.3 us, so that a
 * look at every process of the machine costs less than a millisecond per thousand.  The same number stands in
 * RLIMIT_LOCKS, which no kernel since 2.6 heeds, for those that set the first one themselves (`ulimit -R`).
 * These are the hard limits.  The soft ones have the mark of the program, near 2^59, by which swx_supervisor.h finds all that
 * its children left.  Where a program runs in another's session, RLIMIT_LOCKS keeps the marks of the outermost.
 *
 * What has set both, or gets new limits with a login (su, sudo), is still found as a child of what has the mark, or as a
 * member of the session while its leader was not reaped.  What escapes: a process that has set both limits, *and* is in
 * another session, *and* has no living ancestor that is found; and processes that may not be signalled, of other users.
 *
 * The end: an application that ignores SIGCHLD, or waits for whatever child ends, takes the status away.  (An exit signal
 * other than SIGCHLD would hide the child from both, but exec puts SIGCHLD back.)  Since Linux 6.15 whoever holds a pidfd is
 * told the status nonetheless; the pidfd is there from the start on, made by clone itself.  On an older kernel it is lost,
 * and no number stands for it.
 *
 * Not thread-safe; the owner locks.
 */
#ifndef SWX_CHILD_H
#define SWX_CHILD_H

#include <sys/types.h>

#include "swx.h"

typedef struct {
    pid_t pid;     /* 0 before the start */
    int pidfd;     /* readable when the process ended; -1 where the kernel has none (before Linux 5.3) */
    uint64_t mark; /* 0 when no limit could be set: then only its session and its descendants can be found */
    bool reaped;
    bool tree_ended; /* swx_child_end_trees has done what it can */
    int wait_status; /* as from waitpid(2), or SWX_STATUS_LOST; valid when reaped */
} swx_child;

/* Someone else has reaped the child, and the kernel does not tell how it ended.  To WIFEXITED and WIFSIGNALED it is neither. */
enum { SWX_STATUS_LOST = -1 };

typedef struct {
    const char *file;         /* searched in PATH of the caller when it has no slash */
    char *const *argv;        /* NULL-terminated, borrowed */
    char *const *environment; /* NULL-terminated, borrowed; NULL: the caller's own */
    const char *directory;    /* where it starts; NULL: the caller's */
    const char *terminal;     /* path of a pty slave that becomes fds 0-2 and the controlling terminal, or NULL */
    int input, output, error; /* without terminal: fds for 0-2 (borrowed) */
    uint64_t program_mark;    /* of swx_supervisor_start, which ends the program when we are gone; 0: nothing does */
} swx_spawn;

/* clone(2) of a child that runs `function` on `stack` in our memory, while we wait until it ends or becomes a program.
 * Only system calls may be made in it.  `pidfd` is for CLONE_PIDFD in `flags`.  -1: errno says why. */
pid_t swx_child_clone(int (*function)(void *), void *argument, char *stack, size_t size, int flags, int *pidfd);

/* Starts the program.  SWX_ESYS names the call that failed in the child (execve, chdir, open(terminal), ...) or in the
 * parent (clone), with its errno.  SWX_ENOMEM. */
swx_status swx_child_start(swx_child *child, const swx_spawn *spawn, swx_error *err);

/* Whether it has ended (then reaped and wait_status are set).  Never blocks; waits for this child alone.  Where the
 * application has reaped it or ignores SIGCHLD, the kernel is asked for the status by the pidfd. */
bool swx_child_ended(swx_child *child);

/* Exit status 0-255, or 128 + signal number as a shell would say; -1: the status is lost.  Valid when reaped. */
int swx_child_code(const swx_child *child);

/* Signals the process group that the child leads.  Nothing happens when it was reaped. */
void swx_child_signal(const swx_child *child, int signal_number);

/* A mark for all children of a program together.  0: no random number was to be had. */
uint64_t swx_child_draw_program_mark(void);

/* A handle of a process, close-on-exec; -1 with errno set. */
int swx_child_open_pidfd(pid_t pid);

/* Closes all descriptors from that number on.  Nothing but system calls: for use between clone and exec. */
void swx_child_close_from(int lowest);

/* Whether a limit of that value, of that resource, may be a mark, or be there so that one can be set. */
bool swx_child_may_mark(int resource, uint64_t value);

/* Looks at all processes and kills (SIGKILL) everything that carries one of the marks, and what descends from it.  Each is
 * stopped before it is killed, until its children are known.  Returns how many living processes were found, killed ones
 * that are not gone yet included: ask again until it is 0, which is only said after two looks.  1 also when no look was
 * possible now, for want of descriptors or memory; -1 when there is no /proc.  Numbers that cannot be marks find nothing.
 * A look takes about 30 us of CPU for each process that is found, and 20 ms at most of waiting for some to stop. */
long swx_child_kill_marked(const uint64_t *marks, size_t count);

/* Which of the marks a living process carries: living[i] for marks[i].  False: no look was possible now, nothing is set. */
bool swx_child_living(const uint64_t *marks, size_t count, bool *living);

/* One step of ending the child with everything it started: kills what lives of it.  True when nothing does any more and
 * the child was reaped; else call again a moment later. */
bool swx_child_kill_tree(swx_child *child);

enum { SWX_CHILDREN_AT_ONCE = 64 };

/* All of its steps, for up to SWX_CHILDREN_AT_ONCE children at once, which takes hardly longer than for one: what a look takes is the
 * machine's other processes.  Ends when for a second no fewer live than before; then the children alone are killed and reaped, which
 * may take another second. */
void swx_child_end_trees(swx_child *const *children, size_t count);

/* Kills what descends from the child and has shed all other signs of that.  For before its parents are told to end. */
void swx_child_kill_strays(const swx_child *child);

/* Kills, of the child's processes in that group (0: in any), those of which a thread is blocked in a read of the terminal,
 * and waits (100 ms at most) until each is gone.  For those that have lost the foreground: a read that began before does
 * not notice that, and would take the next input from the shell.  One that was just woken is on a processor, and is not
 * found until it sleeps again: see swx_kernel_turn_of. */
void swx_child_kill_readers(const swx_child *child, pid_t group, const char *terminal);

/* Whether the process itself sleeps in a read of that terminal.  False too where the kernel does not tell. */
bool swx_child_reads(const swx_child *child, const char *terminal);

/* Whether a process of the child's, or itself, does. */
bool swx_child_has_reader(const swx_child *child, const char *terminal);

/* Kills what the child, a shell, waits for: of its session, whatever is in the child's own group, as a command
 * substitution is, and what began after `since` (CLOCK_MONOTONIC, nanoseconds).  The kernel tells that in ticks of
 * 10 ms: of those that began in the same tick, the ones with a number above `last` count as later. */
void swx_child_kill_begun(const swx_child *child, int64_t since, int64_t last);

/* Releases the pidfd.  A child that was not reaped stays a zombie until it is: call swx_child_ended first. */
void swx_child_close(swx_child *child);

#endif
