/* engine.c: the session engine alone, in one thread with poll(2): no reactor, no Python.
 *
 * It stands between floor.c and the package, so that one can see which layer costs what: the same rows, the same JSON.
 *
 *   engine command N TEXT [REST]
 *   engine output FILE ROUNDS
 *
 * Build: cc -O2 -std=c11 -D_GNU_SOURCE -Icsrc benchmarks/engine.c csrc/swx_*.c -o engine -lutil -lpthread
 */
#include "swx_session.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

extern char **environ;

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static double self_cpu_us(void)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) * 1e6 +
           (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

static void noted(swx_op *op) { (void)op; }

static void turn(swx_session *session)
{
    int64_t due = swx_session_deadline(session), time = now();
    struct pollfd fds[2] = {
        { .fd = swx_session_terminal(session), .events = POLLIN },
        { .fd = swx_session_pidfd(session), .events = POLLIN },
    };
    if (swx_session_wants_write(session)) {
        fds[0].events |= POLLOUT;
    }
    int64_t left = due > time ? due - time : 0;
    struct timespec wait = { .tv_sec = left / 1000000000, .tv_nsec = left % 1000000000 };
    ppoll(fds, 2, due == SWX_NEVER ? NULL : &wait, NULL);
    time = now();
    if (fds[0].revents & (POLLIN | POLLHUP)) {
        swx_session_readable(session, time);
    }
    if (fds[0].revents & POLLOUT) {
        swx_session_writable(session, time);
    }
    if (fds[1].revents & POLLIN) {
        swx_session_ended(session, time);
    }
    if (swx_session_deadline(session) <= time) {
        swx_session_due(session, time);
    }
}

/* Runs one operation to its end; *size is how much it printed.  Returns the exit code, -1 for any other end. */
static int run(swx_session *session, swx_op_kind kind, const char *text, size_t length, uint64_t *size)
{
    swx_op op = { .kind = kind,
                  .typed = (const uint8_t *)text,
                  .typed_size = length,
                  .deadline = SWX_NEVER,
                  .step = kind == SWX_OP_START ? SWX_NEVER : 0,
                  .done = noted };
    swx_session_submit(session, &op, now());
    while (op.end == SWX_END_NONE) {
        turn(session);
    }
    *size = op.output.total;
    swx_buf_free(&op.output);
    return op.end == SWX_END_DONE ? op.code : -1;
}

static void print(size_t count, size_t wrong, double cpu, const double *samples, long long bytes)
{
    printf("{\"count\": %zu, \"wrong\": %zu, \"cpu_self_us\": %.1f, ", count, wrong, cpu);
    if (bytes) {
        printf("\"bytes\": %lld, ", bytes);
    }
    printf("\"samples_us\": [");
    for (size_t i = 0; i < count; i++) {
        printf(i ? ", %.2f" : "%.2f", samples[i]);
    }
    puts("]}");
}

/* A function of its own, because counts.py has its instructions counted. */
__attribute__((noinline)) static int measure(swx_session *session, const char *line, size_t count, unsigned warm, unsigned rest_us, long long bytes)
{
    double *samples = calloc(count, sizeof *samples);
    size_t wrong = 0, length = strlen(line);
    uint64_t size;
    if (!samples) {
        return 2;
    }
    while (warm--) {
        run(session, SWX_OP_RUN, line, length, &size);
    }
    double cpu = self_cpu_us();
    for (size_t i = 0; i < count; i++) {
        for (int64_t until = now() + rest_us * 1000; rest_us && now() < until;) {
        }
        int64_t start = now();
        int code = run(session, SWX_OP_RUN, line, length, &size);
        samples[i] = (double)(now() - start) / 1e3;
        wrong += code != 0 || size != (uint64_t)bytes;
    }
    print(count, wrong, self_cpu_us() - cpu, samples, bytes);
    free(samples);
    return wrong != 0;
}

int main(int argc, char **argv)
{
    bool output = argc == 4 && !strcmp(argv[1], "output");
    bool command = (argc == 4 || argc == 5) && !strcmp(argv[1], "command");
    char line[4096];
    struct stat info = { .st_size = 0 };
    if (!output && !command) {
        fputs("usage: engine command N TEXT [REST] | output FILE ROUNDS\n", stderr);
        return 2;
    }
    if (output && stat(argv[2], &info)) {
        perror(argv[2]);
        return 2;
    }
    swx_session_config config = {
        .shell = "/bin/bash", .environment = environ, .rows = 24, .columns = 80, .output_limit = (size_t)1 << 30
    };
    swx_session *session;
    swx_error err;
    uint64_t size;
    if (swx_session_new(&session, &config, now(), &err) != SWX_OK || run(session, SWX_OP_START, ":", 1, &size)) {
        fputs("engine: no session\n", stderr);
        return 2;
    }
    snprintf(line, sizeof line, output ? "cat %s\n" : "%s\n", output ? argv[2] : argv[3]);
    size_t count = strtoul(argv[output ? 3 : 2], NULL, 10);
    unsigned rest_us = argc == 5 ? (unsigned)strtoul(argv[4], NULL, 10) : 0;
    int status = measure(session, line, count, output ? 0 : 50, rest_us, (long long)info.st_size);
    run(session, SWX_OP_CLOSE, "", 0, &size);
    swx_session_free(session);
    return status;
}
