#include "swx_supervisor.h"

#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"

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

static void test_without_descriptors(void)
{
    swx_error err;
    uint64_t mark;
    const char *path = own_path();
    take_descriptors_away(0);
    swx_status status = swx_supervisor_start(path, &mark, &err);
    give_descriptors_back();
    CHECK(status == SWX_ESYS && err.sys_errno == EMFILE && strcmp(err.call, "pidfd_open") == 0);
}

TEST_MAIN(test_start_leaves_nothing, test_without_descriptors)
