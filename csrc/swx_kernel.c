#include "swx_kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "swx_proc.h"

#define LAST_PID "/proc/sys/kernel/ns_last_pid"

enum { LINE_SIZE = 256 };               /* of /proc/PID/syscall */
enum { READLINE_STACK = 2048 };         /* bytes of stack between the prompt and readline's wait: 536 seen */
static const int64_t NEWBORN = 2000000; /* a child of bash takes the terminal within 0.3 ms of its own time */

/* One descriptor for all shells.  A program that becomes a daemon may close it. */
static atomic_int last_pid = -1;

static bool is_last_pid(int fd)
{
    struct stat file, wanted;
    return fd >= 0 && fstat(fd, &file) == 0 && stat(LAST_PID, &wanted) == 0 && file.st_dev == wanted.st_dev &&
           file.st_ino == wanted.st_ino;
}

/* The descriptor's number may belong to another file if the application has closed it. */
static void open_last_pid(void)
{
    int before = atomic_load(&last_pid);
    if (is_last_pid(before)) {
        return;
    }
    int fd = open(LAST_PID, O_RDONLY | O_CLOEXEC);
    bool right = is_last_pid(fd);
    bool kept = atomic_compare_exchange_strong(&last_pid, &before, right ? fd : -1) && right;
    if (!kept) {
        swx_close(&fd);
    }
}

/* Whether system calls have other numbers in the file than here, as under user-mode emulation (qemu-user, Rosetta):
 * found out by a read of one's own. */
static bool has_foreign_numbers(void)
{
    static atomic_int known; /* 0: not asked yet, 1: no, 2: yes */
    int answer = atomic_load(&known);
    if (!answer) {
        char text[LINE_SIZE];
        swx_proc_read((pid_t)syscall(SYS_gettid), "syscall", text, sizeof(text));
        long number = swx_proc_parse_call(text).number;
        answer = number >= 0 && number != SYS_read ? 2 : 1;
        atomic_store(&known, answer);
    }
    return answer == 2;
}

static int open_file(pid_t pid)
{
    char path[48];
    snprintf(path, sizeof(path), "/proc/%d/syscall", (int)pid);
    if (has_foreign_numbers()) {
        errno = EACCES;
        return -1;
    }
    return open(path, O_RDONLY | O_CLOEXEC);
}

void swx_kernel_open(swx_kernel *kernel, pid_t pid)
{
    open_last_pid();
    *kernel = (swx_kernel){ .fd = open_file(pid) };
}

void swx_kernel_close(swx_kernel *kernel) { swx_close(&kernel->fd); }

bool swx_kernel_is_parked(const swx_kernel *kernel) { return kernel->fd < 0 && kernel->buffer; }

swx_status swx_kernel_unpark(swx_kernel *kernel, pid_t pid, swx_error *err)
{
    if (!swx_kernel_is_parked(kernel)) {
        return SWX_OK;
    }
    kernel->fd = open_file(pid);
    bool refused = errno == EACCES || errno == EPERM || errno == ENOENT;
    return kernel->fd >= 0 || refused ? SWX_OK : swx_fail_sys(err, "open(/proc/PID/syscall)", errno);
}

/* False: no evidence at all. */
static bool read_line(const swx_kernel *kernel, char text[LINE_SIZE])
{
    ssize_t size = kernel->fd < 0 ? -1 : pread(kernel->fd, text, LINE_SIZE - 1, 0);
    text[size > 0 ? size : 0] = 0;
    return size > 0;
}

swx_shell_at swx_kernel_look(const swx_kernel *kernel)
{
    char text[LINE_SIZE];
    if (!kernel->buffer || !read_line(kernel, text)) {
        return SWX_SHELL_UNKNOWN;
    }
    if (strncmp(text, kernel->prompt, kernel->prompt_size) == 0) {
        return SWX_SHELL_PROMPT;
    }
    swx_proc_call now = swx_proc_parse_call(text);
    /* `read -e` waits like that too, from deeper inside of the shell: its stack has grown past the prompt's. */
    if (now.number == SYS_pselect6 && now.values[0] == 1 && now.values[6] <= kernel->stack &&
        kernel->stack - now.values[6] < READLINE_STACK) {
        return SWX_SHELL_READLINE;
    }
    return now.number < 0                                         ? SWX_SHELL_COMPUTES
           : now.number == SYS_read || now.number == SYS_pselect6 ? SWX_SHELL_READS
                                                                  : SWX_SHELL_ELSEWHERE;
}

