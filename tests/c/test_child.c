#include "swx_child.h"
#include "swx_tree.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

static int null_fd(void)
{
    int fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    CHECK(fd >= 0);
    return fd;
}

static void await_end(swx_child *child)
{
    if (child->pidfd >= 0) {
        struct pollfd ready = { .fd = child->pidfd, .events = POLLIN };
        CHECK(poll(&ready, 1, 60000) == 1);
    }
    for (int i = 0; i < 20000 && !swx_child_ended(child); i++) {
        usleep(1000);
    }
    CHECK(child->reaped && swx_child_ended(child));
}

/* Everything that is there until end-of-file. */
static void slurp(int fd, char *out, size_t room)
{
    size_t size = 0;
    for (ssize_t got; (got = read(fd, out + size, room - 1 - size)) > 0;) {
        size += (size_t)got;
    }
    out[size] = 0;
}

/* Starts `sh -c script` with a pipe as its stdout and stderr. */
static swx_child start_script(const char *script, int *output)
{
    int null = null_fd(), pair[2];
    CHECK(pipe2(pair, O_CLOEXEC) == 0);
    char *argv[] = { "sh", "-c", (char *)(uintptr_t)script, NULL };
    swx_spawn spawn = { .file = "/bin/sh", .argv = argv, .input = null, .output = pair[1], .error = pair[1] };
    swx_child child;
    swx_error err;
    CHECK(swx_child_start(&child, &spawn, &err) == SWX_OK && child.pid > 0 && !child.reaped);
    close(null);
    close(pair[1]);
    *output = pair[0];
    return child;
}

