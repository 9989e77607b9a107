/* A session and its event loop in one thread, for the tests of sessions: every function here is one turn of it, or
 * several. */
#ifndef SWX_TEST_TURNS_H
#define SWX_TEST_TURNS_H

#include "harness.h"
#include "swx_session.h"

extern char **environ;

#define MS INT64_C(1000000)
#define PATIENCE (60000 * MS) /* only to stop a hang: the machine may be busy */

static inline int64_t now(void) { return swx_now(); }

static inline void noted(swx_op *op) { (void)op; }

/* One turn of the loop; `limit` is when to come back at the latest. */
static inline void turn(swx_session *s, int64_t limit)
{
    int64_t due = swx_session_deadline(s);
    struct pollfd fds[2] = {
        { .fd = swx_session_terminal(s),
          .events = (swx_session_wants_read(s) ? POLLIN : 0) | (swx_session_wants_write(s) ? POLLOUT : 0) },
        { .fd = swx_session_pidfd(s), .events = swx_session_look(s).dead ? 0 : POLLIN },
    };
    fds[0].fd = fds[0].events ? fds[0].fd : -1; /* poll tells of a hang-up to who asks for nothing */
    poll_until(fds, 2, due < limit ? due : limit);
    int64_t t = now();
    if (fds[0].revents & (POLLIN | POLLHUP)) {
        swx_session_readable(s, t);
    }
    if (fds[0].revents & POLLOUT) {
        swx_session_writable(s);
    }
    if (fds[1].revents & POLLIN) {
        swx_session_ended(s, t);
    }
    if (swx_session_deadline(s) <= t) {
        swx_session_due(s, t);
    }
}

#define TURN_UNTIL(s, condition)                                           \
    for (int64_t limit = now() + PATIENCE; !(condition); turn(s, limit)) { \
        CHECK(now() < limit);                                              \
    }

static inline void wait_for(swx_session *s, const swx_op *op) { TURN_UNTIL(s, op->end != SWX_END_NONE) }

static inline void submit(swx_session *s, swx_op *op) { swx_session_submit(s, op, now()); }

static inline void complete(swx_session *s, swx_op *op)
{
    submit(s, op);
    wait_for(s, op);
}

static inline void rest(swx_session *s, int64_t length)
{
    int64_t until = now() + length;
    while (now() < until) {
        turn(s, until);
    }
}

/* Until an operation that runs has printed that many bytes.  They stay in its output. */
static inline void wait_for_output(swx_session *s, swx_op *op, size_t size)
{
    uint8_t bytes[64];
    CHECK(size <= sizeof(bytes));
    for (int64_t limit = now() + PATIENCE; op->taken < size; swx_session_take(s, op, bytes, size, now())) {
        CHECK(now() < limit && op->end == SWX_END_NONE);
        turn(s, limit);
    }
}

static inline swx_op operation(swx_op_kind kind, const char *typed)
{
    return (swx_op){ .kind = kind,
                     .typed = (const uint8_t *)typed,
                     .typed_size = strlen(typed),
                     .deadline = SWX_NEVER,
                     .step = kind == SWX_OP_START ? SWX_NEVER : 2000 * MS,
                     .tries = 3,
                     .done = noted };
}

static inline swx_session_config configuration(size_t limit)
{
    return (swx_session_config){
        .program = "/bin/bash", .environment = environ, .rows = 24, .columns = 80, .output_limit = limit
    };
}

/* A session that has shown its first prompt.  unproven: without the kernel's word on it. */
static inline swx_session *open_configured(size_t limit, bool unproven)
{
    swx_session_config config = configuration(limit);
    swx_session *s;
    swx_error err;
    config.unproven = unproven;
    /* readline says more on some terminals than on others */
    CHECK(setenv("TERM", "xterm", 1) == 0 && unsetenv("PROMPT_COMMAND") == 0);
    CHECK(swx_session_new(&s, &config, now(), &err) == SWX_OK);
    swx_op start = operation(SWX_OP_START, ":");
    complete(s, &start);
    CHECK(start.end == SWX_END_DONE);
    swx_buf_free(&start.output);
    return s;
}

static inline swx_session *open_session(size_t limit) { return open_configured(limit, false); }

static inline void close_session(swx_session *s)
{
    swx_op close = operation(SWX_OP_CLOSE, "");
    complete(s, &close);
    swx_buf_free(&close.output);
    swx_session_free(s);
}

/* Compares an ended operation with what it should be, and frees its output. */
static inline void check_ended(const char *which, swx_op *op, swx_end end, int code, const char *output)
{
    char got[65536] = { 0 };
    CHECK(op->output.size < sizeof(got));
    swx_buf_copy(&op->output, "", (uint8_t *)got);
    if (op->end != end || op->code != code || (output && strcmp(got, output) != 0)) {
        fprintf(stderr, "%s: end %d code %d output <%s>, wanted %d %d <%s>\n", which, (int)op->end, op->code, got,
                (int)end, code, output ? output : "(any)");
        exit(1);
    }
    swx_buf_free(&op->output);
}

#define PLACE_OF(line) "line " #line
#define PLACE(line) PLACE_OF(line)
#define EXPECT(op, wanted_end, wanted_code, wanted_output) \
    check_ended(PLACE(__LINE__), op, wanted_end, wanted_code, wanted_output)

/* Waits for the operation's end before that; COMPLETE hands it over, too. */
#define AWAIT(s, op, wanted_end, wanted_code, wanted_output) \
    (wait_for(s, op), EXPECT(op, wanted_end, wanted_code, wanted_output))
#define COMPLETE(s, op, wanted_end, wanted_code, wanted_output) \
    (submit(s, op), AWAIT(s, op, wanted_end, wanted_code, wanted_output))

/* Runs a line and compares what came. */
static inline void expect_run(swx_session *s, const char *line, int code, const char *output)
{
    swx_op op = operation(SWX_OP_RUN, line);
    complete(s, &op);
    check_ended(line, &op, SWX_END_DONE, code, output);
}

/* Interrupts what runs, and returns its exit code. */
static inline int interrupt(swx_session *s)
{
    swx_op op = operation(SWX_OP_INTERRUPT, "");
    complete(s, &op);
    CHECK(op.end == SWX_END_DONE);
    swx_buf_free(&op.output);
    return op.code;
}

#endif