bool swx_kernel_reads_as_prompt(const swx_kernel *kernel)
{
    char text[LINE_SIZE];
    read_line(kernel, text);
    swx_proc_call now = swx_proc_parse_call(text);
    return now.number == SYS_read && now.values[0] == 0 && now.values[2] == kernel->size;
}

/* Whether a shell's arguments, each with a NUL behind it, are options alone, and none of them is -c. */
static bool is_interactive(const char *at, const char *end)
{
    static const char *const valued[] = { "--rcfile", "--init-file", "-o", "+o", "-O", "+O" };
    for (bool value = false; at < end; at += strlen(at) + 1) {
        if (!value && *at != '-' && *at != '+') {
            return false;
        }
        if (!value && *at == '-' && at[1] != '-' && strchr(at, 'c')) {
            return false;
        }
        bool before = value;
        value = false;
        for (size_t i = 0; !before && i < SWX_COUNT(valued); i++) {
            value = value || strcmp(at, valued[i]) == 0;
        }
    }
    return true;
}

static bool ends_in_sh(const char *path)
{
    size_t size = strlen(path);
    return size >= 2 && strcmp(path + size - 2, "sh") == 0;
}

swx_shell_kind swx_kernel_shell_of(pid_t pid)
{
    char program[4096], words[4096];
    swx_proc_read_link(pid, "exe", program, sizeof(program));
    ssize_t size = swx_proc_read(pid, "cmdline", words, sizeof(words));
    if (size <= 0 || !is_interactive(words + strlen(words) + 1, words + size)) {
        return SWX_NO_SHELL;
    }
    const char *name = strrchr(program, '/');
    bool bash = name && strncmp(name, "/bash", 5) == 0; /* also "bash-5.3", or one that was deleted */
    bool other = ends_in_sh(program) || ends_in_sh(words);
    return bash ? SWX_BASH : other ? SWX_OTHER_SHELL : SWX_NO_SHELL;
}

uint64_t swx_kernel_stack_of(pid_t pid)
{
    swx_proc_stat stat;
    return swx_proc_read_stat(pid, &stat) == SWX_OK ? stat.stack : 0;
}

swx_kernel_pace swx_kernel_pace_of(pid_t pid)
{
    swx_proc_stat stat;
    uint64_t reaped = swx_proc_read_stat(pid, &stat) == SWX_OK ? stat.reaped : 0;
    int64_t worked = swx_kernel_worked(pid);
    return (swx_kernel_pace){ .reaped = reaped, .worked = worked > 0 ? worked : 0 };
}

int64_t swx_kernel_worked(pid_t pid)
{
    /* as clock_getcpuclockid makes it, without its extra system call */
    const clockid_t clock = (clockid_t)(~(unsigned)pid << 3 | 2);
    struct timespec worked;
    if (clock_gettime(clock, &worked) != 0) {
        return -1;
    }
    return worked.tv_sec * INT64_C(1000000000) + worked.tv_nsec;
}

int64_t swx_kernel_bytes_read(pid_t pid)
{
    char text[64];
    swx_proc_read(pid, "io", text, sizeof(text));
    long long bytes;
    return sscanf(text, "rchar: %lld\n", &bytes) == 1 ? bytes : -1;
}

int64_t swx_kernel_last_start(void)
{
    char text[16], *end;
    int fd = atomic_load_explicit(&last_pid, memory_order_relaxed);
    ssize_t size = fd < 0 ? -1 : pread(fd, text, sizeof(text) - 1, 0);
    text[size > 0 ? size : 0] = 0;
    int64_t last = strtol(text, &end, 10);
    return end > text && *end == '\n' ? last : -1;
}

