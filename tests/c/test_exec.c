/* One program at a time; this file is the event loop. */
#include "swx_exec.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "harness.h"
#include "alloc.h"

#define MS INT64_C(1000000)

typedef struct {
    unsigned done;
    swx_exec_result result; /* then */
} owner;

static void noted(swx_exec *e)
{
    owner *o = swx_exec_owner(e);
    o->done++;
    o->result = swx_exec_take_result(e);
}

static void end(swx_exec *e, owner *o)
{
    swx_exec_free(e);
    swx_buf_free(&o->result.output);
    swx_buf_free(&o->result.error);
}

static void turn(swx_exec *e, int64_t limit)
{
    struct pollfd fds[3];
    int64_t due = swx_exec_deadline(e);
    for (unsigned i = 0; i < 3; i++) {
        fds[i] = (struct pollfd){ .fd = swx_exec_fd(e, i), .events = POLLIN };
    }
    poll_until(fds, 3, due < limit ? due : limit);
    int64_t t = swx_now();
    for (unsigned i = 0; i < 3; i++) {
        if (fds[i].revents && swx_exec_fd(e, i) == fds[i].fd) {
            swx_exec_event(e, i);
        }
    }
    if (swx_exec_deadline(e) <= t) {
        swx_exec_due(e, t);
    }
}

static void wait_for(swx_exec *e)
{
    int64_t limit = swx_now() + 60000 * MS;
    const owner *o = swx_exec_owner(e);
    while (!o->done) {
        CHECK(swx_now() < limit);
        turn(e, limit);
    }
    CHECK(o->done == 1 && swx_exec_deadline(e) == INT64_MAX);
}

/* `sh -c script`; the rest of the configuration is the caller's. */
static swx_exec *start(swx_exec_config config, owner *o, const char *script)
{
    char *argv[] = { (char[]){ "sh" }, (char[]){ "-c" }, (char *)(uintptr_t)script, NULL };
    swx_exec *e;
    swx_error err;
    config.file = "/bin/sh";
    config.argv = argv;
    config.deadline = config.deadline ? config.deadline : INT64_MAX;
    config.output_limit = config.output_limit ? config.output_limit : 1 << 20;
    config.done = noted;
    config.owner = o;
    CHECK(swx_exec_new(&e, &config, &err) == SWX_OK);
    return e;
}

static bool holds(const swx_buf *buf, const char *text)
{
    size_t size = strlen(text);
    uint8_t *got = malloc(buf->size + 1);
    CHECK(got);
    swx_buf_copy(buf, "", got);
    bool same = buf->size == size && memcmp(got, text, size) == 0;
    if (!same) {
        fprintf(stderr, "got <%.*s>, wanted <%s>\n", (int)buf->size, (char *)got, text);
    }
    free(got);
    return same;
}

#define NONE ((swx_exec_config){ 0 })

