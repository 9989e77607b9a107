#include "swx_tree.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "swx_buf.h"
#include "swx_proc.h"

/* Which of the marks the process carries; count: none. */
static size_t find_mark(pid_t pid, const uint64_t *marks, size_t count)
{
    for (size_t which = 0; which < SWX_COUNT(SWX_MARK_LIMITS); which++) {
        struct rlimit64 limit;
        if (prlimit64(pid, SWX_MARK_LIMITS[which], NULL, &limit) != 0) {
            return count;
        }
        for (size_t i = 0; i < count; i++) { /* no other number, because unmarked processes have the limit "none" */
            uint64_t found = marks[i] < SWX_LOWEST_MARK ? limit.rlim_cur : limit.rlim_max;
            if (found == marks[i] && marks[i] >= SWX_LOWEST_PROGRAM_MARK && marks[i] < SWX_MARKS_END) {
                return i;
            }
        }
    }
    return count;
}

static bool is_marked(pid_t pid, const uint64_t *marks, size_t count) { return find_mark(pid, marks, count) < count; }

/* A descendant of the marked processes that carries no mark itself. */
typedef struct {
    pid_t pid;
    uint64_t started;
} orphan;

/* One look at all processes. */
typedef struct {
    const uint64_t *marks;
    size_t count;
    const pid_t *sessions; /* as many as marks, or NULL: sessions whose members are killed too; 0: none */
    bool all;              /* kill the processes with a mark, else only the orphans that descend from those */
    swx_buf orphans;       /* of orphan */
    swx_buf children;      /* pid_t, of the process that is looked at */
    int64_t patience;      /* until when to wait for orphans to stop; 0: not begun */
} sweep;

/* most nanoseconds of waiting in one look, which blocks its thread, however many orphans there are */
static const int64_t PATIENCE = 20000000;
static const int64_t END = 1000000000; /* nanoseconds without progress, after which no more is tried */
enum { PAUSE_MICROSECONDS = 100, LONGEST_PAUSE_MICROSECONDS = 3200 };

static const orphan *orphans_of(const sweep *s) { return (const orphan *)(const void *)s->orphans.data; }
static size_t orphan_count(const sweep *s) { return s->orphans.size / sizeof(orphan); }

static bool belongs(const sweep *s, pid_t pid)
{
    bool found = is_marked(pid, s->marks, s->count);
    pid_t session = !found && s->sessions ? getsid(pid) : -1;
    for (size_t i = 0; session > 0 && !found && i < s->count; i++) {
        found = s->sessions[i] == session;
    }
    return found;
}

/* fd: a handle of the process; -1 where there is none. */
static bool send_signal(int fd, pid_t pid, int number)
{
    return (fd >= 0 ? syscall(SYS_pidfd_send_signal, fd, number, NULL, 0) : kill(pid, number)) == 0;
}

/* Stops a child of `parent` and notes it, so that it neither forks nor ends before its own children are known. */
static void take_orphan(sweep *s, pid_t pid, pid_t parent)
{
    swx_proc_stat stat;
    if (pid == getpid()) {
        return;
    }
    /* Before the look that identifies it, so that a later process of this number is not hit. */
    int fd = swx_child_open_pidfd(pid);
    if (!s->all && belongs(s, pid)) {
        goto done;
    }
    /* A marked process is noted too, because it may shed its mark before it stops. */
    if (swx_proc_read_stat(pid, &stat) != SWX_OK || stat.parent != parent || swx_proc_is_dead(&stat)) {
        goto done;
    }
    if (send_signal(fd, pid, SIGSTOP) &&
        swx_buf_append(&s->orphans, &(orphan){ pid, stat.started }, sizeof(orphan)) != SWX_OK) {
        send_signal(fd, pid, SIGKILL); /* its children are lost */
    }
done:
    swx_close(&fd);
}

