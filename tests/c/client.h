/* A client, and sessions over it.  `test_NAME client PROGRAM...` puts its terminal into raw mode and carries
 * bytes to and from a terminal of PROGRAM's own, as `docker exec -it` does. */
#ifndef SWX_TEST_CLIENT_H
#define SWX_TEST_CLIENT_H

#include <errno.h>
#include <pty.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>

#include "turns.h"

/* ---- the client ---- */

static volatile sig_atomic_t resized;

static void note_resize(int number)
{
    (void)number;
    resized = 1;
}

static bool carry_bytes(int from, int to)
{
    char bytes[16384];
    ssize_t size = read(from, bytes, sizeof(bytes));
    for (ssize_t at = 0, part; at < size; at += part) {
        part = write(to, bytes + at, (size_t)(size - at));
        if (part <= 0) {
            return false;
        }
    }
    return size > 0 || (size < 0 && errno == EINTR);
}

static inline int run_client(char **argv)
{
    struct winsize size;
    struct termios raw;
    int inner, status;
    if (ioctl(0, TIOCGWINSZ, &size) != 0 || tcgetattr(0, &raw) != 0) {
        return 125;
    }
    pid_t pid = forkpty(&inner, NULL, NULL, &size); /* with the modes that every fresh terminal has: echo, "\r\n" */
    if (pid == 0) {
        execvp(argv[0], argv);
        dprintf(2, "client: exec: \"%s\": executable file not found\n", argv[0]);
        _exit(127);
    }
    cfmakeraw(&raw);
    tcsetattr(0, TCSANOW, &raw);
    sigaction(SIGWINCH, &(struct sigaction){ .sa_handler = note_resize }, NULL);
    struct pollfd ends[2] = { { .fd = 0, .events = POLLIN }, { .fd = inner, .events = POLLIN } };
    for (bool open = true; open;) {
        poll(ends, 2, resized ? 0 : 50);
        if (resized) {
            resized = 0;
            ioctl(0, TIOCGWINSZ, &size);
            ioctl(inner, TIOCSWINSZ, &size);
        }
        if (ends[1].revents) {
            open = carry_bytes(inner, 1);
        } else if (ends[0].revents) {
            open = carry_bytes(0, inner);
        }
    }
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* ---- sessions behind it ---- */

static char *const client_argv[] = {
    (char[]){ "/proc/self/exe" }, (char[]){ "client" },      (char[]){ "bash" }, (char[]){ "--noprofile" },
    (char[]){ "--norc" },         (char[]){ "--noediting" }, (char[]){ "-i" },   NULL
};

static inline swx_session *begin(char *const *argv)
{
    swx_session_config config = configuration(4 << 20);
    swx_session *s;
    swx_error err;
    config.program = argv ? argv[0] : config.program;
    config.argv = argv;
    CHECK(swx_session_new(&s, &config, now(), &err) == SWX_OK);
    return s;
}

static inline swx_session *open_behind(char *const *argv, const char *script)
{
    swx_session *s = begin(argv);
    swx_op start = operation(SWX_OP_START, script);
    COMPLETE(s, &start, SWX_END_DONE, 0, "");
    CHECK(!swx_session_look(s).kernel_proof && swx_session_look(s).questions == 1);
    return s;
}

static inline swx_session *open_client(void) { return open_behind(client_argv, ":"); }

/* Runs the tests, or carries: what the `main` of such a test does. */
static inline int run_or_client(const swx_test *tests, size_t count, int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "client") == 0) {
        return run_client(argv + 2);
    }
    CHECK(setenv("TERM", "xterm", 1) == 0 && unsetenv("PROMPT_COMMAND") == 0);
    for (size_t i = 0; i < count; i++) {
        tests[i]();
    }
    printf("%zu passed, 0 failed\n", count);
    return 0;
}

#define TRANSPORT_MAIN(...)                                        \
    int main(int argc, char **argv)                                \
    {                                                              \
        const swx_test tests[] = { __VA_ARGS__ };                  \
        return run_or_client(tests, SWX_COUNT(tests), argc, argv); \
    }

#endif
