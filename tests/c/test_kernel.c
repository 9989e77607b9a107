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
#include <time.h>
#include <unistd.h>

#include "harness.h"
#include "swx_child.h"
#include "swx_pty.h"

static bool parse(const char *text, long *number, uint64_t arguments[SWX_SYSCALL_FIELDS])
{
    size_t size = strlen(text);
    char *copy = malloc(size + 1); /* without the NUL behind it, for the sanitizer */
    CHECK(copy);
    memcpy(copy + 1, text, size);
    bool good = swx_kernel_parse(copy + 1, size, number, arguments);
    free(copy);
    return good;
}

static void test_parse(void)
{
    long number;
    uint64_t a[SWX_SYSCALL_FIELDS];
    const char *line = "0 0x0 0x55d2c8a3b010 0x400 0x0 0x1 0x2 0x7ffd5 0x7f2\n";
    CHECK(parse(line, &number, a) && number == 0 && a[0] == 0 && a[1] == 0x55d2c8a3b010 && a[2] == 0x400);
    CHECK(parse("270 0x1 0xffffffffffffffff 0xA", &number, a) == false);
    CHECK(parse("270 0x1 0xffffffffffffffff 0xa 0x0 0x0 0x0 0x7f 0x1", &number, a) && number == 270 &&
          a[1] == UINT64_MAX && a[2] == 10 && a[6] == 0x7f && a[7] == 1);
    CHECK(!parse("270 0x1 0x2 0xa 0x0 0x0 0x0 0x7f", &number, a));
    CHECK(!parse("running\n", &number, a));
    CHECK(!parse("-1 0x7ffd5 0x7f2\n", &number, a));
    CHECK(!parse("", &number, a) && !parse("0", &number, a) && !parse("0 0x", &number, a) &&
          !parse("0 0x1 0x2 ", &number, a));
    CHECK(!parse("0 1 2 3", &number, a) && !parse("12345678 0x1 0x2 0x3", &number, a));
    CHECK(!parse("0 0x11112222333344445 0x2 0x3 0x0 0x0 0x0 0x7f 0x1", &number, a)); /* more than 64 bits */
    for (size_t cut = 0; cut < strlen(line); cut++) {
        char part[80] = { 0 };
        memcpy(part, line, cut);
        CHECK(parse(part, &number, a) == (cut > strlen("0 0x0 0x55d2c8a3b010 0x400 0x0 0x1 0x2 0x7ffd5 0x")));
    }
}

/* A file that says what /proc/PID/syscall would. */
static int says(const char *line)
{
    int fd = memfd_create("syscall", MFD_CLOEXEC);
    CHECK(fd >= 0 && write(fd, line, strlen(line)) == (ssize_t)strlen(line));
    return fd;
}

static void test_a_read_as_at_the_prompt(void)
{
    swx_kernel kernel = { .fd = says("0 0x0 0x55d2c8a3b010 0x400 0x0 0x1 0x2 0x7ffd10000000 0x7f2210000000\n") };
    CHECK(swx_kernel_learn(&kernel) == SWX_OK && swx_kernel_reads_as_prompt(&kernel));
    static const struct {
        const char *line;
        bool prompt;
    } cases[] = {
        { "0 0x0 0x55d2c8a3c010 0x400 0x0 0x1 0x2 0x7ffd0fff8000 0x7f2210000000\n", true },   /* another bash's */
        { "0 0x0 0x55d2c8a3c010 0x1000 0x0 0x1 0x2 0x7ffd0fff8000 0x7f2210000000\n", false }, /* `read x` */
        { "270 0x1 0x55d2c8a3c010 0x0 0x0 0x0 0x2 0x7ffd0fff8000 0x7f2210100000\n", false },  /* `read -e x` */
        { "running\n", false },
    };
    for (size_t i = 0; i < SWX_COUNT(cases); i++) {
        close(kernel.fd);
        kernel.fd = says(cases[i].line);
        CHECK(swx_kernel_reads_as_prompt(&kernel) == cases[i].prompt);
    }
    swx_kernel_close(&kernel);
}

static void nap(void) { nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL); }

/* Asks for up to five seconds. */
static void await(const swx_kernel *kernel, swx_shell_at wanted)
{
    for (int i = 0; i < 5000 && swx_kernel_look(kernel) != wanted; i++) {
        nap();
    }
    CHECK(swx_kernel_look(kernel) == wanted);
}

/* SIGINT until the shell is back at its prompt: one that comes while a child is not yet in the foreground meets nobody.
 */
static void interrupt(const swx_pty *pty, const swx_kernel *kernel)
{
    for (int tries = 0; tries < 50 && swx_kernel_look(kernel) != SWX_SHELL_PROMPT; tries++) {
        CHECK(swx_pty_signal(pty, SIGINT, NULL) == SWX_OK);
        for (int i = 0; i < 100 && swx_kernel_look(kernel) != SWX_SHELL_PROMPT; i++) {
            nap();
        }
    }
    await(kernel, SWX_SHELL_PROMPT);
}

static void discard(const swx_pty *pty)
{
    char bytes[4096];
    while (read(pty->master, bytes, sizeof(bytes)) > 0) {
    }
}

