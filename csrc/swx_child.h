/* swx_child.h: starting a program, and learning of its end.  swx_tree.h ends it with everything it started.
 *
 * Start: in a new session, with every signal back to its default and unblocked, and no descriptor but 0-2.  It is clone
 * (as vfork) and exec with nothing but system calls between the two, because the parent has threads.  posix_spawn
 * cannot set a limit (next paragraph), and a mark that is set from outside comes too late: the program may have forked.
 *
 * The whole tree: each child gets a mark in a limit that has no effect at that size (README.md says why): a random
 * number of microseconds near 2^61 as RLIMIT_RTTIME (the CPU time a real-time process may burn without a system call),
 * which prlimit(2) reads back from any process of the same user.  The same number stands in RLIMIT_LOCKS, which no
 * kernel since 2.6 heeds, for those that set the first one themselves (`ulimit -R`).  These are the hard limits.  The
 * soft ones have the mark of the program, near 2^59, by which swx_supervisor.h finds all that its children left.  Where
 * a program runs in another's session, RLIMIT_LOCKS keeps the marks of the outermost.
 *
 * What has set both, or gets new limits with a login (su, sudo), is still found as a child of what has the mark, or as
 * a member of the session while its leader was not reaped.  What escapes: a process that has set both limits, *and* is
 * in another session, *and* has no living ancestor that is found; and processes that may not be signalled, of other
 * users.
 *
 * The end: an application that ignores SIGCHLD, or waits for whatever child ends, takes the status away.  Since Linux
 * 6.15 the holder of a pidfd is told the status nonetheless.  On an older kernel it is lost, and no number stands for
 * it.
 *
 * Not thread-safe; the owner locks.
 */
#ifndef SWX_CHILD_H
#define SWX_CHILD_H

#include <sys/resource.h>
#include <sys/types.h>

#include "swx.h"

typedef struct {
    pid_t pid;     /* 0 before the start */
    int pidfd;     /* readable when the process ended; -1 where the kernel has none (before Linux 5.3) */
    uint64_t mark; /* 0 when no limit could be set: then only its session and its descendants can be found */
    bool reaped;
    bool tree_ended; /* swx_tree_end_all has done what it can */
    int wait_status; /* as from waitpid(2), or SWX_STATUS_LOST; valid when reaped */
} swx_child;

/* The limits in which a mark is kept, and the numbers that can be one.  A program's mark is a soft limit, which is at
 * most the hard one: up to the lowest number that is a child's. */
static const int SWX_MARK_LIMITS[] = { RLIMIT_RTTIME, RLIMIT_LOCKS };
#define SWX_LOWEST_PROGRAM_MARK (UINT64_C(1) << 59)
#define SWX_LOWEST_MARK (UINT64_C(1) << 60)
#define SWX_MARKS_END (UINT64_C(1) << 62)

/* The wait status of a child that the application has reaped, on a kernel that does not tell it to others.  WIFEXITED
 * and WIFSIGNALED are false for it. */
enum { SWX_STATUS_LOST = -1 };

typedef struct {
    const char *file;         /* path of the program */
    char *const *argv;        /* NULL-terminated, borrowed */
    char *const *environment; /* NULL-terminated, borrowed; NULL: the caller's own */
    const char *directory;    /* where it starts; NULL: the caller's */
    const char *terminal;     /* path of a pty slave that becomes fds 0-2 and the controlling terminal, or NULL */
    int input, output, error; /* without terminal: fds for 0-2 (borrowed) */
    uint64_t program_mark;    /* of swx_supervisor_start, which ends the program after our end; 0: nothing does */
} swx_spawn;

/* clone(2) of a child that runs `function` on `stack` in our memory, while we wait until it ends or becomes a program.
 * It begins with all signals blocked, so that no handler of ours runs in it; it must not allocate.  `pidfd` is for
 * CLONE_PIDFD in `flags`.  -1: errno says why. */
pid_t swx_child_clone(int (*function)(void *), void *argument, char *stack, size_t size, int flags, int *pidfd);

/* Starts the program.  SWX_ESYS names the call that failed in the child (execve, chdir, open(terminal), ...) or in the
 * parent (clone), with its errno. */
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

/* Releases the pidfd.  A child that was not reaped stays a zombie until it is: call swx_child_ended first. */
void swx_child_close(swx_child *child);

#endif
