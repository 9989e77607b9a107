/* swx_kernel.h: the kernel's word on what the shell is doing, from /proc/PID/syscall, stat and wchan.
 *
 * An interactive bash without readline waits for a command in read(0, BUFFER, 1024), always with the same BUFFER (the
 * one of its stdin stream; other C libraries have other sizes, so both are learned).  `read x` waits in read(0,
 * another, 4096), `wait` in wait4, readline in pselect6; a shell that computes is not in a system call at all.  No
 * output can forge this.  One look is a pread of 1.8 us on an open descriptor.  Format: proc(5), "/proc/pid/syscall":
 * number, six arguments in hex, stack pointer, program counter; "running" when the process is on a processor.  Readable
 * for one's own processes where ptrace rules allow it.
 */
#ifndef SWX_KERNEL_H
#define SWX_KERNEL_H

#include <sys/types.h>

#include "swx.h"

typedef struct {
    int fd; /* of /proc/PID/syscall, -1 where it cannot be read, and at rest */
    /* /proc/PID/wchan has named what it waits for: from then on it does not wait where that names nothing */
    bool names_waits;
    uint64_t buffer; /* where the shell reads commands into; 0 before it was learned */
    uint64_t stack;  /* the stack pointer there */
    uint64_t size;   /* and how much at most: the size of its stdin stream's buffer */
    char prompt[64]; /* how the line begins there, to know it again without reading its numbers */
    size_t prompt_size;
} swx_kernel;

typedef enum {
    SWX_SHELL_UNKNOWN,  /* no evidence can be had (descriptor closed, nothing learned, or the process is gone) */
    SWX_SHELL_PROMPT,   /* asleep in the read of its prompt */
    SWX_SHELL_READLINE, /* asleep in readline's wait for a key */
    SWX_SHELL_READS,    /* asleep in another read, or in another wait for a key */
    SWX_SHELL_COMPUTES, /* not asleep in a system call */
    SWX_SHELL_ELSEWHERE /* in another system call */
} swx_shell_at;

/* Opens the file; a refusal is not an error, kernel->fd is then -1. */
void swx_kernel_open(swx_kernel *kernel, pid_t pid);
void swx_kernel_close(swx_kernel *kernel);

/* At rest it is closed: what was learned stays, and a look says SWX_SHELL_UNKNOWN. */
bool swx_kernel_rests(const swx_kernel *kernel);

/* Opens it again after that: 4 us.  The process must not have been waited for, so that the number is still its own.
 * SWX_ESYS names the call that failed (with EMFILE or ENFILE: for want of descriptors), and it is still at rest then.
 * So it is after a refusal (EACCES, EPERM, ENOENT: the process has other rights by now, or /proc is gone), which is no
 * error: then nothing is known, as where it could not be opened at first. */
swx_status swx_kernel_unpark(swx_kernel *kernel, pid_t pid, swx_error *err);

/* Where the shell is at this moment. */
swx_shell_at swx_kernel_look(const swx_kernel *kernel);

/* Whether it waits in a read of its stdin as the shell does at its prompt, into whatever buffer of that size. */
bool swx_kernel_reads_as_prompt(const swx_kernel *kernel);

/* Where the stack of a process begins, which another program in the same process (exec) has elsewhere: from
 * /proc/PID/stat.  0 where that does not tell. */
uint64_t swx_kernel_stack_of(pid_t pid);

/* What a process is, by its names, that was not told what to run: it has no more arguments than options. */
typedef enum { SWX_NO_SHELL, SWX_OTHER_SHELL, SWX_BASH } swx_shell_kind;
swx_shell_kind swx_kernel_shell_of(pid_t pid);

/* What a process has done so far; 0 where that cannot be had. */
typedef struct {
    uint64_t reaped; /* grows with every child that it has waited for: page faults of those, and each has some */
    int64_t worked;  /* nanoseconds of processor time, its children's not among them */
} swx_kernel_pace;

/* Reads /proc/PID/stat and the process's clock, which needs no rights. */
swx_kernel_pace swx_kernel_pace_of(pid_t pid);

/* The processor time alone, which costs a quarter of a microsecond.  -1 where it cannot be had. */
int64_t swx_kernel_worked(pid_t pid);

/* How many bytes it has read so far, of whatever file.  -1 where that cannot be had (/proc/PID/io). */
int64_t swx_kernel_bytes_read(pid_t pid);

/* The number of the process or thread that was started last, by anybody who is seen from here: while it is the same,
 * nobody has started any.  Half a microsecond.  -1 where the kernel does not tell (/proc/sys/kernel/ns_last_pid), and
 * before the first swx_kernel_open. */
int64_t swx_kernel_last_start(void);

/* Whether a child of the process has hardly run yet, and would if it got a processor: it computes, and has worked less
 * than 2 ms.  10 us for each child.  False where the kernel does not tell (CONFIG_PROC_CHILDREN). */
bool swx_kernel_has_newborn(pid_t pid);

/* The child of the process that was born last, or 0: there is none, or the kernel does not tell. */
pid_t swx_kernel_youngest_child(pid_t pid);

/* Whether a process is in a sleep that a signal may end, as a read of a terminal is.  True too where that cannot be
 * had. */
bool swx_kernel_sleeps(pid_t pid);

/* Whether a shell may wait for its terminal's input: it sleeps, and not for something else that /proc/PID/wchan names.
 * alone: and where that names nothing, it has its process group for itself, which takes a look at all processes. */
bool swx_kernel_may_await_input(swx_kernel *kernel, pid_t pid, bool alone);

/* Whether a thread of that process group may wait for input so. */
bool swx_kernel_group_awaits_input(pid_t group);

/* Whether a process has ended and is only waited for, or is gone. */
bool swx_kernel_is_over(pid_t pid);

/* Whose turn it is to read the terminal of a shell that is at its prompt.  OTHERS: it waits behind another process's
 * read, which will take what is typed next.  Such a read holds the terminal's lock, and a wait for that lock is in
 * n_tty_read itself (drivers/tty/n_tty.c, atomic_read_lock).  UNKNOWN where /proc/PID/wchan says nothing, as before
 * Linux 5.16. */
typedef enum { SWX_TURN_OWN, SWX_TURN_OTHERS, SWX_TURN_UNKNOWN } swx_kernel_turn;
swx_kernel_turn swx_kernel_turn_of(pid_t pid);

/* Learns the prompt's buffer from a shell that is known to be at its prompt.  SWX_OK; SWX_MORE: it is not asleep yet,
 * ask again; SWX_EUNSUPPORTED: no evidence can be had. */
swx_status swx_kernel_learn(swx_kernel *kernel);

#endif