/* fds 0 to 2 of the parent are closed, so that the pipes get those numbers. */
static void test_low_descriptors(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        int report = fcntl(2, F_DUPFD_CLOEXEC, 10), output, error[2];
        close(0);
        close(1);
        close(2);
        int null = open("/dev/null", O_RDWR | O_CLOEXEC), pair[2];
        if (null != 0 || pipe2(pair, O_CLOEXEC) != 0 || pipe2(error, O_CLOEXEC) != 0) {
            _exit(1);
        }
        char *argv[] = { "sh", "-c", "cat; echo out; echo err >&2", NULL };
        swx_spawn spawn = { .file = "/bin/sh", .argv = argv, .input = null, .output = pair[1], .error = error[1] };
        swx_child child;
        char got[2][64];
        if (swx_child_start(&child, &spawn, NULL) != SWX_OK) {
            _exit(2);
        }
        close(pair[1]);
        close(error[1]);
        output = pair[0];
        slurp(output, got[0], sizeof(got[0]));
        slurp(error[0], got[1], sizeof(got[1]));
        dprintf(report, "%s",
                strcmp(got[0], "out\n") || strcmp(got[1], "err\n") ? "low descriptors: wrong output\n" : "");
        _exit(strcmp(got[0], "out\n") || strcmp(got[1], "err\n") ? 3 : 0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void *sleep_long(void *argument)
{
    sleep(1000);
    return argument;
}

/* What this program does when the next test starts it. */
__attribute__((constructor)) static void lose_first_thread(void)
{
    pthread_t thread;
    if (getenv("SWX_TEST_LEADERLESS")) {
        CHECK(pthread_create(&thread, NULL, sleep_long, NULL) == 0 && dprintf(1, "%d\n", (int)getpid()) > 0);
        syscall(SYS_exit, 0); /* this thread alone */
    }
}

/* A process of which only the first thread has ended shows as a zombie, and is as alive as any. */
static void test_leaderless_process(void)
{
    int output;
    char program[1024] = { 0 }, script[1200], state;
    pid_t pid;
    CHECK(readlink("/proc/self/exe", program, sizeof(program) - 1) > 0);
    snprintf(script, sizeof(script), "SWX_TEST_LEADERLESS=1 setsid '%s' &", program);
    swx_child child = start_script(script, &output);
    FILE *lines = fdopen(output, "r");
    CHECK(lines && fscanf(lines, "%d%*c", &pid) == 1);
    await_end(&child);
    snprintf(script, sizeof(script), "/proc/%d/stat", (int)pid);
    for (state = 0; state != 'Z'; usleep(1000)) {
        FILE *stat = fopen(script, "r");
        CHECK(stat && fscanf(stat, "%*d (%*[^)]) %c", &state) == 1);
        fclose(stat);
    }
    CHECK(swx_tree_kill_marked(&child.mark, 1) == 1);
    char more;
    CHECK(fread(&more, 1, 1, lines) == 0); /* nobody has the pipe any more */
    fclose(lines);
    swx_child_close(&child);
}

static void test_marks_are_own(void)
{
    int outputs[3];
    swx_child children[3];
    for (int i = 0; i < 3; i++) {
        children[i] = start_script("exec sleep 1000", &outputs[i]);
    }
    CHECK(children[0].mark && children[0].mark != children[1].mark && children[1].mark != children[2].mark);
    /* no marks; the largest is the limit that everything has */
    const uint64_t none[] = { 0, 1, (UINT64_C(1) << 60) - 1, UINT64_C(1) << 62, UINT64_MAX - 1, UINT64_MAX };
    bool found[SWX_COUNT(none)];
    CHECK(swx_tree_living(none, SWX_COUNT(none), found) && !memchr(found, true, sizeof(found)));
    CHECK(swx_tree_kill_marked(none, 5) == 0 && swx_tree_kill_marked(NULL, 0) == 0);
    const uint64_t some[] = { 7, children[2].mark, children[1].mark };
    bool living[3] = { true, false, false };
    CHECK(swx_tree_living(some, 3, living) && !living[0] && living[1] && living[2]);
    CHECK(swx_tree_kill_marked(&children[1].mark, 1) == 1);
    await_end(&children[1]);
    CHECK(swx_tree_living(some, 3, living) && !living[0] && living[1] && !living[2]);
    CHECK(swx_child_code(&children[1]) == 128 + SIGKILL && !swx_child_ended(&children[0]) &&
          !swx_child_ended(&children[2]));
    const uint64_t rest[] = { children[2].mark, children[0].mark };
    CHECK(swx_tree_kill_marked(rest, 2) == 2);
    for (int i = 0; i < 3; i++) {
        await_end(&children[i]);
        close(outputs[i]);
        swx_child_close(&children[i]);
    }
}

/* Short of descriptors, nobody is taken for gone. */
static void test_without_descriptors(void)
{
    int output;
    char got[64];
    swx_child child = start_script("setsid sh -c 'echo ready; exec sleep 1000' & exit 0", &output);
    CHECK(read(output, got, sizeof(got)) == 6);
    await_end(&child);
    for (rlim_t room = 0; room < 2; room++) { /* for nothing; for the directory */
        take_descriptors_away(room);
        long found = swx_tree_kill_marked(&child.mark, 1);
        give_descriptors_back();
        CHECK(found > 0); /* never "gone" without having seen it */
    }
    slurp(output, got, sizeof(got));
    close(output);
    swx_child_close(&child);
}

/* ---- trees that resist: hundreds that have shed their marks, parents that start such ones without end ---- */

enum { ORPHANS = 150, FLOOD = 3000, ROUNDS = 20 };

static void shed_marks(void)
{
    const struct rlimit limit = { 1000000, 1000000 };
    setrlimit(RLIMIT_RTTIME, &limit);
    setrlimit(RLIMIT_LOCKS, &limit);
    setsid();
}

/* This program, started again as what is to be killed. */
__attribute__((constructor)) static void be_forking(void)
{
    const char *how = getenv("SWX_FORKING");
    if (!how) {
        return;
    }
    bool flood = strcmp(how, "flood") == 0;
    for (int i = 0; i < (flood ? FLOOD : ORPHANS); i++) {
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

static swx_child start_forking(const char *how, int *output)
{
    int null = null_fd(), pair[2];
    CHECK(pipe2(pair, O_CLOEXEC) == 0 && setenv("SWX_FORKING", how, 1) == 0);
    char *argv[] = { "forking", NULL };
    swx_spawn spawn = { .file = "/proc/self/exe", .argv = argv, .input = null, .output = pair[1], .error = null };
    swx_child child;
    CHECK(swx_child_start(&child, &spawn, NULL) == SWX_OK);
    CHECK(unsetenv("SWX_FORKING") == 0);
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
static void test_many_orphans(void)
{
    int output;
    char byte;
    swx_child child = start_forking("busy", &output);
    for (int i = 0; i < ORPHANS; i++) {
        CHECK(read(output, &byte, 1) == 1);
    }
    usleep(20000);
    int64_t began = swx_now();
    swx_tree_kill_orphans(&child);
    CHECK(swx_now() - began < INT64_C(10000000000));
    kill_all(&child);
    CHECK(count_until_end(output) == 0);
}

/* A process that starts orphans faster than they are looked at is stopped first. */
static void test_flood_of_orphans(void)
{
    int output;
    char byte;
    swx_child child = start_forking("flood", &output);
    CHECK(read(output, &byte, 1) == 1);
    kill_all(&child);
    CHECK(count_until_end(output) < FLOOD - 1);
}

/* A child sheds its signs while it is looked at, and is stopped only then: nobody would find it without its parent. */
static void test_orphans_that_have_just_become_ones(void)
{
    for (int round = 0; round < ROUNDS; round++) {
        int output;
        char byte;
        swx_child child = start_forking("late", &output);
        for (int i = 0; i < ORPHANS; i++) {
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
        int null = null_fd();
        char *argv[] = { "bash", "-c", "test $(ulimit -R) = 5000000 -a $(ulimit -HR) = 5000000", NULL };
        swx_spawn spawn = { .file = "/bin/bash", .argv = argv, .input = null, .output = null, .error = null };
        swx_child child;
        CHECK(setrlimit(RLIMIT_RTTIME, &meant) == 0 && swx_child_start(&child, &spawn, NULL) == SWX_OK);
        CHECK(child.mark != 0);
        await_end(&child);
        CHECK(swx_child_code(&child) == 0);
        swx_child_close(&child);
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST_MAIN(test_low_descriptors, test_leaderless_process, test_marks_are_own, test_without_descriptors,
          test_many_orphans, test_flood_of_orphans, test_orphans_that_have_just_become_ones, test_limits_that_are_meant)
