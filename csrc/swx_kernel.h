/* swx_kernel.h: what the shell is doing, as the kernel tells it in /proc/PID/syscall, stat and wchan.
 *
 * An interactive bash without readline waits for a command in read(0, BUFFER, 1024), always with the same BUFFER, that
 * of its stdin stream.  (Other C libraries have other sizes, so both are learned.)  `read x` waits in read(0, another,
 * 4096), `wait` in wait4, readline in pselect6; a shell that computes is in no system call.  No output can forge this.
 * One look is a pread of 1.8 us on an open descriptor.  Format: proc(5), "/proc/pid/syscall": number, six arguments in
 * hex, stack pointer, program counter; or "running".  It is readable for one's own processes where the rules of ptrace
 * allow it.
 */
#ifndef SWX_KERNEL_H
#define SWX_KERNEL_H

#include <sys/types.h>

#include "swx.h"

typedef struct {
    int fd; /* of /proc/PID/syscall; -1: it cannot be read, or the session is parked */
    /* /proc/PID/wchan has named a wait of the shell: from then on a look that names none means that it does not wait */
    bool names_waits;
    uint64_t buffer; /* where the shell reads commands into; 0 before it was learned */
    uint64_t stack;  /* the stack pointer there */
    uint64_t size;   /* and how much at most: the size of its stdin stream's buffer */
    char prompt[64]; /* the beginning of the line then, by which the read is recognised without parsing numbers */
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

/* Opens the file.  A refusal is not an error: kernel->fd is -1 then. */
void swx_kernel_open(swx_kernel *kernel, pid_t pid);
void swx_kernel_close(swx_kernel *kernel);

/* Whether the file is closed, and what was learned stays; a look returns SWX_SHELL_UNKNOWN. */
bool swx_kernel_is_parked(const swx_kernel *kernel);

/* Opens the file again (4 us).  The process must not have been waited for, so that its number is still its own.
 * SWX_ESYS names the call that failed (EMFILE, ENFILE: no descriptors are left).  A refusal is no error (EACCES, EPERM,
 * ENOENT: the process has other rights now, or /proc is gone).  In both cases the file stays closed, and looks return
 * SWX_SHELL_UNKNOWN. */
swx_status swx_kernel_unpark(swx_kernel *kernel, pid_t pid, swx_error *err);

swx_shell_at swx_kernel_look(const swx_kernel *kernel);

/* Whether the process reads its stdin as the shell does at its prompt, into any buffer of the learned size. */
bool swx_kernel_reads_as_prompt(const swx_kernel *kernel);

/* The start of a process's stack, from /proc/PID/stat; it changes when the process executes another program.  0:
 * unknown. */
uint64_t swx_kernel_stack_of(pid_t pid);

/* Which shell a process is, by its names.  A shell that runs its arguments, besides options, is SWX_NO_SHELL. */
typedef enum { SWX_NO_SHELL, SWX_OTHER_SHELL, SWX_BASH } swx_shell_kind;
swx_shell_kind swx_kernel_shell_of(pid_t pid);

/* The work of a process so far; 0 where it is unknown. */
typedef struct {
    uint64_t reaped; /* page faults of the children it has waited for, which each such child increases */
    int64_t worked;  /* nanoseconds of its own processor time */
} swx_kernel_pace;

/* Reads /proc/PID/stat and the process's clock, which needs no rights. */
swx_kernel_pace swx_kernel_pace_of(pid_t pid);

/* The processor time alone (0.25 us).  -1: unknown. */
int64_t swx_kernel_worked(pid_t pid);

/* How many bytes a process has read so far, from all files (/proc/PID/io).  -1: unknown. */
int64_t swx_kernel_bytes_read(pid_t pid);

/* The number of the newest process or thread in this PID namespace (0.5 us): while it stays the same, none was started.
 * -1 where the kernel does not tell (/proc/sys/kernel/ns_last_pid), and before the first swx_kernel_open. */
int64_t swx_kernel_last_start(void);

/* Whether a child of the process is runnable and has used less than 2 ms of processor time (10 us a child).  False
 * where the kernel does not tell (CONFIG_PROC_CHILDREN). */
bool swx_kernel_has_newborn(pid_t pid);

/* The newest child of the process.  0: it has none, or the kernel does not tell. */
pid_t swx_kernel_youngest_child(pid_t pid);

/* Whether another process than its leader is in a group. */
bool swx_kernel_has_company(pid_t group);

/* Whether a process is in a sleep that a signal may end, such as a read of a terminal.  True where that is unknown. */
bool swx_kernel_sleeps(pid_t pid);

/* Whether a shell may wait for its terminal's input: it sleeps, and /proc/PID/wchan names no other wait.  alone: if
 * wchan names nothing, the shell must also be alone in its process group, which takes a look at all processes. */
bool swx_kernel_may_await_input(swx_kernel *kernel, pid_t pid, bool alone);

/* Whether a thread of a process group may wait for input in that way. */
bool swx_kernel_group_awaits_input(pid_t group);

/* Whether a process has ended and is only waited for, or is gone. */
bool swx_kernel_is_over(pid_t pid);

/* Which process reads the terminal ahead of the others, if the shell is at its prompt.  OTHER: the shell waits behind
 * another process's read, which will take the next input.  Such a read holds the terminal's lock, and a wait for that
 * lock is in n_tty_read itself (drivers/tty/n_tty.c, atomic_read_lock).  UNKNOWN where /proc/PID/wchan is empty, as
 * before Linux 5.16. */
typedef enum { SWX_READER_SHELL, SWX_READER_OTHER, SWX_READER_UNKNOWN } swx_kernel_reader;
swx_kernel_reader swx_kernel_reader_of(pid_t pid);

/* Learns the prompt's buffer from a shell that is known to be at its prompt.  SWX_OK; SWX_MORE: it is not asleep yet,
 * ask again; SWX_EUNSUPPORTED: no evidence can be had. */
swx_status swx_kernel_learn(swx_kernel *kernel);

#endif