static void list_children(sweep *s, pid_t parent)
{
    DIR *threads = swx_proc_threads(parent);
    swx_buf_clear(&s->children);
    for (pid_t thread; (thread = swx_proc_next(threads));) {
        FILE *children = swx_proc_children(parent, thread);
        for (pid_t pid; (pid = swx_proc_next_child(&children));) {
            swx_buf_append(&s->children, &pid, sizeof(pid));
        }
    }
    swx_proc_end(threads);
}

/* Waits until a process has stopped, because until then it may be in the middle of a fork.  False: it has not run
 * since, and did not stop.  A process that sleeps in the kernel, or is frozen, may not stop for long, but starts
 * nothing meanwhile. */
static bool await_stop(sweep *s, pid_t pid)
{
    swx_proc_stat stat;
    bool goes_on;
    if (!s->patience) {
        s->patience = swx_now() + PATIENCE;
    }
    while ((goes_on = swx_proc_read_stat(pid, &stat) == SWX_OK && strchr("RSD", stat.state)) &&
           swx_now() < s->patience) {
        usleep(PAUSE_MICROSECONDS);
    }
    return !goes_on || stat.state != 'R';
}

/* Notes the children of `parent`.  All are listed before the first is looked at: that takes longer than a fork, and a
 * parent that runs would have new ones forever.  False: the parent should have stopped, has not, and may have more
 * children. */
static bool take_children(sweep *s, pid_t parent, bool stopped)
{
    bool complete = true;
    list_children(s, parent);
    if (stopped && s->children.size) {
        complete = await_stop(s, parent);
        list_children(s, parent);
    }
    const pid_t *children = (const pid_t *)(const void *)s->children.data;
    for (size_t i = 0; i < s->children.size / sizeof(*children); i++) {
        take_orphan(s, children[i], parent);
    }
    return complete;
}

static void take_grandchildren(sweep *s)
{
    for (size_t i = 0; i < orphan_count(s); i++) { /* it grows meanwhile */
        pid_t pid = orphans_of(s)[i].pid;
        await_stop(s, pid); /* its children carry no mark either */
        take_children(s, pid, false);
    }
}

static long kill_orphans(const sweep *s)
{
    long found = 0;
    for (size_t i = 0; i < orphan_count(s); i++) {
        orphan one = orphans_of(s)[i];
        swx_proc_stat stat;
        int fd = swx_child_open_pidfd(one.pid);
        swx_status status = swx_proc_read_stat(one.pid, &stat);
        /* SWX_ESYS, no look is possible: it was stopped a moment ago, and would stay stopped. */
        if (status == SWX_ESYS || (status == SWX_OK && stat.started == one.started && !swx_proc_is_dead(&stat))) {
            found += send_signal(fd, one.pid, SIGKILL);
        }
        swx_close(&fd);
    }
    return found;
}

/* Stops a marked process, notes its children, and kills it.  The mark is read again while a handle of the process is
 * open, so that a reused pid is never hit.  Nothing slow comes before the first signal, because a process that forks
 * and exits all the time is gone in a moment.  Returns whether it was alive. */
static bool kill_one(sweep *s, pid_t pid)
{
    bool alive = false;
    int fd = swx_child_open_pidfd(pid);
    if (fd < 0) { /* the kernel has no handles, or none is left */
        swx_proc_stat stat;
        swx_status status = errno == ESRCH ? SWX_ECLOSED : swx_proc_read_stat(pid, &stat);
        alive = status == SWX_ESYS || (status == SWX_OK && !swx_proc_is_dead(&stat));
        alive = alive && belongs(s, pid);
    } else {
        struct pollfd ended = { .fd = fd, .events = POLLIN };
        alive = belongs(s, pid) && poll(&ended, 1, 0) == 0;
    }
    if (alive) {
        send_signal(fd, pid, SIGSTOP);
        /* If it could not stop in time, the next look kills it: now its latest children would be lost. */
        alive = !take_children(s, pid, true) || send_signal(fd, pid, SIGKILL);
    }
    swx_close(&fd);
    return alive;
}

