#include "swx_kernel.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

/* The Makefile ends a wait for what never comes. */
#define AWAIT(condition)   \
    while (!(condition)) { \
        usleep(1000);      \
    }

/* A file that says what /proc/PID/syscall would. */
static int says(const char *line)
{
    int fd = memfd_create("syscall", MFD_CLOEXEC);
    CHECK(fd >= 0 && write(fd, line, strlen(line)) == (ssize_t)strlen(line));
    return fd;
}

#define CALL(number, first, buffer, size, stack) \
    number " " first " " buffer " " size " 0x0 0x1 0x2 " stack " 0x7f2210000000\n"

static void test_looks(void)
{
    swx_kernel kernel = { .fd = says(CALL("0", "0x0", "0x55d2c8a3b010", "0x400", "0x7ffd10000000")) };
    CHECK(swx_kernel_look(&kernel) == SWX_SHELL_UNKNOWN); /* nothing was learned */
    CHECK(swx_kernel_learn(&kernel) == SWX_OK && swx_kernel_look(&kernel) == SWX_SHELL_PROMPT);
    static const struct {
        const char *line;
        swx_shell_at at;
        bool as_prompt;
    } cases[] = {
        { CALL("0", "0x0", "0x55d2c8a3b010", "0x400", "0x7ffd0fff8000"), SWX_SHELL_PROMPT, true },
        { CALL("0", "0x0", "0x55d2c8a3c010", "0x400", "0x7ffd0fff8000"), SWX_SHELL_READS, true }, /* another bash's */
        { CALL("0", "0x0", "0x55d2c8a3b0100", "0x400", "0x7ffd0fff8000"), SWX_SHELL_READS, true },
        { CALL("0", "0x0", "0x55d2c8a3c010", "0x1000", "0x7ffd0fff8000"), SWX_SHELL_READS, false }, /* `read x` */
        { CALL("270", "0x1", "0x55d2c8a3c010", "0x0", "0x7ffd0ffffe00"), SWX_SHELL_READLINE, false },
        { CALL("270", "0x1", "0x55d2c8a3c010", "0x0", "0x7ffd0fff8000"), SWX_SHELL_READS, false }, /* `read -e x` */
        { CALL("61", "0xffffffffffffffff", "0x55d2c8a3c010", "0x0", "0x7ffd0fff8000"), SWX_SHELL_ELSEWHERE, false },
        { "running\n", SWX_SHELL_COMPUTES, false },
        { "-1 0x7ffd5 0x7f2\n", SWX_SHELL_COMPUTES, false },
        { "0 0x0 0x55d2c8a3c010 0x400 0x0 0x1 0x2 0x7ffd0fff8000\n", SWX_SHELL_COMPUTES, false },
        { "0 0x0 0x55d2c8a3c010 0x400 0x0 0x1 0x2 0x7ffd0fff8000 0x", SWX_SHELL_COMPUTES, false },
        { "0 0 1 2 3 4 5 6 7\n", SWX_SHELL_COMPUTES, false },
        { "", SWX_SHELL_UNKNOWN, false },
    };
    for (size_t i = 0; i < SWX_COUNT(cases); i++) {
        close(kernel.fd);
        kernel.fd = says(cases[i].line);
        CHECK(swx_kernel_look(&kernel) == cases[i].at && swx_kernel_reads_as_prompt(&kernel) == cases[i].as_prompt);
    }
    CHECK(swx_kernel_learn(&kernel) == SWX_EUNSUPPORTED);
    swx_kernel_close(&kernel);
    swx_kernel_close(&kernel);
    CHECK(kernel.fd == -1 && swx_kernel_look(&kernel) == SWX_SHELL_UNKNOWN);
    swx_kernel_open(&kernel, 0x7fffffff); /* no process */
    CHECK(kernel.fd == -1 && kernel.buffer == 0 && swx_kernel_learn(&kernel) == SWX_EUNSUPPORTED);
}

/* As a daemon does that closes all it does not know: others take the number. */
static void test_closed_behind_it(void)
{
    swx_kernel kernel;
    swx_kernel_open(&kernel, getpid());
    swx_kernel_close(&kernel);
    struct stat wanted, file;
    int stale = 3;
    if (stat("/proc/sys/kernel/ns_last_pid", &wanted) != 0) {
        return;
    }
    while (stale < 1024 && (fstat(stale, &file) != 0 || file.st_ino != wanted.st_ino || file.st_dev != wanted.st_dev)) {
        stale++;
    }
    char path[] = "/tmp/swx-test-XXXXXX";
    int other = mkstemp(path);
    CHECK(stale < 1024 && other >= 0 && write(other, "1\n", 2) == 2 && dup2(other, stale) == stale);
    CHECK(swx_kernel_last_start() == 1);
    swx_kernel_open(&kernel, getpid());
    swx_kernel_close(&kernel);
    CHECK(swx_kernel_last_start() > 1);
    CHECK(fcntl(stale, F_GETFD) == 0); /* it is theirs */
    close(stale);
    close(other);
    unlink(path);
}

