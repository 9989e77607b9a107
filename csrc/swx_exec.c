#include "swx_exec.h"
#include "swx_tree.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define MS INT64_C(1000000)
enum { READ_SIZE = 16 * 1024, READS_PER_CALL = 64, SWEEPS = 400 };
static const int64_t POLL = 20 * MS; /* where the kernel has no pidfd */

struct swx_exec {
    swx_child child;
    int streams[2];         /* stdout, stderr */
    swx_exec_result result; /* but for the status */
    int64_t deadline;
    int64_t sweep; /* when to kill the tree again; INT64_MAX: it is not being killed */
    int64_t look;  /* when to ask whether the program has ended, if it has no pidfd */
    unsigned sweeps;
    bool ended, released;
    void (*done)(swx_exec *);
    void (*unwatch)(void *owner, int fd);
    void *owner;
};

/* Opens stdin: a file in memory that holds all of the input.  -1: *call has failed. */
static int open_input(const swx_exec_config *config, const char **call)
{
    if (!config->input_size) {
        *call = "open(/dev/null)";
        return open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
    *call = "memfd_create";
    int fd = memfd_create("swx-input", MFD_CLOEXEC);
    for (size_t at = 0; fd >= 0 && at < config->input_size;) {
        ssize_t size = pwrite(fd, config->input + at, config->input_size - at, (off_t)at);
        if (size > 0) {
            at += (size_t)size;
        } else if (size == 0 || errno != EINTR) {
            *call = "pwrite(memfd)";
            swx_close(&fd);
        }
    }
    return fd;
}

swx_status swx_exec_new(swx_exec **out, const swx_exec_config *config, swx_error *err)
{
    int output[2] = { -1, -1 }, error[2] = { -1, -1 }, input = -1;
    swx_status status = SWX_ESYS;
    *out = NULL;
    swx_exec *e = calloc(1, sizeof(*e));
    if (!e) {
        return swx_fail(err, SWX_ENOMEM, "out of memory");
    }
    e->streams[0] = e->streams[1] = e->child.pidfd = -1;
    e->deadline = config->deadline;
    e->sweep = INT64_MAX;
    e->done = config->done;
    e->unwatch = config->unwatch;
    e->owner = config->owner;
    swx_buf_init(&e->result.output, config->output_limit);
    swx_buf_init(&e->result.error, config->output_limit);
    const char *call;
    input = open_input(config, &call);
    if (input < 0) {
        swx_fail_sys(err, call, errno);
        goto failed;
    }
    if (pipe2(output, O_CLOEXEC) != 0 || (!config->merge && pipe2(error, O_CLOEXEC) != 0)) {
        swx_fail_sys(err, "pipe2", errno);
        goto failed;
    }
    swx_spawn spawn = { .file = config->file,
                        .argv = config->argv,
                        .environment = config->environment,
                        .directory = config->directory,
                        .input = input,
                        .output = output[1],
                        .error = config->merge ? output[1] : error[1],
                        .program_mark = config->program_mark };
    status = swx_child_start(&e->child, &spawn, err);
    if (status != SWX_OK) {
        goto failed;
    }
    e->look = e->child.pidfd < 0 ? 0 : INT64_MAX;
    e->streams[0] = output[0];
    e->streams[1] = error[0];
    output[0] = error[0] = -1;
    for (int i = 0; i < 2; i++) {
        if (e->streams[i] >= 0) {
            fcntl(e->streams[i], F_SETFL, O_NONBLOCK);
        }
    }
    *out = e;
    e = NULL;
failed:
    swx_close(&input);
    for (int i = 0; i < 2; i++) {
        swx_close(&output[i]);
        swx_close(&error[i]);
    }
    free(e);
    return status;
}

static void unwatch(swx_exec *e, int fd)
{
    if (e->unwatch && fd >= 0) {
        e->unwatch(e->owner, fd);
    }
}

static void close_stream(swx_exec *e, int i)
{
    unwatch(e, e->streams[i]);
    swx_close(&e->streams[i]);
}

static void close_pidfd(swx_exec *e)
{
    unwatch(e, e->child.pidfd);
    swx_child_close(&e->child);
}

bool swx_exec_is_slow(const swx_exec *e) { return !e->ended && e->sweep != INT64_MAX; }

swx_child *swx_exec_doomed(swx_exec *e)
{
    bool doomed = !e->child.tree_ended && !e->ended && (e->sweep != INT64_MAX || !swx_child_ended(&e->child));
    return doomed ? &e->child : NULL;
}

void swx_exec_free(swx_exec *e)
{
    if (!e) {
        return;
    }
    swx_child *child = swx_exec_doomed(e);
    if (child) {
        swx_tree_end_all(&child, 1);
    }
    e->unwatch = NULL; /* the descriptors are no longer watched */
    close_stream(e, 0);
    close_stream(e, 1);
    swx_buf_free(&e->result.output);
    swx_buf_free(&e->result.error);
    swx_child_close(&e->child);
    free(e);
}

/* Reads what is there. */
static void drain(swx_exec *e, int i, unsigned reads)
{
    uint8_t bytes[READ_SIZE];
    swx_buf *kept = i == 0 ? &e->result.output : &e->result.error;
    for (unsigned n = 0; n < reads && e->streams[i] >= 0; n++) {
        ssize_t size = read(e->streams[i], bytes, sizeof(bytes));
        if (size < 0 && errno == EINTR) {
            continue;
        }
        if (size < 0) {
            return;
        }
        if (size == 0) {
            close_stream(e, i);
        } else if (!e->ended && swx_buf_append(kept, bytes, (size_t)size) != SWX_OK) {
            e->result.no_memory = true;
        }
    }
}

static void finish(swx_exec *e)
{
    e->ended = true;
    e->done(e);
}

/* Whether the program has ended.  Then the rest is read; other processes may go on writing without end. */
static bool check_end(swx_exec *e)
{
    if (!swx_child_ended(&e->child)) {
        return false;
    }
    close_pidfd(e); /* it would stay readable while what it started is being killed */
    if (e->sweep == INT64_MAX && !e->ended) {
        for (int i = 0; i < 2; i++) {
            drain(e, i, 1024);
        }
        finish(e);
    } /* else the sweep finishes */
    return true;
}

void swx_exec_event(swx_exec *e, unsigned which)
{
    if (which < 2) {
        drain(e, (int)which, READS_PER_CALL);
    } else {
        check_end(e);
    }
}

static void start_killing(swx_exec *e, int64_t now)
{
    e->deadline = INT64_MAX;
    e->sweep = now;
}

void swx_exec_cancel(swx_exec *e, int64_t now)
{
    if (!e->ended && e->sweep == INT64_MAX) {
        e->result.cancelled = true;
        start_killing(e, now);
    }
}

int64_t swx_exec_deadline(const swx_exec *e)
{
    int64_t due = e->sweep < e->deadline ? e->sweep : e->deadline;
    due = e->look < due ? e->look : due;
    return e->ended ? INT64_MAX : due;
}

void swx_exec_due(swx_exec *e, int64_t now)
{
    if (e->ended) {
        return;
    }
    if (e->look <= now) {
        e->look = now + POLL;
        check_end(e);
    }
    if (e->deadline <= now) {
        if (!check_end(e)) { /* else in time after all */
            e->result.timed_out = true;
            start_killing(e, now);
        }
    } else if (e->sweep <= now) {
        if (swx_tree_kill(&e->child) || ++e->sweeps > SWEEPS) {
            for (int i = 0; i < 2; i++) {
                drain(e, i, READS_PER_CALL);
                close_stream(e, i);
            }
            if (e->child.reaped) {
                close_pidfd(e);
            } /* else another user's program lives, and its end will be seen */
            finish(e);
        } else {
            e->sweep = now + (e->sweeps < 20 ? MS : 10 * MS);
        }
    }
}

int swx_exec_fd(const swx_exec *e, unsigned which) { return which < 2 ? e->streams[which] : e->child.pidfd; }

void swx_exec_release(swx_exec *e) { e->released = true; }

bool swx_exec_is_finished(const swx_exec *e)
{
    return e->released && e->ended && e->streams[0] < 0 && e->streams[1] < 0 && e->child.reaped;
}

void *swx_exec_owner(const swx_exec *e) { return e->owner; }

uint64_t swx_exec_mark(const swx_exec *e) { return e->child.mark; }

swx_exec_result swx_exec_take_result(swx_exec *e)
{
    swx_exec_result result = e->result;
    result.wait_status = e->child.wait_status;
    swx_buf_init(&e->result.output, 2);
    swx_buf_init(&e->result.error, 2);
    return result;
}