static long kill_once(sweep s)
{
    DIR *processes = opendir("/proc");
    if (!processes) {
        return errno == ENOENT || errno == EACCES ? -1 : 1;
    }
    long found = 0;
    swx_buf_init(&s.orphans, SIZE_MAX);
    swx_buf_init(&s.children, SIZE_MAX);
    for (pid_t pid; (pid = swx_proc_next(processes));) {
        bool ours = belongs(&s, pid);
        if (ours && s.all) {
            found += kill_one(&s, pid);
        } else if (ours) {
            take_children(&s, pid, false);
        }
    }
    swx_proc_end(processes);
    take_grandchildren(&s);
    found += kill_orphans(&s);
    swx_buf_free(&s.orphans);
    swx_buf_free(&s.children);
    return found;
}

static long kill_twice(sweep s)
{
    long found = kill_once(s);
    /* One look misses a process that forks after it was passed and ends before it is reached. */
    return found ? found : kill_once(s);
}

long swx_tree_kill_marked(const uint64_t *marks, size_t count)
{
    return kill_twice((sweep){ .marks = marks, .count = count, .all = true });
}

bool swx_tree_living(const uint64_t *marks, size_t count, bool *living)
{
    DIR *processes = opendir("/proc");
    memset(living, 0, count * sizeof(*living));
    for (pid_t pid; (pid = swx_proc_next(processes));) {
        size_t i = find_mark(pid, marks, count);
        swx_proc_stat stat;
        if (i < count && !living[i]) {
            living[i] = swx_proc_read_stat(pid, &stat) != SWX_OK || !swx_proc_is_dead(&stat);
        }
    }
    swx_proc_end(processes);
    return processes != NULL;
}

/* The child's session; 0 once it was reaped, because another session may have the number then. */
static pid_t session_of(const swx_child *child) { return child->reaped ? 0 : child->pid; }

void swx_tree_kill_orphans(const swx_child *child)
{
    pid_t session = session_of(child);
    kill_once((sweep){ .marks = &child->mark, .count = 1, .sessions = &session });
}

/* Reaps children; returns how many have not ended. */
static size_t reap(swx_child *const *children, size_t count)
{
    size_t left = 0;
    for (size_t i = 0; i < count; i++) {
        left += !swx_child_ended(children[i]);
    }
    return left;
}

/* Kills the children alone, where trees cannot be seen for want of descriptors or of /proc. */
static size_t kill_alone(swx_child *const *children, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        swx_child_signal(children[i], SIGKILL);
    }
    return reap(children, count);
}

/* Kills the children's trees; returns how many processes still live or are to be reaped. */
static size_t kill_trees(swx_child *const *children, size_t count)
{
    uint64_t marks[SWX_CHILDREN_AT_ONCE];
    pid_t sessions[SWX_CHILDREN_AT_ONCE];
    for (size_t i = 0; i < count; i++) {
        marks[i] = children[i]->mark;
        sessions[i] = session_of(children[i]);
    }
    long found = kill_twice((sweep){ .marks = marks, .count = count, .sessions = sessions, .all = true });
    if (found < 0) {
        return kill_alone(children, count);
    }
    return found ? (size_t)found : reap(children, count); /* a child is reaped when nothing else lives any more */
}

bool swx_tree_kill(swx_child *child) { return kill_trees(&child, 1) == 0; }

/* Repeats a step until it returns 0, or until no smaller number came for a second. */
static bool repeat(size_t (*step)(swx_child *const *, size_t), swx_child *const *children, size_t count)
{
    size_t left, least = SIZE_MAX;
    int64_t until = 0;
    useconds_t pause = PAUSE_MICROSECONDS;
    while ((left = step(children, count))) {
        until = left < least ? swx_now() + END : until;
        least = left < least ? left : least;
        if (swx_now() >= until) {
            return false;
        }
        usleep(pause);
        pause = pause < LONGEST_PAUSE_MICROSECONDS ? 2 * pause : pause;
    }
    return true;
}

void swx_tree_end_all(swx_child *const *children, size_t count)
{
    if (!repeat(kill_trees, children, count)) {
        repeat(kill_alone, children, count);
    }
    for (size_t i = 0; i < count; i++) {
        children[i]->tree_ended = true;
    }
}