/* A process that waits for children, works, and ends. */
static void test_pace(void)
{
    swx_kernel kernel;
    swx_kernel_open(&kernel, getpid());
    swx_kernel_close(&kernel);
    int64_t last = swx_kernel_last_start();
    CHECK(last > 0 || access("/proc/sys/kernel/ns_last_pid", R_OK) != 0);
    swx_kernel_pace first = swx_kernel_pace_of(getpid());
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        _exit(0);
    }
    CHECK(last < 0 || swx_kernel_last_start() != last);
    AWAIT(swx_kernel_is_over(child));
    CHECK(swx_kernel_worked(getpid()) > 0 && swx_kernel_worked(1 << 27) == -1);
    CHECK(!swx_kernel_is_over(getpid()));
    CHECK(swx_kernel_pace_of(getpid()).reaped == first.reaped && waitpid(child, NULL, 0) == child);
    swx_kernel_pace second = swx_kernel_pace_of(getpid()), none = swx_kernel_pace_of(1 << 27);
    CHECK(second.reaped > first.reaped && second.worked > first.worked && swx_kernel_is_over(child));
    CHECK(none.reaped == 0 && none.worked == 0);
}

/* One that has just been forked; not one that has worked for a while, sleeps, or has ended. */
static void test_newborn(void)
{
    bool seen = false;
    pid_t child = 0;
    CHECK(!swx_kernel_has_newborn(getpid()) && !swx_kernel_has_newborn(1 << 27));
    for (int tries = 0; tries < 50 && !seen; tries++) { /* this process may have to wait longer than the child works */
        if (child > 0) {
            CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
        }
        child = fork();
        CHECK(child >= 0);
        while (child == 0) {
        }
        seen = swx_kernel_has_newborn(getpid());
    }
    CHECK(seen);
    AWAIT(swx_kernel_worked(child) >= 3000000);
    CHECK(!swx_kernel_has_newborn(getpid()));
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        pause();
        _exit(0);
    }
    AWAIT(!swx_kernel_has_newborn(getpid()));
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
}

/* The last of more children than one read of their list tells of. */
static void test_youngest_child(void)
{
    static pid_t children[1000];
    CHECK(swx_kernel_youngest_child(getpid()) == 0 && swx_kernel_youngest_child(1 << 27) == 0);
    for (size_t i = 0; i < SWX_COUNT(children); i++) {
        children[i] = fork();
        CHECK(children[i] >= 0);
        if (children[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL); /* should this test fail */
            pause();
            _exit(0);
        }
    }
    CHECK(swx_kernel_youngest_child(getpid()) == children[SWX_COUNT(children) - 1]);
    for (size_t i = 0; i < SWX_COUNT(children); i++) {
        CHECK(kill(children[i], SIGKILL) == 0 && waitpid(children[i], NULL, 0) == children[i]);
    }
}

/* Who waits for input sleeps; who computes, or waits for what no signal ends (as for a child between vfork and exec),
 * does not. */
static void test_sleeps(void)
{
    int input[2], forked[2];
    char byte;
    CHECK(pipe(input) == 0 && pipe(forked) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(input[1]);
        if (read(input[0], &byte, 1) == 1 && vfork() == 0) { /* it ends with the input */
            _exit(write(forked[1], "x", 1) == 1 && read(input[0], &byte, 1) == 0);
        }
        _exit(0);
    }
    close(input[0]);
    AWAIT(swx_kernel_sleeps(child));
    CHECK(!swx_kernel_sleeps(getpid()));
    CHECK(write(input[1], "x", 1) == 1 && read(forked[0], &byte, 1) == 1);
    CHECK(!swx_kernel_sleeps(child));
    close(input[1]);
    CHECK(waitpid(child, NULL, 0) == child && swx_kernel_sleeps(child)); /* nothing is known of it */
}

TEST_MAIN(test_looks, test_closed_behind_it, test_pace, test_newborn, test_youngest_child, test_sleeps)
