#include "swx_inherit.h"
#include "swx_tree.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "swx_alloc.h"
#include "swx_child.h"

enum { LIMIT = 1 << 16 };

static swx_buf look(pid_t pid)
{
    swx_buf seen;
    swx_error err = { .status = SWX_OK };
    swx_buf_init(&seen, LIMIT);
    swx_status status = swx_inherit_look(pid, &seen, &err);
    if (status != SWX_OK) {
        fprintf(stderr, "%s: %s\n", err.call ? err.call : "?", strerror(err.sys_errno));
    }
    CHECK(status == SWX_OK && seen.size > 100);
    return seen;
}

static bool same(pid_t a, pid_t b)
{
    swx_buf one = look(a), other = look(b);
    bool equal = one.size == other.size && memcmp(one.data, other.data, one.size) == 0;
    swx_buf_free(&one);
    swx_buf_free(&other);
    return equal;
}

static swx_child start(void)
{
    char *argv[] = { (char[]){ "sleep" }, (char[]){ "100" }, NULL };
    swx_spawn spawn = { .file = "sleep", .argv = argv, .input = 0, .output = 1, .error = 2 };
    swx_child child;
    swx_error err;
    CHECK(swx_child_start(&child, &spawn, &err) == SWX_OK);
    return child;
}

static void end(swx_child *child)
{
    while (!swx_tree_kill(child)) {
        usleep(100);
    }
    swx_child_close(child);
}

/* Each in a process of its own, which can be changed for good. */
static void check_change(bool (*change)(void))
{
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        swx_child child = start();
        bool before = same(0, child.pid);
        bool changed = change();
        bool after = same(0, child.pid);
        swx_child again = start();
        bool anew = same(0, again.pid);
        end(&child);
        end(&again);
        _exit(!before ? 1 : !changed ? 2 : after ? 3 : !anew ? 4 : 0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status));
    if (WEXITSTATUS(status) == 2) {
        return; /* not allowed here */
    }
    CHECK(WEXITSTATUS(status) == 0);
}

static bool change_umask(void) { return umask(0123) != 0123; }
static bool change_directory(void) { return chdir("/proc") == 0; }
static bool change_priority(void) { return setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + 1) == 0; }
static bool change_privileges(void) { return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0; }

static bool change_limit(void)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_CORE, &limit) == 0 && (limit.rlim_max != 0 || limit.rlim_cur != 0) &&
           setrlimit(RLIMIT_CORE, &(struct rlimit){ limit.rlim_cur ? 0 : 1, limit.rlim_max }) == 0;
}

static bool change_processors(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof(set), &set) != 0 || CPU_COUNT(&set) < 2) {
        return false;
    }
    int first = 0;
    while (!CPU_ISSET(first, &set)) {
        first++;
    }
    CPU_CLR(first, &set);
    return sched_setaffinity(0, sizeof(set), &set) == 0;
}

static bool change_user(void) { return setgid(65534) == 0; }
static bool change_namespace(void) { return unshare(CLONE_NEWUTS) == 0; }
static bool change_root(void) { return chroot("/usr") == 0; }

static void test_changes(void)
{
    bool (*changes[])(void) = { change_umask, change_directory,  change_priority, change_privileges,
                                change_limit, change_processors, change_namespace };
    for (size_t i = 0; i < SWX_COUNT(changes); i++) {
        check_change(changes[i]);
    }
}

/* Nothing can be started there, or looked at, after these: what is seen of oneself has to differ. */
static void check_own_change(bool (*change)(void))
{
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        swx_buf before = look(0), after;
        swx_error err;
        bool changed = change();
        swx_buf_init(&after, LIMIT);
        bool seen = swx_inherit_look(0, &after, &err) == SWX_OK;
        bool equal = seen && before.size == after.size && memcmp(before.data, after.data, after.size) == 0;
        _exit(!changed ? 2 : equal ? 3 : 0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid);
    CHECK(WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 2));
}

static void test_gone(void)
{
    swx_child child = start();
    pid_t pid = child.pid;
    end(&child);
    swx_buf seen;
    swx_error err = { .status = SWX_OK };
    swx_buf_init(&seen, LIMIT);
    CHECK(swx_inherit_look(pid, &seen, &err) == SWX_ESYS && err.call);
    swx_buf_free(&seen);
    check_own_change(change_user);
    check_own_change(change_root);
}

#ifdef SWX_ALLOC_TEST
static void test_failing_allocations(void)
{
    swx_buf seen;
    swx_error err = { .status = SWX_OK };
    swx_buf_init(&seen, LIMIT);
    swx_alloc_fail_at(1, 0);
    CHECK(swx_inherit_look(0, &seen, &err) == SWX_ENOMEM && err.status == SWX_ENOMEM);
    swx_alloc_fail_at(0, 0);
    swx_buf_free(&seen);
    CHECK(swx_alloc_live() == 0);
}
TEST_MAIN(test_changes, test_gone, test_failing_allocations)
#else
TEST_MAIN(test_changes, test_gone)
#endif