/* Of both streams the limit is kept; a program that cannot be executed leaves nothing. */
static void test_start_and_output(void)
{
    size_t before = open_descriptors();
    owner o = { 0 };
    swx_exec *e = start((swx_exec_config){ .output_limit = 1000 }, &o,
                        "printf begin; head -c 20000000 /dev/zero; printf end; head -c 3000000 /dev/zero >&2");
    wait_for(e);
    const swx_buf *output = &o.result.output;
    uint8_t got[1000];
    CHECK(o.result.wait_status == 0 && output->size == 1000 && output->total == 20000008);
    swx_buf_copy(output, "", got);
    CHECK(memcmp(got, "begin", 5) == 0 && memcmp(got + 997, "end", 3) == 0 && got[500] == 0);
    CHECK(o.result.error.size == 1000 && o.result.error.total == 3000000);
    end(e, &o);
    swx_error err;
    char *argv[] = { "x", NULL };
    swx_exec_config config = { .file = "/nonexistent/x", .argv = argv, .deadline = INT64_MAX, .output_limit = 100 };
    CHECK(swx_exec_new(&e, &config, &err) == SWX_ESYS && !e && err.sys_errno == ENOENT);
    CHECK(open_descriptors() == before && waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
    swx_exec_free(NULL);
}

/* The program ends before its deadline, but the loop comes late: that is no timeout. */
static void test_in_time_after_all(void)
{
    owner o = { 0 };
    int64_t deadline = swx_now() + 500 * MS;
    swx_exec *e = start((swx_exec_config){ .deadline = deadline }, &o, "echo x; exit 5");
    struct pollfd ended = { .fd = swx_exec_fd(e, 2), .events = POLLIN };
    CHECK(poll(&ended, 1, 60000) == 1);
    while (swx_now() < deadline) {
        usleep(1000);
    }
    swx_exec_due(e, swx_now());
    CHECK(o.done == 1);
    CHECK(!o.result.timed_out && o.result.wait_status == 5 << 8 && holds(&o.result.output, "x\n"));
    end(e, &o);
}

/* Between the program's end and that of what it had started, its descriptor, readable for ever, does not keep the loop
 * busy. */
static void test_no_spinning_while_killing(void)
{
    owner o = { 0 };
    swx_exec *e = start(NONE, &o, "sleep 1000");
    swx_exec_cancel(e, swx_now());
    swx_exec_due(e, swx_now());
    while (!o.done && swx_exec_fd(e, 2) >= 0) {
        struct pollfd ended = { .fd = swx_exec_fd(e, 2), .events = POLLIN };
        if (poll(&ended, 1, 10) == 0) { /* one kill may come too early to reach all */
            swx_exec_due(e, swx_now());
            continue;
        }
        swx_exec_event(e, 2);
        CHECK(swx_exec_fd(e, 2) == -1);
    }
    wait_for(e);
    end(e, &o);
}

/* Freed while it runs: all of it is killed.  Freed after its end: what it left behind lives on. */
static void test_free(void)
{
    for (int round = 0; round < 3; round++) {
        owner o = { 0 };
        int alive[2];
        char script[512];
        size_t before = open_descriptors();
        CHECK(pipe(alive) == 0);
        snprintf(script, sizeof(script),
                 "exec 9>/proc/%d/fd/%d; setsid sh -c 'setsid sleep 1000 & sleep 1000' & echo; %s", (int)getpid(),
                 alive[1], round == 2 ? "" : "sleep 1000");
        swx_exec *e = start(NONE, &o, script);
        struct pollfd ready = { .fd = swx_exec_fd(e, 0), .events = POLLIN };
        CHECK(poll(&ready, 1, 60000) == 1);
        usleep(50000);
        if (round == 1) { /* in the middle of a cancellation, the program itself already gone */
            swx_exec_cancel(e, swx_now());
            swx_exec_due(e, swx_now());
            usleep(20000);
        } else if (round ==
                   2) { /* ended, though nobody has asked yet; then it is cancelled: what it started goes, too */
            swx_exec_cancel(e, swx_now());
        }
        swx_exec_free(e);
        close(alive[1]);
        struct pollfd gone = { .fd = alive[0], .events = POLLIN }; /* it and all that it started */
        CHECK(poll(&gone, 1, 60000) == 1 && read(alive[0], script, 1) == 0);
        close(alive[0]);
        CHECK(o.done == 0 && open_descriptors() == before);
    }
    CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
}

static void test_no_memory(void)
{
#ifdef SWX_ALLOC_TEST
    long live = swx_alloc_live();
    bool succeeded = false;
    size_t before = open_descriptors();
    for (unsigned long i = 1; !succeeded; i++) {
        owner o = { 0 };
        char *argv[] = { "sh", "-c", "seq 20000; echo err >&2", NULL };
        swx_exec *e;
        swx_error err;
        swx_exec_config config = {
            .file = "/bin/sh", .argv = argv, .deadline = INT64_MAX, .output_limit = 1 << 20, .done = noted, .owner = &o
        };
        swx_alloc_fail_at(i, 0);
        swx_status status = swx_exec_new(&e, &config, &err);
        if (status == SWX_OK) {
            wait_for(e);
            CHECK(o.result.wait_status == 0);
            succeeded = !o.result.no_memory;
            CHECK(!succeeded || (o.result.output.size == 108894 && holds(&o.result.error, "err\n")));
        } else {
            CHECK(status == SWX_ENOMEM && err.status == SWX_ENOMEM && !e);
        }
        CHECK(!succeeded || swx_alloc_count() < i);
        swx_alloc_fail_at(0, 0);
        end(e, &o);
        CHECK(swx_alloc_live() == live && open_descriptors() == before);
        CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
    }
#endif
}

TEST_MAIN(test_start_and_output, test_in_time_after_all, test_no_spinning_while_killing, test_free, test_no_memory)
