#include "swx_child.h"
#include "swx_tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "swx_pty.h"

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

static void expect_script(const char *script, int code, const char *wanted)
{
    int output;
    char got[4096];
    swx_child child = start_script(script, &output);
    slurp(output, got, sizeof(got));
    await_end(&child);
    if (swx_child_code(&child) != code || strcmp(got, wanted) != 0) {
        fprintf(stderr, "%s: code %d output <%s>\n", script, swx_child_code(&child), got);
        exit(1);
    }
    close(output);
    swx_child_close(&child);
    swx_child_close(&child);
    CHECK(child.pidfd == -1);
}

static void test_codes(void)
{
    expect_script("echo hi; exit 0", 0, "hi\n");
    expect_script("exit 255", 255, "");
    expect_script("kill -9 $$", 128 + 9, "");
    expect_script("kill -TERM $$", 128 + 15, "");
    expect_script("cat; echo err >&2", 0, "err\n");
    /* leads all three */
    expect_script("test $(ps -o pid=,pgid=,sid= -p $$ | tr -s ' ' '\\n' | sort -u | grep -c .) = 1", 0, "");
}

static void test_failures(void)
{
    int null = null_fd();
    char *argv[] = { "x", NULL };
    const struct {
        const char *file, *directory;
        int failed;
    } cases[] = {
        { "/nonexistent/program", NULL, ENOENT },
        { "/etc/passwd", NULL, EACCES },
        { "/bin/true", "/nonexistent", ENOENT },
        { "/", NULL, EACCES },
    };
    for (size_t i = 0; i < SWX_COUNT(cases); i++) {
        swx_spawn spawn = { .file = cases[i].file,
                            .argv = argv,
                            .directory = cases[i].directory,
                            .input = null,
                            .output = null,
                            .error = null };
        swx_child child;
        swx_error err;
        CHECK(swx_child_start(&child, &spawn, &err) == SWX_ESYS);
        CHECK(err.sys_errno == cases[i].failed && strcmp(err.call, cases[i].directory ? "chdir" : "execve") == 0);
        CHECK(child.pid == 0 && child.pidfd == -1 && swx_child_ended(&child));
        swx_child_signal(&child, SIGKILL);
        swx_child_close(&child);
    }
    close(null);
    CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
}

static void test_directory_and_environment(void)
{
    int null = null_fd(), pair[2];
    CHECK(pipe2(pair, O_CLOEXEC) == 0);
    char *argv[] = { "sh", "-c", "pwd; echo $A; env | wc -l", NULL };
    char *environment[] = { "A=b c", "PATH=/usr/bin:/bin", "PWD=/", NULL };
    swx_spawn spawn = { .file = "/bin/sh",
                        .argv = argv,
                        .environment = environment,
                        .directory = "/usr",
                        .input = null,
                        .output = pair[1],
                        .error = pair[1] };
    swx_child child;
    char got[256];
    CHECK(swx_child_start(&child, &spawn, NULL) == SWX_OK);
    close(pair[1]);
    slurp(pair[0], got, sizeof(got));
    CHECK(strcmp(got, "/usr\nb c\n3\n") == 0);
    await_end(&child);
    swx_child_close(&child);
    close(pair[0]);
    close(null);
}

