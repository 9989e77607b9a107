/* swx_proc.h: files of /proc, read.  Source: proc(5). */
#ifndef SWX_PROC_H
#define SWX_PROC_H

#include <dirent.h>
#include <stdio.h>
#include <sys/types.h>

#include "swx.h"

/* Fields of /proc/PID/stat, with their numbers. */
typedef struct {
    char state;       /* 3 */
    pid_t parent;     /* 4 */
    uint64_t reaped;  /* 11: page faults of the children it has waited for */
    uint64_t threads; /* 20 */
    uint64_t started; /* 22: with the pid this names a process for all time; in ticks since the boot */
    uint64_t stack;   /* 28: where it begins */
} swx_proc_stat;

/* 8 us.  SWX_ECLOSED: there is no such process; SWX_ESYS: it could not be looked at now. */
swx_status swx_proc_read_stat(pid_t pid, swx_proc_stat *stat);

/* Whether a process has ended and is only waited for.  One whose first thread alone has ended says Z too, and lives. */
static inline bool swx_proc_is_dead(const swx_proc_stat *stat)
{
    return (stat->state == 'Z' || stat->state == 'X') && stat->threads < 2;
}

/* Reads the beginning of /proc/PID/NAME, of a process or a thread, into `text` and puts a NUL behind it, if only that.
 * Returns its size, or -1: it cannot be opened or read, and errno says why. */
ssize_t swx_proc_read(pid_t pid, const char *name, char *text, size_t room);

/* Reads the target of /proc/PID/NAME, a symbolic link, in the same way. */
ssize_t swx_proc_read_link(pid_t pid, const char *name, char *text, size_t room);

/* /proc/PID/syscall: a system call and its arguments, the stack pointer and the program counter; number -1: "running",
 * or "-1 ..." outside of a system call, or no such text. */
typedef struct {
    long number;
    uint64_t values[8];
} swx_proc_call;
swx_proc_call swx_proc_parse_call(const char *text);

/* The next process in /proc, or thread in swx_proc_threads; 0: there are no more, or `directory` is NULL. */
pid_t swx_proc_next(DIR *directory);
DIR *swx_proc_threads(pid_t pid);

/* closedir, of NULL too. */
void swx_proc_end(DIR *directory);

/* The children that a thread of a process has started, oldest first.  NULL: that cannot be read; needs
 * CONFIG_PROC_CHILDREN. */
FILE *swx_proc_children(pid_t process, pid_t thread);

/* The next one, or 0: there are no more, or *children is NULL; then it is closed, and NULL. */
pid_t swx_proc_next_child(FILE **children);

#endif
