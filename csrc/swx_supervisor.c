#include "swx_supervisor.h"
#include "swx_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdalign.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STACK_SIZE = 16 * 1024 };
enum { LONGEST_PAUSE_MICROSECONDS = 50 * 1000 };
static const int64_t SWEEP_LIMIT = 60 * INT64_C(1000000000);

typedef struct {
    const char *executable;
    char *const *argv;
    int program;        /* the pidfd */
    const char *failed; /* out: the call that failed, NULL while all is well */
    int sys_errno;
    alignas(16) char stacks[2][STACK_SIZE]; /* of the child and its child */
} preparation;

/* ---- in the child and its child, which share our memory and end or become a program before we go on: system calls
 * only ---- */

static void fail(preparation *p, const char *call)
{
    p->failed = call;
    p->sys_errno = errno;
}

/* Signals are blocked, and stay so over the exec. */
static int become_supervisor(void *argument)
{
    preparation *p = argument;
    char *const none[] = { NULL };
    setsid();
    if (chdir("/") != 0) {
        fail(p, "chdir(/)");
    } else if (dup2(p->program, 0) != 0 || (p->program == 0 && fcntl(0, F_SETFD, 0) != 0)) {
        fail(p, "dup2");
    } else {
        swx_child_close_from(1);
        execve(p->executable, p->argv, none);
        fail(p, "execve(supervisor)");
    }
    return 127;
}

static pid_t start(int (*function)(void *), preparation *p, char *stack)
{
    pid_t pid = swx_child_clone(function, p, stack, STACK_SIZE, 0, NULL);
    if (pid < 0) {
        fail(p, "clone");
    }
    return pid;
}

static int start_grandchild(void *argument)
{
    preparation *p = argument;
    start(become_supervisor, p, p->stacks[1]);
    return 0;
}

/* ---- in the program ---- */

/* A shortage may pass, and is an error.  Other failures will not (no executable, no pidfds, a forbidden system call):
 * then there is no supervisor. */
static swx_status judge_failure(const char *call, int sys_errno, swx_error *err)
{
    bool is_short = sys_errno == EMFILE || sys_errno == ENFILE || sys_errno == ENOMEM || sys_errno == EAGAIN;
    return is_short ? swx_fail_sys(err, call, sys_errno) : SWX_OK;
}

swx_status swx_supervisor_start(const char *executable, uint64_t *mark, swx_error *err)
{
    char number[24];
    char *argv[] = { (char[]){ "swerex-c-supervisor" }, number, NULL };
    preparation p = { .executable = executable, .argv = argv };
    *mark = 0;
    /* The kernel ends all of a pid namespace with its first process, whose child the supervisor would be. */
    if (getpid() == 1) {
        return SWX_OK;
    }
    p.program = swx_child_open_pidfd(getpid());
    if (p.program < 0) {
        return judge_failure("pidfd_open", errno, err);
    }
    uint64_t drawn = swx_child_draw_program_mark();
    snprintf(number, sizeof(number), "%" PRIu64, drawn);
    pid_t pid = start(start_grandchild, &p, p.stacks[0]);
    while (pid > 0 && waitpid(pid, NULL, 0) < 0 && errno == EINTR) {
    }
    close(p.program);
    if (p.failed) {
        return judge_failure(p.failed, p.sys_errno, err);
    }
    *mark = drawn;
    return SWX_OK;
}

/* ---- the executable ---- */

void swx_supervisor_run(int program, uint64_t mark)
{
    struct pollfd ended = { .fd = program, .events = POLLIN };
    while (poll(&ended, 1, -1) < 0 && errno == EINTR) {
    }
    if (!(ended.revents & POLLIN)) {
        return; /* whether the program has ended cannot be known */
    }
    const int64_t until = swx_now() + SWEEP_LIMIT;
    useconds_t pause = 1000;
    while (swx_tree_kill_marked(&mark, 1) > 0 && swx_now() < until) {
        usleep(pause);
        pause = pause < LONGEST_PAUSE_MICROSECONDS ? 2 * pause : pause;
    }
}