/* The parent ignores and blocks signals; the child starts as if it had not. */
static void test_signals_are_reset(void)
{
    sigset_t blocked, before;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGINT);
    sigaddset(&blocked, SIGTERM);
    CHECK(pthread_sigmask(SIG_BLOCK, &blocked, &before) == 0);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    /* the last 7 digits: signals 1 to 28; libc keeps two beyond for itself */
    expect_script("sed -nE 's/^Sig(Blk|Ign):.*(.{7})$/\\1 \\2/p' /proc/self/status", 0, "Blk 0000000\nIgn 0000000\n");
    signal(SIGPIPE, SIG_DFL);
    signal(SIGHUP, SIG_DFL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

/* Whatever the parent has open without close-on-exec (another thread may be between open and fcntl) stays with it. */
static void test_no_descriptor_leaks_in(void)
{
    int leaky[3];
    for (int i = 0; i < 3; i++) {
        leaky[i] = open("/dev/null", O_RDONLY);
        CHECK(leaky[i] > 2);
    }
    expect_script("for fd in /proc/self/fd/*; do test -e $fd && echo ${fd##*/}; done; :", 0, "0\n1\n2\n");
    for (int i = 0; i < 3; i++) {
        close(leaky[i]);
    }
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

static void test_terminal(void)
{
    swx_pty pty;
    swx_child child;
    CHECK(swx_pty_open(&pty, false, 24, 80, NULL) == SWX_OK);
    char *argv[] = { "bash", "-c", "test -t 0 && test -t 1 && test -t 2 && echo tty >/dev/tty; sleep 100; exit 3",
                     NULL };
    swx_spawn spawn = { .file = "/bin/bash", .argv = argv, .terminal = pty.path };
    CHECK(swx_child_start(&child, &spawn, NULL) == SWX_OK);
    struct pollfd ready = { .fd = pty.master, .events = POLLIN };
    char got[16] = { 0 };
    CHECK(poll(&ready, 1, 60000) == 1 && read(pty.master, got, sizeof(got)) == 4 && strcmp(got, "tty\n") == 0);
    CHECK(swx_pty_foreground(&pty) == child.pid);
    CHECK(swx_pty_signal(&pty, SIGINT, NULL) == SWX_OK);
    await_end(&child);
    CHECK(swx_child_code(&child) == 128 + SIGINT);
    swx_child_close(&child);
    swx_pty_close(&pty);
}

static void test_group_signal(void)
{
    int output;
    char got[64];
    swx_child child = start_script("sleep 1000 & sleep 1000 & echo ready; wait", &output);
    CHECK(read(output, got, sizeof(got)) == 6);
    swx_child_signal(&child, SIGTERM);
    slurp(output, got, sizeof(got)); /* ends, so the sleeps are gone as well */
    await_end(&child);
    CHECK(swx_child_code(&child) == 128 + SIGTERM);
    swx_child_signal(&child, SIGKILL); /* reaped: nothing */
    close(output);
    swx_child_close(&child);
}

/* Ends the tree; true when that took less than five seconds. */
static bool sweep(swx_child *child)
{
    for (int i = 0; i < 5000; i++) {
        bool ended = swx_child_ended(child);
        if (!ended) {
            swx_child_signal(child, SIGKILL);
        }
        long found = swx_tree_kill_marked(&child->mark, 1);
        CHECK(found >= 0);
        if (ended && found == 0) {
            return true;
        }
        usleep(1000);
    }
    return false;
}

/* Each way of leaving the tree; the pipe's end-of-file shows that nobody is left. */
static void test_escapees(void)
{
    static const char *const scripts[] = {
        "sleep 1000 & echo ready; wait",
        "setsid sleep 1000 & sleep 0.1; echo ready; exit 0",
        "(setsid sh -c '(setsid sleep 1000 &) & sleep 1000' &) ; sleep 0.1; echo ready",
        "env -i setsid sh -c 'echo ready; trap \"\" TERM HUP INT; exec sleep 1000'",
        "cd /; setsid nohup sh -c 'echo ready; while :; do sleep 0.001; done' & exit 7",
        "(setsid bash -c 'ulimit -R 1000; echo ready; sleep 1000 & sleep 1000; true' &) ; exit 0",
    };
    for (size_t i = 0; i < SWX_COUNT(scripts); i++) {
        int output;
        char got[64];
        swx_child child = start_script(scripts[i], &output);
        CHECK(child.mark != 0);
        CHECK(read(output, got, sizeof(got)) >= 5);
        usleep(20000);
        CHECK(sweep(&child));
        slurp(output, got, sizeof(got));
        close(output);
        swx_child_close(&child);
    }
}

/* Those that have shed both marks are found by those that have not: by their parents, and by the session. */
static void test_strays(void)
{
    static const char *const scripts[] = {
        "bash -c 'ulimit -R 1000; ulimit -x 1000; exec setsid sh -c \"echo ready; sleep 1000 & wait\"' & wait",
        ("setsid bash -c 'ulimit -R 1000; ulimit -x 1000; setsid sh -c \"setsid sleep 1000 & setsid sleep 1000 & echo "
         "ready; wait\"; true' & wait"),
        "(bash -c 'ulimit -R 1000; ulimit -x 1000; set -m; sleep 1000 & echo ready' &) ; exec sleep 1000",
        "ulimit -R 1000; ulimit -x 1000; setsid sh -c 'sleep 1000 & echo ready; wait'; true",
    };
    for (size_t i = 0; i < SWX_COUNT(scripts); i++) {
        int output;
        char got[64], script[256];
        snprintf(script, sizeof(script), "exec bash -c \"$SWX_SCRIPT\"");
        CHECK(setenv("SWX_SCRIPT", scripts[i], 1) == 0);
        swx_child child = start_script(script, &output);
        CHECK(unsetenv("SWX_SCRIPT") == 0);
        CHECK(read(output, got, sizeof(got)) >= 5);
        usleep(50000);
        bool gone = false;
        for (int step = 0; step < 5000 && !gone; step++) {
            gone = swx_tree_kill(&child);
            usleep(1000);
        }
        CHECK(gone && child.reaped);
        struct pollfd ended = { .fd = output, .events = POLLIN };
        CHECK(poll(&ended, 1, 60000) == 1);
        slurp(output, got, sizeof(got));
        close(output);
        swx_child_close(&child);
    }
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
    const uint64_t none[] = { 0, 1, UINT64_MAX - 1 };
    CHECK(swx_tree_kill_marked(none, 3) == 0 && swx_tree_kill_marked(NULL, 0) == 0);
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
    struct rlimit limit, none;
    int output;
    char got[64];
    swx_child child = start_script("setsid sh -c 'echo ready; exec sleep 1000' & exit 0", &output);
    CHECK(read(output, got, sizeof(got)) == 6);
    await_end(&child);
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    for (rlim_t room = 0; room < 3; room++) { /* for nothing; for the directory; and for one file besides */
        int next = dup(0);
        close(next);
        none = (struct rlimit){ .rlim_cur = (rlim_t)next + room, .rlim_max = limit.rlim_max };
        CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
        long found = swx_tree_kill_marked(&child.mark, 1);
        CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
        CHECK(found > 0); /* never "gone" without having seen it */
        if (room) {
            break;
        }
    }
    slurp(output, got, sizeof(got));
    close(output);
    swx_child_close(&child);
}

/* Since Linux 6.15 a pidfd tells the status of a process that someone else has reaped. */
static bool can_ask(void)
{
    struct utsname system;
    int major = 0, minor = 0;
    CHECK(uname(&system) == 0 && sscanf(system.release, "%d.%d", &major, &minor) == 2);
    return major > 6 || (major == 6 && minor >= 15);
}

static void expect_status(const char *script, int code, bool keeps_pidfd)
{
    int output;
    char got[16];
    swx_child child = start_script(script, &output);
    struct pollfd ended = { .fd = child.pidfd, .events = POLLIN };
    slurp(output, got, sizeof(got));
    CHECK(child.pidfd < 0 || poll(&ended, 1, 60 * 1000) == 1);
    if (!keeps_pidfd) {
        swx_child_close(&child);
    }
    await_end(&child);
    CHECK(swx_child_code(&child) == code);
    CHECK(code < 0 ? child.wait_status == SWX_STATUS_LOST : child.wait_status != SWX_STATUS_LOST);
    close(output);
    swx_child_close(&child);
}

/* Where the application has SIGCHLD ignored the kernel reaps at once. */
static void test_reaped_by_the_kernel(void)
{
    signal(SIGCHLD, SIG_IGN);
    expect_status("exit 3", can_ask() ? 3 : -1, true);
    expect_status("exit 0", can_ask() ? 0 : -1, true);
    expect_status("kill -KILL $$", can_ask() ? 128 + SIGKILL : -1, true);
    expect_status("exit 255", -1, false);
    signal(SIGCHLD, SIG_DFL);
    CHECK(!WIFEXITED(SWX_STATUS_LOST) && !WIFSIGNALED(SWX_STATUS_LOST));
}

static void test_reaped_by_others(void)
{
    int output, status;
    swx_child child = start_script("exit 3", &output);
    CHECK(waitpid(-1, &status, 0) == child.pid && WEXITSTATUS(status) == 3);
    await_end(&child);
    CHECK(swx_child_code(&child) == (can_ask() ? 3 : -1));
    close(output);
    swx_child_close(&child);
}

TEST_MAIN(test_codes, test_failures, test_directory_and_environment, test_signals_are_reset,
          test_no_descriptor_leaks_in, test_low_descriptors, test_terminal, test_group_signal, test_escapees,
          test_strays, test_leaderless_process, test_marks_are_own, test_without_descriptors, test_reaped_by_the_kernel,
          test_reaped_by_others)