static void test_a_shell(void)
{
    swx_pty pty;
    swx_child child;
    swx_kernel kernel;
    CHECK(swx_pty_open(&pty, false, 24, 80, NULL) == SWX_OK);
    char *argv[] = { "bash", "--norc", "--noprofile", "--noediting", "-i", NULL };
    swx_spawn spawn = { .file = "/bin/bash", .argv = argv, .terminal = pty.path };
    CHECK(swx_child_start(&child, &spawn, NULL) == SWX_OK);
    swx_kernel_open(&kernel, child.pid);
    CHECK(kernel.fd >= 0);
    CHECK(swx_kernel_look(&kernel) == SWX_SHELL_UNKNOWN); /* nothing was learned */
    char seen[256] = { 0 };
    for (size_t size = 0; !strstr(seen, "$ ") && !strstr(seen, "# ");) { /* its prompt */
        ssize_t got = read(pty.master, seen + size, sizeof(seen) - 1 - size);
        size += got > 0 ? (size_t)got : 0;
        CHECK(got > 0 || errno == EAGAIN);
        nap();
    }
    swx_status status = SWX_MORE;
    for (int i = 0; i < 5000 && status == SWX_MORE; i++) {
        status = swx_kernel_learn(&kernel);
        nap();
    }
    CHECK(status == SWX_OK && kernel.buffer);
    CHECK(swx_kernel_look(&kernel) == SWX_SHELL_PROMPT);
    const char *const lines[] = { "read x\n", "sleep 100\n", "while :; do :; done\n", "wait $(sleep 100)\n",
                                  "/bin/cat\n" };
    for (size_t i = 0; i < SWX_COUNT(lines); i++) {
        CHECK(write(pty.master, lines[i], strlen(lines[i])) == (ssize_t)strlen(lines[i]));
        await(&kernel, SWX_SHELL_ELSEWHERE);
        for (int n = 0; n < 20; n++) { /* and never for a moment at its prompt */
            nap();
            CHECK(swx_kernel_look(&kernel) == SWX_SHELL_ELSEWHERE);
        }
        interrupt(&pty, &kernel);
        discard(&pty);
    }
    const char *readline = "set -o emacs\n";
    CHECK(write(pty.master, readline, strlen(readline)) > 0);
    await(&kernel, SWX_SHELL_READLINE);
    swx_child_signal(&child, SIGKILL);
    while (!swx_child_ended(&child)) {
        nap();
    }
    CHECK(swx_kernel_look(&kernel) == SWX_SHELL_UNKNOWN && swx_kernel_learn(&kernel) == SWX_EUNSUPPORTED);
    swx_kernel_close(&kernel);
    swx_kernel_close(&kernel);
    CHECK(kernel.fd == -1 && swx_kernel_look(&kernel) == SWX_SHELL_UNKNOWN);
    swx_child_close(&child);
    swx_pty_close(&pty);
}

static void test_no_process(void)
{
    swx_kernel kernel;
    swx_kernel_open(&kernel, 0x7fffffff);
    CHECK(kernel.fd == -1 && kernel.buffer == 0 && swx_kernel_learn(&kernel) == SWX_EUNSUPPORTED);
    swx_kernel_close(&kernel);
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
    for (int i = 0; i < 5000 && !swx_kernel_is_over(child); i++) {
        nap();
    }
    CHECK(swx_kernel_worked(getpid()) > 0 && swx_kernel_worked(1 << 27) == -1);
    CHECK(swx_kernel_is_over(child) && !swx_kernel_is_over(getpid()));
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
    for (int i = 0; i < 5000 && swx_kernel_worked(child) < 3000000; i++) {
        nap();
    }
    CHECK(swx_kernel_worked(child) >= 3000000 && !swx_kernel_has_newborn(getpid()));
    CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
    child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        pause();
        _exit(0);
    }
    for (int i = 0; i < 5000 && swx_kernel_has_newborn(getpid()); i++) {
        nap();
    }
    CHECK(!swx_kernel_has_newborn(getpid()));
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
    int input[2];
    char byte;
    CHECK(pipe(input) == 0);
    pid_t child = fork();
    if (child == 0) {
        close(input[1]);
        _exit(read(input[0], &byte, 1) == 1 && vfork() == 0 ? (usleep(300 * 1000), 0) : 0);
    }
    close(input[0]);
    for (int i = 0; i < 1000 && !swx_kernel_sleeps(child); i++) {
        usleep(1000);
    }
    CHECK(swx_kernel_sleeps(child) && !swx_kernel_sleeps(getpid()));
    CHECK(write(input[1], "x", 1) == 1);
    usleep(100 * 1000);
    CHECK(!swx_kernel_sleeps(child));
    close(input[1]);
    CHECK(waitpid(child, NULL, 0) == child && swx_kernel_sleeps(child)); /* nothing is known of it */
}

TEST_MAIN(test_parse, test_a_read_as_at_the_prompt, test_a_shell, test_no_process, test_closed_behind_it, test_pace,
          test_newborn, test_youngest_child, test_sleeps)