/* Whether a thread sleeps in a read of the terminal; timed: or waits for its input with a timeout. */
static bool reads(pid_t thread, const char *terminal, bool timed)
{
    char text[256], fd[32], target[64];
    swx_proc_read(thread, "syscall", text, sizeof(text));
    swx_proc_call call = swx_proc_parse_call(text);
    /* pselect6 has the highest descriptor and one first, and the timeout as its fifth value. */
    timed = timed && call.number == SYS_pselect6 && call.values[0] && call.values[4];
    if (call.number != SYS_read && call.number != SYS_readv && !timed) {
        return false;
    }
    snprintf(fd, sizeof(fd), "fd/%" PRIu64, call.values[0] - timed);
    swx_proc_read_link(thread, fd, target, sizeof(target));
    return strcmp(target, terminal) == 0 || strcmp(target, "/dev/tty") == 0;
}

bool swx_tree_shell_reads(pid_t shell, const char *terminal) { return reads(shell, terminal, true); }

static bool is_reading(pid_t pid, const char *terminal)
{
    DIR *threads = swx_proc_threads(pid);
    bool found = false;
    for (pid_t thread; !found && (thread = swx_proc_next(threads));) {
        found = reads(thread, terminal, false);
    }
    swx_proc_end(threads);
    return found;
}

static void kill_reader(pid_t pid)
{
    struct pollfd ended = { .fd = swx_child_open_pidfd(pid), .events = POLLIN };
    kill(pid, SIGKILL);
    if (ended.fd >= 0) { /* until it is gone it may still take input */
        poll(&ended, 1, 100);
    }
    swx_close(&ended.fd);
}

/* The next of the child's processes in a group (0: in any) that is blocked in a read of the terminal.  0: none. */
static pid_t next_reader(DIR *processes, const swx_child *child, pid_t group, const char *terminal)
{
    pid_t pid;
    while ((pid = swx_proc_next(processes))) {
        if (pid != child->pid && (is_marked(pid, &child->mark, 1) || getsid(pid) == child->pid) &&
            (group == 0 || getpgid(pid) == group) && is_reading(pid, terminal)) {
            break;
        }
    }
    return pid;
}

void swx_tree_kill_readers(const swx_child *child, pid_t group, const char *terminal)
{
    DIR *processes = group == 0 || kill(-group, 0) == 0 ? opendir("/proc") : NULL;
    for (pid_t pid; (pid = next_reader(processes, child, group, terminal));) {
        kill_reader(pid);
    }
    swx_proc_end(processes);
}

bool swx_tree_has_reader(const swx_child *child, const char *terminal)
{
    DIR *processes = opendir("/proc");
    bool found = swx_tree_shell_reads(child->pid, terminal) || next_reader(processes, child, 0, terminal);
    swx_proc_end(processes);
    return found;
}

void swx_tree_kill_begun(const swx_child *child, int64_t since, int64_t last)
{
    struct timespec boot, monotonic;
    clock_gettime(CLOCK_BOOTTIME, &boot);
    clock_gettime(CLOCK_MONOTONIC, &monotonic);
    const int64_t second = 1000000000, tick = second / sysconf(_SC_CLK_TCK);
    since += (boot.tv_sec - monotonic.tv_sec) * second + boot.tv_nsec - monotonic.tv_nsec;
    DIR *processes = opendir("/proc");
    for (pid_t pid; (pid = swx_proc_next(processes));) {
        swx_proc_stat stat;
        pid_t leader = getpgid(pid), judged = leader == child->pid ? pid : leader;
        if (pid == child->pid || getsid(pid) != child->pid ||
            (swx_proc_read_stat(judged, &stat) != SWX_OK && swx_proc_read_stat(pid, &stat) != SWX_OK)) {
            continue;
        }
        int64_t began = (int64_t)stat.started * tick; /* nanoseconds since the boot, or up to a tick later */
        if (began > since || (began + tick > since && judged > last)) {
            kill(pid, SIGKILL);
        }
    }
    swx_proc_end(processes);
}
