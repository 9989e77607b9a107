/* Trees that resist: hundreds that have shed their marks, parents that start such ones without end, limits that are
 * meant. */
#include "swx_child.h"
#include "swx_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "harness.h"

enum { STRAYS = 150, FLOOD = 3000, ROUNDS = 20 };

static int64_t milliseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void shed_marks(void)
{
    const struct rlimit limit = { 1000000, 1000000 };
    setrlimit(RLIMIT_RTTIME, &limit);
    setrlimit(RLIMIT_LOCKS, &limit);
    setsid();
}

/* This program, started again as what is to be killed. */
__attribute__((constructor)) static void be_hunted(void)
{
    const char *how = getenv("SWX_HUNTED");
    if (!how) {
        return;
    }
    bool flood = strcmp(how, "flood") == 0;
    for (int i = 0; i < (flood ? FLOOD : STRAYS); i++) {
        if (fork() == 0) {
            alarm(60);                      /* should they outlive a test that has failed */
            if (strcmp(how, "late") == 0) { /* anywhere in the look that comes meanwhile */
                usleep((unsigned)(getpid() * 7919 % 12000));
                shed_marks();
                for (;;) {
                    pause();
                }
            }
            shed_marks();
            while (flood) {
                pause();
            }
            for (;;) { /* runs, so that it stops only when it is its turn */
            }
        }
        if (write(1, "x", 1) != 1) {
            _exit(1);
        }
    }
    for (;;) {
        pause();
    }
}

static swx_child start_hunted(const char *how, int *output)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC), pair[2];
    CHECK(null >= 0 && pipe2(pair, O_CLOEXEC) == 0 && setenv("SWX_HUNTED", how, 1) == 0);
    char *argv[] = { "hunted", NULL };
    swx_spawn spawn = { .file = "/proc/self/exe", .argv = argv, .input = null, .output = pair[1], .error = null };
    swx_child child;
    CHECK(swx_child_start(&child, &spawn, NULL) == SWX_OK);
    CHECK(unsetenv("SWX_HUNTED") == 0);
    close(null);
    close(pair[1]);
    *output = pair[0];
    return child;
}

static void kill_all(swx_child *child)
{
    bool gone = false;
    for (int step = 0; step < 5000 && !gone; step++) {
        gone = swx_tree_kill(child);
        usleep(1000);
    }
    CHECK(gone && child->reaped);
    swx_child_close(child);
}

/* What is read until nobody is left that could write. */
static size_t count_until_end(int output)
{
    char bytes[512];
    size_t count = 0;
    struct pollfd ready = { .fd = output, .events = POLLIN };
    for (;;) {
        CHECK(poll(&ready, 1, 60000) == 1); /* on a busy machine even dying takes its time */
        ssize_t size = read(output, bytes, sizeof(bytes));
        CHECK(size >= 0);
        if (size == 0) {
            close(output);
            return count;
        }
        count += (size_t)size;
    }
}

/* A look blocks the thread of all sessions: it must not wait for each of them. */
static void test_many_strays(void)
{
    int output;
    char byte;
    swx_child child = start_hunted("busy", &output);
    for (int i = 0; i < STRAYS; i++) {
        CHECK(read(output, &byte, 1) == 1);
    }
    usleep(20000);
    int64_t began = milliseconds();
    swx_tree_kill_orphans(&child);
    CHECK(milliseconds() - began < 10000);
    kill_all(&child);
    CHECK(count_until_end(output) == 0);
}

/* Who starts strays faster than they are looked at is stopped first. */
static void test_flood_of_strays(void)
{
    int output;
    char byte;
    swx_child child = start_hunted("flood", &output);
    CHECK(read(output, &byte, 1) == 1);
    kill_all(&child);
    CHECK(count_until_end(output) < FLOOD - 1);
}

/* A child sheds its signs while it is looked at, and is stopped only then: nobody would find it without its parent. */
static void test_strays_that_have_just_become_ones(void)
{
    for (int round = 0; round < ROUNDS; round++) {
        int output;
        char byte;
        swx_child child = start_hunted("late", &output);
        for (int i = 0; i < STRAYS; i++) {
            CHECK(read(output, &byte, 1) == 1);
        }
        kill_all(&child);
        CHECK(count_until_end(output) == 0);
    }
}

/* The mark goes where there is no limit, and what root could lift stays. */
static void test_limits_that_are_meant(void)
{
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        const struct rlimit meant = { 5000000, 5000000 };
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        char *argv[] = { "bash", "-c", "test $(ulimit -R) = 5000000 -a $(ulimit -HR) = 5000000", NULL };
        swx_spawn spawn = { .file = "/bin/bash", .argv = argv, .input = null, .output = null, .error = null };
        swx_child child;
        CHECK(null >= 0 && setrlimit(RLIMIT_RTTIME, &meant) == 0 && swx_child_start(&child, &spawn, NULL) == SWX_OK);
        CHECK(child.mark != 0);
        for (int i = 0; i < 20000 && !swx_child_ended(&child); i++) {
            usleep(1000);
        }
        CHECK(child.reaped && swx_child_code(&child) == 0);
        swx_child_close(&child);
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Everything has the limit "none". */
static void test_no_mark(void)
{
    const uint64_t none[] = { UINT64_MAX, 0, (UINT64_C(1) << 60) - 1, UINT64_C(1) << 62 };
    bool living[SWX_COUNT(none)] = { true, true, true, true };
    CHECK(swx_tree_living(none, SWX_COUNT(none), living));
    for (size_t i = 0; i < SWX_COUNT(none); i++) {
        CHECK(!living[i]);
    }
}

TEST_MAIN(test_many_strays, test_flood_of_strays, test_strays_that_have_just_become_ones, test_limits_that_are_meant,
          test_no_mark)