bool swx_kernel_has_newborn(pid_t pid)
{
    FILE *children = swx_proc_children(pid, pid);
    bool found = false;
    for (pid_t child; (child = swx_proc_next_child(&children));) {
        swx_proc_stat stat;
        int64_t worked = found ? -1 : swx_kernel_worked(child);
        found = found ||
                (worked >= 0 && worked < NEWBORN && swx_proc_read_stat(child, &stat) == SWX_OK && stat.state == 'R');
    }
    return found;
}

pid_t swx_kernel_youngest_child(pid_t pid)
{
    FILE *children = swx_proc_children(pid, pid);
    pid_t youngest = 0;
    for (pid_t child; (child = swx_proc_next_child(&children));) {
        youngest = child;
    }
    return youngest;
}

bool swx_kernel_sleeps(pid_t pid)
{
    swx_proc_stat stat;
    return swx_proc_read_stat(pid, &stat) != SWX_OK || stat.state == 'S';
}

bool swx_kernel_has_company(pid_t group)
{
    DIR *processes = opendir("/proc");
    bool found = !processes;
    for (pid_t pid; !found && (pid = swx_proc_next(processes));) {
        found = pid != group && getpgid(pid) == group;
    }
    swx_proc_end(processes);
    return found;
}

/* waits of a process that has the terminal's lock, and of one that waits for it */
static const char reading[] = "wait_woken", locked[] = "n_tty_read";

bool swx_kernel_may_await_input(swx_kernel *kernel, pid_t pid, bool alone)
{
    static const char selecting[] = "poll_schedule_timeout"; /* readline */
    char text[64];
    ssize_t size = swx_proc_read(pid, "wchan", text, sizeof(text));
    bool tells = size > 0 && text[0] != '0';
    bool awaits = tells ? strcmp(text, reading) == 0 || strcmp(text, locked) == 0 ||
                              strncmp(text, selecting, sizeof(selecting) - 1) == 0
                        : size <= 0 || !kernel->names_waits;
    kernel->names_waits = kernel->names_waits || tells;
    return awaits && swx_kernel_sleeps(pid) && (tells || !alone || !swx_kernel_has_company(pid));
}

bool swx_kernel_group_awaits_input(pid_t group)
{
    DIR *processes = opendir("/proc");
    bool found = !processes;
    for (pid_t pid, thread; !found && (pid = swx_proc_next(processes));) {
        DIR *threads = getpgid(pid) == group ? swx_proc_threads(pid) : NULL;
        while (!found && (thread = swx_proc_next(threads))) {
            swx_kernel kernel = { .fd = -1 };
            found = swx_kernel_may_await_input(&kernel, thread, false);
        }
        swx_proc_end(threads);
    }
    swx_proc_end(processes);
    return found;
}

bool swx_kernel_is_over(pid_t pid)
{
    swx_proc_stat stat;
    return swx_proc_read_stat(pid, &stat) != SWX_OK || swx_proc_is_dead(&stat);
}

swx_kernel_reader swx_kernel_reader_of(pid_t pid)
{
    char text[64];
    bool tells = swx_proc_read(pid, "wchan", text, sizeof(text)) > 0 && text[0] != '0';
    return !tells ? SWX_READER_UNKNOWN : strcmp(text, locked) == 0 ? SWX_READER_OTHER : SWX_READER_SHELL;
}

swx_status swx_kernel_learn(swx_kernel *kernel)
{
    char text[LINE_SIZE];
    if (!read_line(kernel, text)) {
        return SWX_EUNSUPPORTED;
    }
    swx_proc_call now = swx_proc_parse_call(text);
    if (now.number != SYS_read || now.values[0] != 0) {
        return SWX_MORE;
    }
    kernel->buffer = now.values[1];
    kernel->size = now.values[2];
    kernel->stack = now.values[6];
    kernel->prompt_size = (size_t)snprintf(kernel->prompt, sizeof(kernel->prompt), "%ld 0x0 0x%llx 0x%llx ", now.number,
                                           (unsigned long long)kernel->buffer, (unsigned long long)kernel->size);
    return SWX_OK;
}
