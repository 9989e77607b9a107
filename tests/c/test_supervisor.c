#include "swx_supervisor.h"
#include "swx_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "swx_child.h"

/* This program is also the executable that it starts. */
__attribute__((constructor)) static void be_supervisor(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[0], "swerex-c-supervisor") == 0) {
        swx_supervisor_run(0, strtoull(argv[1], NULL, 10));
        _exit(0);
    }
}

static const char *own_path(void)
{
    static char path[1024];
    ssize_t size = readlink("/proc/self/exe", path, sizeof(path) - 1);
    CHECK(size > 0);
    path[size] = 0;
    return path;
}

/* Starts `sh -c script`, which has the pipe's end as its standard output. */
static swx_child start_script(const char *script, int output, uint64_t program_mark)
{
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    char *argv[] = { "sh", "-c", (char *)(uintptr_t)script, NULL };
    swx_spawn spawn = {
        .file = "/bin/sh", .argv = argv, .input = null, .output = output, .error = null, .program_mark = program_mark
    };
    swx_child child;
    CHECK(null >= 0 && swx_child_start(&child, &spawn, NULL) == SWX_OK && child.mark);
    close(null);
    return child;
}

static void expect_bytes(int fd, size_t count)
{
    char byte;
    while (count--) {
        CHECK(read(fd, &byte, 1) == 1 && byte == '\n');
    }
}

/* A program that ends at once has its children ended, wherever they went; another's lives on. */
static void test_end_of_program(void)
{
    int ours[2], others[2], go[2];
    CHECK(pipe2(ours, O_CLOEXEC) == 0 && pipe2(others, O_CLOEXEC) == 0 && pipe2(go, O_CLOEXEC) == 0);
    swx_child other = start_script("echo; exec sleep 1000", others[1], swx_child_draw_program_mark());
    close(others[1]);
    pid_t pid = fork();
    if (pid == 0) {
        uint64_t mark;
        char byte;
        CHECK(swx_supervisor_start(own_path(), &mark, NULL) == SWX_OK && mark);
        start_script("(env -i setsid sh -c \"echo; sleep 1000; :\" &)", ours[1], mark);
        start_script("trap \"\" HUP TERM; echo; sleep 1000; :", ours[1], mark);
        CHECK(read(go[0], &byte, 1) == 1);
        _exit(0);
    }
    CHECK(pid > 0);
    close(ours[1]);
    expect_bytes(ours[0], 2);
    expect_bytes(others[0], 1);
    CHECK(write(go[1], "", 1) == 1 && waitpid(pid, NULL, 0) == pid);
    struct pollfd ended = { .fd = ours[0], .events = POLLIN };
    char byte;
    CHECK(poll(&ended, 1, 60000) == 1 && read(ours[0], &byte, 1) == 0);
    struct pollfd lives = { .fd = others[0], .events = POLLIN };
    CHECK(poll(&lives, 1, 100) == 0);
    swx_tree_end_all(&(swx_child *){ &other }, 1);
    swx_child_close(&other);
    close(ours[0]);
    close(others[0]);
    close(go[0]);
    close(go[1]);
}

/* It is no child of who started it, and takes no descriptor of theirs. */
static void test_start_leaves_nothing(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        uint64_t mark;
        size_t before = open_descriptors();
        CHECK(swx_supervisor_start(own_path(), &mark, NULL) == SWX_OK && mark);
        CHECK(open_descriptors() == before && waitpid(-1, NULL, 0) == -1 && errno == ECHILD);
        close(0);
        CHECK(swx_supervisor_start(own_path(), &mark, NULL) == SWX_OK && mark); /* the pidfd is 0 */
        _exit(0);
    }
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void test_failures(void)
{
    swx_error err;
    uint64_t mark;
    for (const char **path = (const char *[]){ "/nonexistent/supervisor", "/dev/null", NULL }; *path; path++) {
        mark = 1;
        CHECK(swx_supervisor_start(*path, &mark, &err) == SWX_OK && mark == 0); /* sessions run without one */
    }
    struct rlimit limit, none;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    int next = dup(0);
    close(next);
    none = (struct rlimit){ .rlim_cur = (rlim_t)next, .rlim_max = limit.rlim_max };
    CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
    swx_status status = swx_supervisor_start(own_path(), &mark, &err);
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    CHECK(status == SWX_ESYS && err.sys_errno == EMFILE && strcmp(err.call, "pidfd_open") == 0);
}

TEST_MAIN(test_end_of_program, test_start_leaves_nothing, test_failures)
